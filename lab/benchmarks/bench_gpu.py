"""The front door and vLLM's own load tool before a real vLLM on a GPU: writes build/bench/gpu-door.json and gpu-tool.json.

First come the bodies that clients really send, at half of the capacity and beyond it, through the same gateway in pass-through, without
agents and as it comes. Then comes `vllm bench serve` with a tight TPOT target, directly and through the gateway in pass-through and as it
comes. The model has the shape of a real one and random weights; every answer gets the length of the model's answer that the data have.
It takes ten minutes.

    python lab/benchmarks/bench_gpu.py --vllm-python python3 --model build/smollm2     # `make build/smollm2/.ready` comes first
    python lab/benchmarks/bench_gpu.py --page docs/results-gpu.md                       # writes the last run's tables into the page
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from bench_outside import SHARES, starter
from hmas_lab.as_it_comes import cancel_on_sigterm
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.measurement import Measurement
from hmas_lab.frontdoor.runs import Runs
from hmas_lab.frontdoor.settings import GPU, PRODUCT, DoorSettings
from hmas_lab.frontdoor.tables import goals_table, loads_table
from hmas_lab.gpu_engine import SHAPES, GpuServer, check_lengths
from hmas_lab.outside.page import body as tool_body
from hmas_lab.outside.session import Cell, Site, capacity_rps, compare
from hmas_lab.outside.tools import VLLM
from hmas_lab.page import write_page
from hmas_lab.questions import data_dir, read_questions
from hmas_lab.result_files import VERSION, write_result
from hmas_lab.tables import markdown
from hmas_lab.vllm_engine import running_vllm

from hmas.controller.runtime.clock import SystemClock
from hmas.demo.site import DemoBroken
from hmas.loadgen.dataset import load_mixture
from hmas.planning import StudyError

ROOT = Path(__file__).resolve().parents[2]
DOOR, TOOL = "gpu-door", "gpu-tool"
COMMAND = "python lab/benchmarks/bench_gpu.py"
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
IN_FLIGHT = 128
"""Requests in flight while the tool's capacity is measured."""


def door_body(document: Mapping[str, Any]) -> str:
    """What stands between the front door's markers: single cells have a dozen requests each, which says little."""
    return "\n\n".join(markdown(table(document)) for table in (goals_table, loads_table))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


async def door(settings: DoorSettings, engine: str, folder: Path, out: Path) -> None:
    """Real bodies through the arms."""
    questions = read_questions(data_dir(), max_prompt=settings.max_prompt, max_output=settings.max_output)
    load = DoorLoad(settings, questions, load_mixture()[1])
    runs = Runs(settings, load, (f"vllm={engine}",), folder, say)
    kept = partial(write_result, out / f"{DOOR}.json")
    kept(await Measurement(settings, load, runs, SystemClock(), say, keep=kept).run())


async def tool(args: argparse.Namespace, engine: str, folder: Path) -> None:
    """The load tool of vLLM, directly and through the gateway."""
    site = Site(
        stand=starter(engine, folder),
        model=args.shape,
        tokenizer=args.model,
        folder=folder,
        seconds=args.tool_seconds,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
    )
    place = args.vllm_python.parent
    capacity = await capacity_rps(site, place, IN_FLIGHT)
    say(f"{capacity:.1f} requests/s with {IN_FLIGHT} in flight")
    sizes = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "in_flight": IN_FLIGHT}
    summary: dict[str, Any] = {"rounds": args.rounds, "seconds": args.tool_seconds, **sizes, "missing": {}}
    summary |= {"rows": [], "capacity_rps": {args.shape: round(capacity, 2)}}
    for share in map(float, args.tool_loads.split(",")):
        load, rps = f"{share:g} of capacity", share * capacity
        goal = SHARES.get(share, 1.0)
        cell = Cell(tool=VLLM, place=place, load=load, rps=rps, ttft_ms=args.ttft_ms, tpot_ms=args.tpot_ms, goal=goal)
        summary["rows"].append(await compare(site, cell, args.rounds, say))
        write_result(args.out / f"{TOOL}.json", {"version": VERSION, "summary": summary})


async def measure(args: argparse.Namespace) -> None:
    cancel_on_sigterm()
    settings = msgspec.structs.replace(
        GPU,
        seconds=args.seconds,
        ramp=(args.ramp / 6.0, args.ramp),
        budget_s=args.door_budget,
        arms=tuple(args.arms.split(",")),
        loads=tuple(map(float, args.loads.split(","))),
        capacity_rps=args.capacity,
        seed=args.seed,
    )
    with tempfile.TemporaryDirectory(prefix="hmas-gpu-") as place:
        folder = Path(place)
        server = GpuServer(python=args.vllm_python, model=args.model, shape=args.shape, flags=FLAGS)
        try:
            async with running_vllm(server, folder, args.shape) as engine:
                say("vLLM is ready")
                await check_lengths(engine, args.shape)
                await door(settings, engine, folder / "door", args.out)
                if args.rounds:
                    await tool(args, engine, folder / "tool")
        finally:
            args.out.mkdir(parents=True, exist_ok=True)
            if (folder / "vllm.log").exists():
                shutil.copy(folder / "vllm.log", args.out / "gpu-vllm.log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", type=Path, help="interpreter of the environment that holds vLLM for the GPU")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "smollm2", help="directory of SmolLM2, whose tokenizer it takes")
    parser.add_argument("--shape", choices=SHAPES, default="14b", help="size of the model")
    parser.add_argument("--seconds", type=float, default=GPU.seconds, help="length of the arrivals of a run at the front door")
    parser.add_argument("--ramp", type=float, default=GPU.ramp[1], help="requests/s to which the load rises while capacity is measured")
    parser.add_argument("--arms", default=",".join(GPU.arms), help="arms of the front door, as-it-comes among them")
    parser.add_argument("--loads", default=",".join(map(str, GPU.loads)), help="rates over capacity at the front door, with commas between")
    parser.add_argument("--capacity", type=float, default=0.0, help="good requests/s that loads refer to; 0 measures them")
    parser.add_argument("--seed", type=int, default=GPU.seed, help="requests and times follow from it")
    parser.add_argument("--door-budget", type=float, default=600.0, help="seconds after which no run at the front door begins")
    parser.add_argument("--tool-seconds", type=float, default=20.0, help="length of each of the tool's loads")
    shares = ",".join(map(str, SHARES))
    parser.add_argument("--tool-loads", default=shares, help="rates of the tool over its own capacity, with commas between")
    parser.add_argument("--rounds", type=int, default=1, help="how often each of the tool's loads is run")
    parser.add_argument("--ttft-ms", type=int, default=500, help="TTFT target of the tool's loads")
    parser.add_argument("--tpot-ms", type=int, default=25, help="TPOT target of the tool's loads")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="folder of the results")
    parser.add_argument("--page", type=Path, help="write the last run's tables into this page, and measure nothing")
    args = parser.parse_args()
    if args.page:
        write_page(args.page, args.out, {DOOR: door_body, TOOL: tool_body}, command=COMMAND)
        return
    if args.vllm_python is None:
        parser.error("give --vllm-python: the interpreter of the environment that holds vLLM")
    if PRODUCT not in args.arms.split(","):
        parser.error(f"--arms {args.arms}: needed is {PRODUCT}, which all others are compared with")
    found = shutil.which(args.vllm_python)
    if found is None:
        parser.error(f"--vllm-python {args.vllm_python}: there is no such program")
    args.vllm_python, args.model, args.out = Path(found).absolute(), args.model.absolute(), args.out.absolute()
    try:
        asyncio.run(measure(args))
    except (StudyError, DemoBroken) as error:
        raise SystemExit(str(error)) from error
    except asyncio.CancelledError:
        raise SystemExit("stopped") from None


if __name__ == "__main__":
    main()
