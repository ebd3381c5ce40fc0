"""What the agents cost and give a real vLLM that shares its cores with them: writes build/bench/agents_outside.json.

vLLM's own `vllm bench serve`, or with `--tool` guidellm or aiperf, sends a fixed rate with declared targets to one stack at a time, each
started anew: the gateway in pass-through, without agents, as it comes, as it comes with every request asked about, with agents in the class
for idle processors, and with each agent left out. All arms of a round get the same requests, in random order of the arms. Every figure is
the tool's own.

    python lab/benchmarks/bench_agents_outside.py             # make setup-vllm comes first; 25 minutes on a quiet machine
    python lab/benchmarks/bench_agents_outside.py --rps 6 --targets 100 15 --arms pass-through no-agents as-it-comes
"""

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any

import msgspec
from hmas_lab.frontdoor.arms import Arm, arm_of, running_arm, without
from hmas_lab.frontdoor.settings import PASS, PLAIN, PRODUCT
from hmas_lab.outside.session import run_tool
from hmas_lab.outside.tools import AIPERF, GUIDELLM, VLLM, Ask, Figures
from hmas_lab.result_files import VERSION, write_result
from hmas_lab.vllm_engine import VllmServer, running_vllm

from hmas.controller.config.derived import AGENT_NAMES
from hmas.demo.site import DemoBroken
from hmas.planning import StudyError

ROOT = Path(__file__).resolve().parents[2]
ASK_ALL, SPARE_ONLY = "ask-all", "spare-cpu-only"
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType({ASK_ALL: {"ask": "all"}, SPARE_ONLY: {"spare_cpu_only": True}})
ARMS = (PASS, PLAIN, PRODUCT, *VARIANTS, *(without(agent) for agent in AGENT_NAMES))
TOOLS = {"vllm": VLLM, "guidellm": GUIDELLM, "aiperf": AIPERF}
"""What may send the load; each is installed under build/, the last two by `make bench-outside`."""
MODEL, SETTLE_S, WARM_RPS, WARM_REQUESTS = "tiny", 3.0, 8.0, 24
"""A stack is given `SETTLE_S` after it is ready, since agents report for work then, and a few requests that count for nothing."""


def arm_named(name: str) -> Arm:
    """The arm's configuration."""
    return Arm(config={"agents": VARIANTS[name]}) if name in VARIANTS else arm_of(name)


async def measure(args: argparse.Namespace, model: Path) -> dict[str, list[Figures]]:
    """The figures of each arm, one for each round."""
    taken: dict[str, list[Figures]] = {name: [] for name in args.arms}
    order = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="hmas-agents-outside-") as place:
        folder = Path(place)
        async with running_vllm(VllmServer(python=args.vllm_python, model=model, cores="nobind"), folder, MODEL) as engine:
            for number in range(args.rounds):
                for name in order.sample(args.arms, len(args.arms)):
                    one = await _one(args, model, engine, folder / f"{number}-{name}", name, number)
                    taken[name].append(one)
                    words = (
                        f"{one.good} good, {one.goodput_rps:6.2f}/s  P95 TTFT {one.ttft_p95_ms:7.1f} ms  P95 TPOT {one.tpot_p95_ms:5.1f} ms"
                    )
                    print(f"{number + 1} {name:20} {words}  {one.completed} answered, {one.failed} not", flush=True)
    return taken


async def _one(args: argparse.Namespace, model: Path, engine: str, folder: Path, name: str, number: int) -> Figures:
    ttft_ms, tpot_ms = args.targets
    async with running_arm(arm_named(name), (f"vllm={engine}",), folder) as stack:
        await asyncio.sleep(SETTLE_S)
        ask = Ask(url=stack.url, model=MODEL, tokenizer=model, rps=WARM_RPS, requests=WARM_REQUESTS, ttft_ms=ttft_ms, tpot_ms=tpot_ms)
        await run_tool(VLLM, args.vllm_python.parent, ask, folder / "warm")
        requests = round(args.rps * args.seconds)
        ask = msgspec.structs.replace(ask, rps=args.rps, requests=requests, seed=100 + number)
        return await run_tool(TOOLS[args.tool], args.build / args.tool / "bin", ask, folder / "load")


def rows_of(taken: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    """One row for each arm."""
    return [
        {
            "arm": name,
            "goodput_rps": [round(one.goodput_rps, 2) for one in ones],
            "mean_rps": round(fmean(one.goodput_rps for one in ones), 2),
            "spread_rps": round(stdev(one.goodput_rps for one in ones), 2) if len(ones) > 1 else 0.0,
            "ttft_p95_ms": [round(one.ttft_p95_ms, 1) for one in ones],
            "tpot_p95_ms": [round(one.tpot_p95_ms, 1) for one in ones],
        }
        for name, ones in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", type=Path, default=ROOT / "build" / "vllm" / "bin" / "python")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "tiny-model")
    parser.add_argument("--tool", choices=TOOLS, default="vllm")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the tools' environments are")
    parser.add_argument("--rps", type=float, default=27.0)
    parser.add_argument("--targets", type=int, nargs=2, default=(300, 30), metavar=("TTFT_MS", "TPOT_MS"))
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "agents_outside.json")
    args = parser.parse_args()
    # One thread, bound to no core: whatever else this machine does would else hold up one fixed core's engine.
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        taken = asyncio.run(measure(args, args.model.absolute()))
    except (StudyError, DemoBroken) as error:
        raise SystemExit(str(error)) from error
    rows = rows_of(taken)
    write_result(args.out, {"version": VERSION, "rps": args.rps, "targets_ms": list(args.targets), "seconds": args.seconds, "rows": rows})
    for row in rows:
        print(f"{row['arm']:20} {row['mean_rps']:6.2f} ± {row['spread_rps']:.2f} good/s ({', '.join(map(str, row['goodput_rps']))})")
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
