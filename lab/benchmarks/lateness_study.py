"""What it is worth to judge lateness by what engines show: the same arrivals, `late_confidence` at 0 and as shipped, in virtual time.

Loads and targets are about those of `hmas-lab paper` (docs/results-hmas.md), no agents. Two seeds take some minutes:

    python lab/benchmarks/lateness_study.py --seeds 2
    make compile && PYTHONPATH=build/compiled python -P lab/benchmarks/lateness_study.py --policies edf,fcfs,slack
"""

import argparse
from statistics import fmean

from hmas.controller.simulation import RequestRecord
from hmas.planning.case import Case, read_admission
from hmas.planning.fleet import read_fleet
from hmas.planning.report import make_report
from hmas.planning.running import run_case

PLACES = {
    "demo-small, bursts": ("1xdemo-small", "gamma:rate=2.6,cv=2.5,duration=200", 30.0),
    "Qwen3-8B, load-30": ("2xa100-qwen3-8b", "poisson:rate=11.58,duration=600,slo_scale=0.848", 60.0),
    "Qwen3-8B, load-40": ("2xa100-qwen3-8b", "poisson:rate=15.44,duration=600,slo_scale=0.848", 60.0),
    "Qwen3-8B, load-50": ("2xa100-qwen3-8b", "poisson:rate=19.30,duration=600,slo_scale=0.848", 60.0),
    "Qwen3-8B, phases": ("2xa100-qwen3-8b", "phases:rate=15.44,phase=200,slo_scale=0.848", 60.0),
    "Qwen3-8B, burst": ("2xa100-qwen3-8b", "burst:rate=15.20,duration=240,slo_scale=0.848", 24.0),
    "Qwen3-8B, shift": ("2xa100-qwen3-8b", "shift:rate=26.03,duration=240,slo_scale=0.848", 24.0),
    "Qwen3-30B, load-50": ("1xa100-qwen3-30b-a3b-tp2", "poisson:rate=19.25,duration=600,slo_scale=1.256", 60.0),
    "Qwen3-30B, drift": ("1xa100-qwen3-30b-a3b-tp2", "drift:rate=20.46,duration=240,slo_scale=1.256", 24.0),
    "Qwen3-30B, shift": ("1xa100-qwen3-30b-a3b-tp2", "shift:rate=20.50,duration=240,slo_scale=1.256", 24.0),
    "Llama-3.3-70B, load-50": ("1xa100-llama-3-70b-tp4", "poisson:rate=4.22,duration=600,slo_scale=1.987", 60.0),
    "Llama-3.3-70B, drift": ("1xa100-llama-3-70b-tp4", "drift:rate=5.02,duration=240,slo_scale=1.987", 24.0),
    "Llama-3.3-70B, shift": ("1xa100-llama-3-70b-tp4", "shift:rate=6.12,duration=240,slo_scale=1.987", 24.0),
}
"""Fleet, workload and warm-up by name."""
SHARE_ALONE, LEAD = "late_confidence=0", "gateway"


def in_vain(record: RequestRecord) -> bool:
    """Sent while its first token was not due yet, and late all the same."""
    return record.ttft_ms is not None and record.queue_ms < record.slo.ttft_ms < record.ttft_ms


def shares(place: str, policy: str, admission: str, seed: int) -> tuple[float, float, float]:
    """Good ones of all, of the long class, and sent in vain of all."""
    fleet, workload, warmup_s = PLACES[place]
    run = run_case(
        Case(workload=workload, fleet=read_fleet(fleet), policy=policy, admission=read_admission(admission), warmup_s=warmup_s, seed=seed)
    )
    found = make_report(run).score
    long = [one.goodput_rate for name, one in found.per_class.items() if name.endswith("long")]
    return found.goodput_rate, fmean(long), fmean(in_vain(record) for record in run.records if record.arrival_s >= warmup_s)


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="edf", help="with commas between (default: edf)")
    parser.add_argument("--seeds", type=int, default=2, help="workloads of each place, seeds 1 and up (default: 2)")
    options = parser.parse_args()
    print("| load | policy | good: share alone | lead | long ones: share alone | lead | sent in vain: share alone | lead |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for place in PLACES:
        for policy in options.policies.split(","):
            before, after = (
                [fmean(column) for column in zip(*(shares(place, policy, how, seed + 1) for seed in range(options.seeds)), strict=True)]
                for how in (SHARE_ALONE, LEAD)
            )
            cells = " | ".join(f"{100 * share:.1f} %" for pair in zip(before, after, strict=True) for share in pair)
            print(f"| {place} | {policy} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
