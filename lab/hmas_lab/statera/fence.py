"""Preemptions for want of KV memory, with the fence of H-MAS Eq. 2 and without it, on an engine whose cache is small."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec

from hmas.planning import StudyError
from hmas.planning.case import PRESETS, Case
from hmas.planning.fleet import Fleet, Group, read_fleet
from hmas.planning.report import make_report
from hmas.planning.running import run_case

KV_SHARE = 1 / 8
"""Of the profile's KV blocks, so that memory and not time is what is short."""
RATE_RPS = 6.0
PHASE_S = 60.0
WORKLOADS = {
    "stationary": "poisson:rate={rate:g},duration={whole:g},kind=conv,tpot_ms=400,ttft_ms=30000",
    "semantic shift": "semantic:rate={rate:g},phase={phase:g},tpot_ms=400,ttft_ms=30000",
}
WAYS: dict[str, tuple[bool, bool]] = {
    "no fence": (False, True),
    "fence, history's 90 % quantile": (True, False),
    "fence, statera's bounds": (True, True),
}
"""Whether the fence stands, and whether statera speaks."""


def small(fleet: str) -> Fleet:
    """The fleet with a share of its KV cache."""
    groups = []
    for group in read_fleet(fleet).groups:
        profile = msgspec.structs.replace(group.kind.profile, kv_blocks=int(group.kind.profile.kv_blocks * KV_SHARE))
        groups.append(Group(kind=msgspec.structs.replace(group.kind, profile=profile), count=group.count))
    return Fleet(groups=groups)


def study(fleet: str, seeds: Sequence[int], rate: float = RATE_RPS, phase_s: float = PHASE_S) -> dict[str, Any]:
    """Preemptions per thousand completed requests and goodput, means over the seeds.

    Raises:
        StudyError: The independent checker objects to a run.
    """
    rows = []
    for name, pattern in WORKLOADS.items():
        workload = pattern.format(rate=rate, phase=phase_s, whole=3 * phase_s)
        for way, (fence, statera) in WAYS.items():
            tried = [_run(workload, fleet, seed, fence=fence, statera=statera) for seed in seeds]
            rows.append({"workload": name, "way": way, **{key: round(fmean(one[key] for one in tried), 4) for key in tried[0]}})
    return {"fleet": fleet, "kv_share": KV_SHARE, "rate_rps": rate, "phase_s": phase_s, "seeds": list(seeds), "rows": rows}


def _run(workload: str, fleet: str, seed: int, *, fence: bool, statera: bool) -> dict[str, float]:
    case = Case(
        workload=workload,
        fleet=small(fleet),
        policy="fcfs",
        admission=msgspec.structs.replace(PRESETS["shed"], fence=fence),
        agents=("statera",) if statera else (),
        seed=seed,
    )
    run = run_case(case)
    if run.violations:
        raise StudyError(f"{workload}, seed {seed}: the independent checker objects: {run.violations[0]}")
    scored = make_report(run).score
    completed = sum(record.total_ms >= 0.0 and record.output_tokens > 0 for record in run.records)
    preemptions = sum(totals.preemptions for totals in run.result.engines.values())
    return {
        "preemptions": float(preemptions),
        "preemptions_per_1000": 1000.0 * preemptions / max(1, completed),
        "goodput_rps": scored.goodput_rps,
        "throughput_rps": scored.throughput_rps,
        "ttft_ms_p95": scored.ttft_ms.p95,
    }
