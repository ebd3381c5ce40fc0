"""What a dozen mistaken requests a second do to two good ones a second on a real vLLM: writes build/bench/bad_requests.json.

The good ones are sent alone and beside the mistaken ones, to vLLM directly and through the gateway as it comes (`hmas up`). The four take
turns every few seconds, so that whatever else the machine does is spread over all of them; how far every other slice of the good ones
alone lies from the rest says what a ratio of p99s is worth here. The goal: through the gateway the good ones' p99 beside the mistakes is
within 10 % of what it is alone, and every mistaken one gets its 400.

    python lab/benchmarks/bench_bad_requests.py            # make setup-vllm comes first; about seven minutes
    python lab/benchmarks/bench_bad_requests.py --quick    # two and a half
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hmas_lab.as_it_comes import hmas_up
from hmas_lab.mistakes import Load, Served, measure, quantiles, ratios
from hmas_lab.vllm_engine import VllmServer, running_vllm

from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]
GOAL = 1.10
WARM_S, SLICE_S = 5.0, 5.0
ALONE, BESIDE = "alone", "beside mistakes"
KINDS = ("ttft_ms", "total_ms")


def row(runs: list[Served]) -> dict[str, Any]:
    """One arm, its slices pooled."""
    counts = {kind: sum((Counter(getattr(run, kind)) for run in runs), Counter[str]()) for kind in ("good", "bad")}
    return {**{kind: dict(count) for kind, count in counts.items()}, **{kind: quantiles(runs, kind) for kind in KINDS}}


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Starts vLLM and the gateway, and has the four arms take turns."""
    rounds = 6 if args.quick else 16
    clock = SystemClock()
    served: dict[str, list[Served]] = {}
    with tempfile.TemporaryDirectory(prefix="hmas-bad-requests-") as place:
        folder = Path(place)
        server = VllmServer(python=args.vllm_python, model=args.model, cores="nobind")
        async with running_vllm(server, folder, "tiny") as engine, hmas_up((f"vllm={engine}",), folder) as stack:
            gateway = stack.url
            print(f"vLLM at {engine}, gateway at {gateway}", flush=True)
            for url in (engine, gateway):
                await measure(url, Load(model="tiny", seconds=WARM_S, bad_rps=args.bad_rps), clock)
            for number in range(rounds):
                for name, url in (("direct", engine), ("gateway", gateway)):
                    # Which comes first alternates: a machine that gets slower must not look like an effect of the mistakes.
                    for bad_rps in (0.0, args.bad_rps) if number % 2 == 0 else (args.bad_rps, 0.0):
                        arm = f"{name}, {BESIDE if bad_rps else ALONE}"
                        result = await measure(url, Load(model="tiny", seconds=SLICE_S, bad_rps=bad_rps), clock)
                        served.setdefault(arm, []).append(result)
                        p99 = percentile(result.total_ms, 99)
                        print(f"round {number + 1:2}  {arm:24}  p99 {p99:6.1f} ms  good {result.good}  bad {result.bad}", flush=True)
    summary = {"rows": {arm: row(served[arm]) for arm in sorted(served)}, "ratios": {}}
    for name in ("direct", "gateway"):
        alone, mixed = served[f"{name}, {ALONE}"], served[f"{name}, {BESIDE}"]
        summary["ratios"][name] = {kind: ratios(mixed, alone, kind) for kind in KINDS}
        # The same comparison of the good ones alone with themselves: every second pair of slices against the rest.
        summary["ratios"][f"{name}, noise"] = {kind: ratios(alone[::2], alone[1::2], kind) for kind in KINDS}
    return {"version": 1, "bad_rps": args.bad_rps, "slice_s": SLICE_S, "rounds": rounds, "goal": GOAL, "summary": summary}


def show(document: dict[str, Any]) -> str:
    """The table that is printed."""
    lines = [f"{'':24}  TTFT p50     p99 ms   whole answer p50     p99 ms   answers"]
    for arm, one in document["summary"]["rows"].items():
        ttft, total = one["ttft_ms"], one["total_ms"]
        answers = f"good {one['good']} bad {one['bad']}"
        lines.append(f"{arm:24}  {ttft['p50']:8.1f}  {ttft['p99']:9.1f}   {total['p50']:16.1f}  {total['p99']:9.1f}   {answers}")
    lines.append(f"beside mistakes over alone (goal: p99 of the gateway's whole answers {GOAL}):")
    for name, one in document["summary"]["ratios"].items():
        words = "; ".join(f"{kind} p50 {one[kind]['p50']}, p95 {one[kind]['p95']}, p99 {one[kind]['p99']}" for kind in KINDS)
        lines.append(f"  {name:16}  {words}")
    return "\n".join(lines)


def main() -> None:
    """Parses the command line, measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", type=Path, default=ROOT / "build" / "vllm" / "bin" / "python")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "tiny-model")
    parser.add_argument("--bad-rps", type=float, default=12.0, help="mistaken requests per second")
    parser.add_argument("--quick", action="store_true", help="six rounds in place of sixteen")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "bad_requests.json")
    args = parser.parse_args()
    # One thread, bound to no core: whatever else this machine does would else hold up one fixed core's engine.
    os.environ["OMP_NUM_THREADS"] = "1"
    document = asyncio.run(run(args))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    print(show(document))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
