"""What each of meta's selectors makes of another start: the same arrivals, the policy that was configured, and who may change it.

Virtual time, statera at work, each selector judged as shipped; beside them the configured policy and `robust-edf`, each unchanged. Places
are those of `lateness_study.py`. Two seeds of all take a quarter of an hour on two cores when compiled:

    make compile && PYTHONPATH=build/compiled:lab/benchmarks python -P lab/benchmarks/selectors_study.py --start fcfs
    python lab/benchmarks/selectors_study.py --places "Qwen3-8B, burst" --seeds 1 --selectors rules,twin
    python lab/benchmarks/selectors_study.py --seeds 1 --selectors rules,llm --meta llm_url=http://127.0.0.1:8000
"""

import argparse
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from lateness_study import PLACES

from hmas.cli.studies import read_meta
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.planning.case import AGENTS, Case
from hmas.planning.fleet import read_fleet
from hmas.planning.report import make_report
from hmas.planning.running import run_case

SELECTORS = "rules,twin,classifier,bandit,change-point"
DEFAULT_PLACES = "Qwen3-8B, phases;Qwen3-8B, burst;Qwen3-8B, shift;Qwen3-30B, drift;Llama-3.3-70B, drift"

Way = tuple[str, str]
"""Policy configured, and selector; an empty one for no meta."""


def share(place: str, way: Way, seed: int, meta: Mapping[str, str | int | float | bool]) -> tuple[float, int]:
    """Good ones of all, and how often the policy changed."""
    fleet, workload, warmup_s = PLACES[place]
    policy, selector = way
    case = Case(
        workload=workload,
        fleet=read_fleet(fleet),
        policy=policy,
        agents=AGENTS if selector else ("statera",),
        meta={**meta, "meta_selector": selector} if selector else {},
        warmup_s=warmup_s,
        seed=seed,
    )
    run = run_case(case)
    return make_report(run).score.goodput_rate, len(run.changes)


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", default="fcfs", help="policy that is configured (default: fcfs)")
    parser.add_argument("--selectors", default=SELECTORS, help=f"with commas between (default: {SELECTORS})")
    parser.add_argument("--places", default=DEFAULT_PLACES, help="with semicolons between (default: five of them)")
    parser.add_argument("--seeds", type=int, default=2, help="workloads of each place, seeds 1 and up (default: 2)")
    parser.add_argument(
        "--meta", action="append", default=[], metavar="NAME=VALUE", help="a setting of meta for all selectors, such as llm_url=URL"
    )
    options = parser.parse_args()
    meta = read_meta(options.meta)
    ways: list[Way] = [(options.start, ""), *((options.start, name) for name in options.selectors.split(",")), (DEFAULT_POLICY, "")]
    rows = list(product(options.places.split(";"), range(1, options.seeds + 1)))
    heads = [f"{policy}, {selector}" if selector else f"{policy} stays" for policy, selector in ways]
    print(f"| load | seed | {' | '.join(heads)} |")
    print(f"| --- | --- |{' --- |' * len(ways)}")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = [[pool.submit(share, place, way, seed, meta) for way in ways] for place, seed in rows]
        for (place, seed), found in zip(rows, futures, strict=True):
            cells = (f"{100 * good:.2f} % ({changes})" for good, changes in (future.result() for future in found))
            print(f"| {place} | {seed} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
