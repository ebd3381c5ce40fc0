"""What a change of policy costs, and when it has paid: the same arrivals under one order, under another, and changed at given moments.

An order that puts work off leaves a queue that another order serves at once, at the expense of those who come; so the better order of a
lasting overload is not yet the better change. Virtual time, no agents, a place of `lateness_study.py`:

    python lab/benchmarks/switch_study.py --at 125,150,180
    make compile && PYTHONPATH=build/compiled python lab/benchmarks/switch_study.py --place "Qwen3-8B, shift" --seeds 3
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lateness_study import PLACES

from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import RequestRecord
from hmas.planning.case import Case
from hmas.planning.fleet import read_fleet
from hmas.planning.running import Watch, run_case

SLOT_S = 20.0


@dataclass(slots=True)
class Change:
    """Puts a policy in force at a moment; None never does."""

    policy: str
    at_s: float | None
    done: bool = False

    def look(self, scheduler: Scheduler, now_s: float) -> None:
        """Called now and then while the simulation runs."""
        if self.at_s is not None and not self.done and now_s >= self.at_s:
            scheduler.set_policy(self.policy, now_s)
            self.done = True


def records_of(place: str, policy: str, change: Change, seed: int) -> list[RequestRecord]:
    """One run."""
    fleet, workload, warmup_s = PLACES[place]
    case = Case(workload=workload, fleet=read_fleet(fleet), policy=policy, warmup_s=warmup_s, seed=seed)
    return run_case(case, Watch(look=change.look)).records


def good(runs: Sequence[Sequence[RequestRecord]], from_s: float, until_s: float) -> float:
    """Share of those that came in a span which met both targets."""
    return fmean(record.slo_met for records in runs for record in records if from_s <= record.arrival_s < until_s)


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", default="Qwen3-30B, shift", choices=PLACES, help="load and fleet (default: Qwen3-30B, shift)")
    parser.add_argument("--before", default="edf", help="policy at the beginning (default: edf)")
    parser.add_argument("--after", default="slack", help="the other one (default: slack)")
    parser.add_argument("--at", default="125,150,180", help="seconds of the changes, with commas between (default: 125,150,180)")
    parser.add_argument("--seeds", type=int, default=2, help="workloads, seeds 1 and up (default: 2)")
    options = parser.parse_args()
    ways: dict[str, tuple[str, float | None]] = {options.before: (options.before, None), options.after: (options.after, None)}
    ways |= {f"changed at {at} s": (options.before, float(at)) for at in options.at.split(",")}
    runs = {
        name: [records_of(options.place, policy, Change(options.after, at_s), seed + 1) for seed in range(options.seeds)]
        for name, (policy, at_s) in ways.items()
    }
    warmup_s, end_s = PLACES[options.place][2], max(record.arrival_s for records in runs[options.before] for record in records)
    spans = [(slot * SLOT_S, (slot + 1) * SLOT_S) for slot in range(int(end_s / SLOT_S))]
    print(f"| came, s | {' | '.join(ways)} |")
    print(f"| --- |{' --- |' * len(ways)}")
    for from_s, until_s in [*spans, (warmup_s, end_s)]:
        shares = (f"{100 * good(runs[name], from_s, until_s):.1f} %" for name in ways)
        print(f"| {from_s:.0f} to {until_s:.0f} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
