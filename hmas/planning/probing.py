"""How much load a fleet holds: single runs, and the search for the load at which too few requests are within their targets."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.planning.case import Case
from hmas.planning.errors import StudyError
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.loads import open_load
from hmas.planning.running import Watch, run_case

LEAST, MOST = 2.0**-10, 2.0**12
"""Multiples of a workload's own rate between which the search looks."""
STRIDE_MOST = 4.0
"""A search steps away from where it begins by a factor that is squared with each further step, up to this."""
MAX_COUNT = 1024
"""Instances of one kind beyond which none are added."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One run: the load as a multiple of the workload's own rate, and what came of it.

    Attributes:
        share: Of requests that kept both targets. goodput_rps: those per second of the arrivals.
        duration_s: Length of the arrivals at this load.
        whole: Whether it went to its end. It is given up as soon as too many have missed: `share` is then what it could have reached yet.
    """

    load: float
    rate_rps: float
    share: float
    goodput_rps: float
    duration_s: float
    whole: bool = True


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How much load a fleet holds.

    Attributes:
        load: The largest load tried that was held; 0 where even the least was not.
        fails_at: The smallest load tried that was not held, above `load`; infinite loads are cut at `MOST` and leave it 0.
        at: The run at `load`; None where there is none.
        wanted: The run at the wanted load, where one was wanted.
        probes: All runs of the search, by rising load.
    """

    load: float
    fails_at: float
    at: Probe | None
    wanted: Probe | None
    probes: list[Probe]


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances of one kind alone hold a load.

    Attributes:
        count: 0 where no number up to `MAX_COUNT` does.
        at: The run with so many. fewer: the run with one less, None with one instance.
    """

    count: int
    at: Probe | None
    fewer: Probe | None
    tried: int


class HoldTask(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """What does this fleet hold?

    Attributes:
        start: Where the search begins; 0 says that nothing is held.
        stride: Factor of its first step, above 1: small where the start is a good guess.
        least: Load below which it does not look.
        wanted: A load that is run in any case, 0 for none.
    """

    case: Case
    share: float
    tolerance: float
    start: float
    stride: float = 1.1
    least: float = LEAST
    wanted: float = 0.0


class NeedTask(msgspec.Struct, frozen=True, kw_only=True, tag="need"):
    """How many instances of `kind` hold the case's load? `guess` is where the search begins."""

    case: Case
    kind: Kind
    share: float
    guess: int


class _Hopeless(Exception):
    """So many requests have missed that the wanted share is out of reach."""


@dataclass(slots=True)
class _Misses:
    """Counts requests that are sure to miss a target, and gives a run up that has too many of them."""

    allowed: float
    ended: int = 0
    sure: int = 0

    def count(self, ended: Ended) -> None:
        self.ended += not ended.slo_met

    def judge(self, scheduler: Scheduler, now_s: float) -> None:
        # Those that wait past their target are lost already.
        self.sure = self.ended + scheduler.snapshot(now_s, "probe").overdue
        if self.sure > self.allowed:
            raise _Hopeless


def probe(case: Case, share: float = 0.0) -> Probe:
    """Runs a case and counts all of its requests, whatever its warm-up. With a share that is wanted the run is given up when it is lost.

    Raises:
        StudyError: The independent checker found the run at fault.
    """
    load = open_load(case)
    misses = _Misses(allowed=(1.0 - share) * load.count + 1e-9)
    try:
        run = run_case(case, Watch(ended=misses.count, look=misses.judge), load)
    except _Hopeless:
        whole, good = False, load.count - misses.sure
    else:
        if run.violations:
            raise StudyError(f"the simulation broke its own rules, so nothing is planned with it: {run.violations[0]}")
        whole, good = True, sum(record.slo_met for record in run.records)
    return Probe(
        load=case.load,
        rate_rps=load.rate_rps,
        share=good / load.count,
        goodput_rps=good / load.duration_s,
        duration_s=load.duration_s,
        whole=whole,
    )


def answer(task: bytes) -> bytes:
    """An encoded question to its encoded answer: a plain function, so that any process can take it."""
    question = msgspec.json.decode(task, type=HoldTask | NeedTask)
    case, share = question.case, question.share
    if isinstance(question, NeedTask):
        kind = question.kind
        return msgspec.json.encode(need(question, lambda count: probe(msgspec.structs.replace(case, fleet=alone(kind, count)), share)))
    wanted = question.wanted
    # The wanted load is told of whether it is held or not: that run goes to its end.
    return msgspec.json.encode(
        hold(question, lambda load: probe(msgspec.structs.replace(case, load=load), 0.0 if load == wanted else share))
    )


def alone(kind: Kind, count: int) -> Fleet:
    """A fleet of one kind."""
    return Fleet(groups=[Group(kind=kind, count=count)])


def hold(task: HoldTask, ask: Callable[[float], Probe]) -> Held:
    """Strides up or down from the start until one load is held and a higher one is not, then bisects on the logarithm.

    Every load is asked of the same requests, only denser: what differs between two answers is the load, not the draw.
    """
    probes: dict[float, Probe] = {}

    def held(load: float) -> bool:
        if load not in probes:
            probes[load] = ask(load)
        return probes[load].share >= task.share

    low, high, stride = 0.0, 0.0, task.stride
    # A start of 0 says that nothing at all is held by what the fleet is made of: the search would only find the same at great length.
    at, last = min(MOST, max(task.least, task.start)), 0.0
    while task.start > 0.0 and not (low and high) and at != last:
        low, high = (at, high) if held(at) else (low, at)
        at, last = min(MOST, at * stride) if low == at else max(task.least, at / stride), at
        stride = min(STRIDE_MOST, stride * stride)
    while low > 0.0 and high > 0.0 and high / low > 1.0 + task.tolerance:
        middle = math.sqrt(low * high)
        if held(middle):
            low = middle
        else:
            high = middle
    if task.wanted:
        held(task.wanted)
    return Held(
        load=low,
        fails_at=high,
        at=probes.get(low),
        wanted=probes.get(task.wanted),
        probes=[probes[load] for load in sorted(probes)],
    )


def need(task: NeedTask, ask: Callable[[int], Probe]) -> Needed:
    """Steps from the guess with doubling strides until the count is between one that holds and one that does not, then bisects."""
    probes: dict[int, Probe] = {}

    def held(count: int) -> bool:
        if count not in probes:
            probes[count] = ask(count)
        return probes[count].share >= task.share

    low, high, stride = 0, min(max(1, task.guess), MAX_COUNT), 1
    if held(high):
        while high - stride > low:
            if not held(high - stride):
                low = high - stride
                break
            high, stride = high - stride, 2 * stride
    else:
        while high < MAX_COUNT and not held(high):
            low, high, stride = high, min(MAX_COUNT, high + stride), 2 * stride
        if not held(high):
            return Needed(count=0, at=None, fewer=None, tried=len(probes))
    while high - low > 1:
        middle = (low + high) // 2
        if held(middle):
            high = middle
        else:
            low = middle
    return Needed(count=high, at=probes[high], fewer=probes.get(high - 1), tried=len(probes))
