"""Other projects' load tools before a real vLLM, before the gateway in pass-through and as it comes: writes build/bench/outside.json.

vLLM's own `vllm bench serve` sends 6 requests a second with two pairs of targets; guidellm and aiperf send half and 0.9 of the capacity
that each measures first. Every figure is the tool's own. The tools are installed into environments of their own under build/; one that
cannot be had is named with the reason. All load the tiny model. With --smollm2 guidellm and aiperf load SmolLM2-135M in its place: a CPU
completes about one such request a second, so give that at least --seconds 120.

    python lab/benchmarks/bench_outside.py                        # make setup-vllm comes first; 20 minutes
    python lab/benchmarks/bench_outside.py --quick                # one pair of short runs for each load: 5 minutes
    python lab/benchmarks/bench_outside.py --page docs/results.md # writes the last run's table into the page
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from hmas_lab.as_it_comes import cancel_on_sigterm, hmas_up
from hmas_lab.frontdoor.arms import PASS_THROUGH
from hmas_lab.outside.page import body
from hmas_lab.outside.session import DIRECT, PASS, Cell, Site, capacity_rps, compare, own_capacity_rps
from hmas_lab.outside.tools import AIPERF, GUIDELLM, VLLM
from hmas_lab.page import write_page
from hmas_lab.result_files import VERSION, write_result
from hmas_lab.vllm_engine import VllmServer, running_vllm
from setup_peers import install

from hmas.demo.site import DemoBroken
from hmas.planning import StudyError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "make bench-outside"
# torch is named before guidellm, which asks for any: this version has a build without CUDA in some indexes, the newest has not.
PACKAGES = {GUIDELLM: ("torch==2.13.0", "guidellm==0.8.1"), AIPERF: ("aiperf==0.13.0",)}
SETTLE_S = 2.0
"""What a gateway is given to read its engine and hear its agents."""
VLLM_RPS = 6.0
VLLM_TARGETS = ((100, 15), (300, 30))
SHARES = {0.5: 0.98, 0.9: 1.0}
"""Share of capacity, and the goal for the ratio of goodput there."""
TARGETS = {"tiny": (300, 30), "smollm2": (1000, 100)}
"""Targets of guidellm's and aiperf's loads by model: what the engine itself keeps at half of its capacity."""


def say(text: str) -> None:
    print(text, flush=True)


def tools_there(folder: Path) -> tuple[dict[Any, Path], dict[str, str]]:
    """The `bin` of each tool's environment, installed where it is not there yet; and why others are not to be had."""
    found, missing = {}, {}
    for tool, packages in PACKAGES.items():
        place = folder / tool.name
        say(f"{tool.name}: {'is there' if (place / '.ready').exists() else 'is being installed'}")
        reason = install(place, *packages)
        if reason:
            say(f"{tool.name}: not to be had: {reason}")
            missing[tool.name] = reason
        else:
            found[tool] = place / "bin"
    return found, missing


def starter(engine: str, folder: Path) -> Callable[[str], AbstractAsyncContextManager[str]]:
    """What `Site.stand` needs: a gateway is started for each run, so that none runs beside another arm."""

    @asynccontextmanager
    async def stand(arm: str) -> AsyncIterator[str]:
        if arm == DIRECT:
            yield engine
            return
        async with hmas_up((f"vllm={engine}",), folder / arm, config=PASS_THROUGH if arm == PASS else {}) as stack:
            await asyncio.sleep(SETTLE_S)
            yield stack.url

    return stand


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    cancel_on_sigterm()
    rounds, seconds = (1, args.seconds or 12.0) if args.quick else (2, args.seconds or 25.0)
    found, missing = tools_there(args.build)
    vllm_bin = args.vllm_python.parent
    models = {"tiny": args.model}
    if args.smollm2:
        models["smollm2"] = args.smollm2
    summary: dict[str, Any] = {"rows": [], "missing": missing, "capacity_rps": {}, "rounds": rounds, "seconds": seconds}
    shares_on = list(models)[-1]
    for name, model in models.items():
        with tempfile.TemporaryDirectory(prefix="hmas-outside-") as place:
            folder = Path(place)
            server = VllmServer(python=args.vllm_python, model=model, cores="nobind")
            async with running_vllm(server, folder, name) as engine:
                site = Site(stand=starter(engine, folder), model=name, tokenizer=model, folder=folder, seconds=seconds)
                capacity = await capacity_rps(site, vllm_bin)
                summary["capacity_rps"][name] = round(capacity, 2)
                say(f"{name}: {capacity:.1f} requests/s with 32 in flight")
                cells = []
                if name == "tiny":
                    for ttft_ms, tpot_ms in VLLM_TARGETS:
                        load = "fixed rate"
                        cells.append(Cell(tool=VLLM, place=vllm_bin, load=load, rps=VLLM_RPS, ttft_ms=ttft_ms, tpot_ms=tpot_ms, goal=0.98))
                if name == shares_on:
                    ttft_ms, tpot_ms = TARGETS[name]
                    for tool, tool_bin in found.items():
                        try:
                            own = await own_capacity_rps(site, tool, tool_bin, capacity)
                        except StudyError as error:
                            summary["missing"][tool.name] = str(error)
                            continue
                        summary["capacity_rps"][f"{name}, by {tool.name}"] = round(own, 2)
                        say(f"{name}: {own:.1f} requests/s by {tool.name}")
                        for share, goal in SHARES.items():
                            load, rps = f"{share:g} of capacity", share * own
                            cells.append(Cell(tool=tool, place=tool_bin, load=load, rps=rps, ttft_ms=ttft_ms, tpot_ms=tpot_ms, goal=goal))
                for cell in cells:
                    summary["rows"].append(await compare(site, cell, rounds, say))
                    write_result(args.out, {"version": VERSION, "summary": summary})
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", type=Path, default=ROOT / "build" / "vllm" / "bin" / "python")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "tiny-model")
    parser.add_argument("--smollm2", type=Path, help="directory of SmolLM2-135M (`make setup-smollm2`), for guidellm and aiperf")
    parser.add_argument("--seconds", type=float, help="length of each load; 25, or 12 with --quick")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the tools' environments are")
    parser.add_argument("--quick", action="store_true", help="one pair of short runs for each load")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "outside.json")
    parser.add_argument("--page", type=Path, help="write the last run's table into this page, and measure nothing")
    args = parser.parse_args()
    if args.page:
        write_page(args.page, args.out.parent, {args.out.stem: body}, command=COMMAND)
        return
    for path in ("vllm_python", "model", "smollm2", "build", "out"):
        if getattr(args, path):
            setattr(args, path, getattr(args, path).absolute())
    # One thread, bound to no core: whatever else this machine does would else hold up one fixed core's engine.
    os.environ["OMP_NUM_THREADS"] = "1"
    args.build.mkdir(parents=True, exist_ok=True)
    try:
        summary = asyncio.run(measure(args))
    except (StudyError, DemoBroken) as error:
        raise SystemExit(str(error)) from error
    except asyncio.CancelledError:
        raise SystemExit("stopped") from None
    say("")
    say(body({"summary": summary}))
    say(f"\nwritten to {args.out}")
    if any("failed" in row for row in summary["rows"]):
        raise SystemExit(json.dumps({row["tool"]: row["failed"] for row in summary["rows"] if "failed" in row}))


if __name__ == "__main__":
    main()
