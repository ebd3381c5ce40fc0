"""Workloads for training, drawn so that no study reports them: other fleets, other seeds, loads around the capacity that was measured.

Targets follow the fleet's own pace under a full batch, tight to generous: under targets that nobody or everybody keeps, all policies are
alike and nothing is learnt. What waits too long is put last, shed or kept in its place, as gateways are configured.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from hmas.controller.core.slo import BASE_SLO
from hmas.controller.core.types import OutcomeKind
from hmas.loadgen.streams import stream
from hmas.planning.case import PRESETS, Case
from hmas.planning.fleet import read_fleet
from hmas.planning.running import run_case

SEED = 7_000_000
"""Seeds of the draws begin here: the studies count theirs from 0."""
FLEETS = ("1xdemo-small", "2xdemo-small", "1xa100-llama-3-8b", "1xa100-qwen3-14b", "1xl4-qwen3-8b", "1xh100-qwen3-14b")
"""None of those that a page reports."""
REQUESTS = 600
"""Requests of one workload, about."""
SPAN_S = (90.0, 150.0)
BACKLOG = 240
TABLE_TPOT_MS = sum(slo.tpot_ms for slo in BASE_SLO.values()) / len(BASE_SLO)
"""Mean target of Table 6."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """One workload.

    Attributes:
        shape: Its options but for rate, length and seed.
        load: Mean arrival rate over capacity.
        slack: Scale of Table 6's targets over that at which its mean TPOT is the pace of a full batch.
        admission: A preset of the studies.
        seed: Everything in it follows from it.
    """

    number: int
    fleet: str
    kind: str
    shape: str
    load: float
    slack: float
    admission: str
    seed: int


def draw(number: int, seed: int = SEED) -> Drawn:
    """The workload of a number: the same at every call."""
    rng = stream(seed, "meta workload", number)
    kind, shape = _shape(rng)
    return Drawn(
        number=number,
        fleet=FLEETS[int(rng.integers(len(FLEETS)))],
        kind=kind,
        shape=shape,
        load=round(float(rng.uniform(0.7, 1.5)), 3),
        slack=round(float(np.exp(rng.uniform(np.log(0.7), np.log(2.0)))), 3),
        admission=("gateway", "gateway", "gateway", "open", "open", "shed")[int(rng.integers(6))],
        seed=seed + 1 + number,
    )


def _shape(rng: np.random.Generator) -> tuple[str, str]:
    kinds = ("poisson", "gamma", "burst", "drift")
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind == "gamma":
        return kind, f",cv={rng.uniform(1.2, 4.0):.2f}{_traffic(rng)}"
    if kind == "burst":
        period, share = rng.uniform(10.0, 50.0), rng.uniform(0.1, 0.5)
        height = rng.uniform(1.3, min(4.0, 0.95 / share))
        return kind, f",height={height:.2f},burst={share * period:.2f},period={period:.2f}"
    if kind == "drift":
        share = rng.uniform(0.0, 0.9)
        return kind, f",first={share:.2f},last={share:.2f}"
    return kind, _traffic(rng)


def _traffic(rng: np.random.Generator) -> str:
    return ("", "", ",kind=conv", ",kind=code")[int(rng.integers(4))]


def cases(drawn: Drawn, policies: Sequence[str]) -> list[Case]:
    """The workload under every policy in turn, statera at work, by the fleet's measured capacity."""
    capacity_rps, tpot_ms = _backlog(drawn)
    rate = drawn.load * capacity_rps
    slo_scale = drawn.slack * tpot_ms / TABLE_TPOT_MS
    span_s = min(SPAN_S[1], max(SPAN_S[0], REQUESTS / rate))
    text = f"{drawn.kind}:rate={rate:.4f},duration={span_s:.1f},slo_scale={slo_scale:.4f},seed={drawn.seed}{drawn.shape}"
    base = Case(
        workload=text,
        fleet=read_fleet(drawn.fleet),
        policy=policies[0],
        admission=PRESETS[drawn.admission],
        agents=("statera",),
        warmup_s=span_s / 5.0,
        seed=drawn.seed,
    )
    return [msgspec.structs.replace(base, policy=policy) for policy in policies]


def _backlog(drawn: Drawn) -> tuple[float, float]:
    """Requests a second that the fleet serves of a backlog of such requests, its tail apart, and their median TPOT."""
    kind, shape = (drawn.kind, drawn.shape) if drawn.kind != "burst" else ("poisson", "")
    text = f"{kind}:rate={BACKLOG},duration=1,slo_scale=100,seed={drawn.seed}{shape}"
    run = run_case(Case(workload=text, fleet=read_fleet(drawn.fleet), policy="fcfs", admission=PRESETS["open"], seed=drawn.seed))
    done = [record for record in run.records if record.outcome is OutcomeKind.COMPLETED]
    ends = sorted(record.arrival_s + record.total_ms / 1e3 for record in done)
    counted = max(1, int(0.8 * len(ends)))
    return counted / ends[counted - 1], float(np.median([record.tpot_ms for record in done if record.tpot_ms > 0.0]))
