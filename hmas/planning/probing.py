"""Measures how much load a fleet holds: single runs, the search for the load that is just held, and for the cheapest mixed fleet."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.planning import StudyError
from hmas.planning.case import Case
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.loads import open_load
from hmas.planning.report import arrivals_end_s
from hmas.planning.running import Watch, run_case

LEAST, MOST = 2.0**-10, 2.0**12
"""Multiples of a workload's own rate between which the search looks."""
STRIDE, STRIDE_MOST = 1.1, 4.0
"""A search moves away from its start by the first factor, which is squared with each step, up to the second."""
MIX_RUNS = 40
"""Most mixed fleets that are simulated in search of a cheaper one."""
MIX_CANDIDATES = 200_000
MAX_COUNT = 1024
"""Most instances of one kind that are tried."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One run: the load as a multiple of the workload's own rate, and its result.

    Attributes:
        share: Share of requests that met both targets. goodput_rps: such requests per second of the arrivals, or of
            the time until the last session has ended.
        duration_s: Length of the arrivals at this load.
        whole: Whether the run was completed. It is aborted once too many requests have missed; `share` is then an upper bound.
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
        load: The largest load tried that was held; 0 if even the smallest was not.
        fails_at: The smallest load tried that was not held, above `load`; 0 if even `MOST` was held.
        at: The run at `load`; None if there is none.
        wanted: The run at the wanted load, None if none was wanted.
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
        count: The number of instances; 0 if no number up to `MAX_COUNT` holds the load.
        at: The run with `count` instances. fewer: the run with one less, None with one instance.
    """

    count: int
    at: Probe | None
    fewer: Probe | None
    tried: int


class HoldTask(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """The question how much load a fleet holds.

    Attributes:
        start: Load at which the search begins.
        wanted: A load that is run in any case, 0 for none.
    """

    case: Case
    share: float
    tolerance: float
    start: float
    wanted: float = 0.0


class NeedTask(msgspec.Struct, frozen=True, kw_only=True, tag="need"):
    """The question how many instances of `kind` hold the case's load. The search begins at `guess`."""

    case: Case
    kind: Kind
    share: float
    guess: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a capacity plan.

    Attributes:
        case: Workload, present fleet, and settings.
        share: Share of requests that must meet both targets.
        load: Wanted load, a multiple of the workload's own rate.
        kinds: Kinds of instances that could be added.
        tolerance: Relative tolerance of the search for a held load, 0.02 for 2 %.
    """

    case: Case
    share: float
    load: float
    kinds: list[Kind]
    tolerance: float


class Hopeless(Exception):
    """So many requests have missed that the wanted share cannot be reached."""


@dataclass(slots=True)
class Misses:
    """Counts requests that are certain to miss a target, and aborts a run that has too many of them."""

    allowed: float
    ended: int = 0
    sure: int = 0

    def count(self, ended: Ended) -> None:
        """Counts a request that has ended."""
        self.ended += not ended.slo_met

    def judge(self, scheduler: Scheduler, now_s: float) -> None:
        """Counts those that wait beyond their target, too. One that is only forecast to be late may still be in time.

        Raises:
            Hopeless: Too many have missed.
        """
        self.sure = self.ended + scheduler.missed(now_s)
        if self.sure > self.allowed:
            raise Hopeless


def probe(case: Case, share: float = 0.0) -> Probe:
    """Runs a case and counts all requests, including the warm-up. The run is aborted once a wanted `share` cannot be reached.

    Raises:
        StudyError: The independent check found an error in the run.
    """
    load = open_load(case)
    misses = Misses(allowed=(1.0 - share) * load.count + 1e-9)
    try:
        run = run_case(case, Watch(ended=misses.count, look=misses.judge), load)
    except Hopeless:
        whole, good, span_s = False, load.count - misses.sure, load.duration_s
    else:
        if run.violations:
            raise StudyError(f"the simulation broke its own rules, so nothing is planned with it: {run.violations[0]}")
        whole, good, span_s = True, sum(record.slo_met for record in run.records), arrivals_end_s(run)
    return Probe(
        load=case.load,
        rate_rps=load.rate_rps,
        share=good / load.count,
        goodput_rps=good / span_s,
        duration_s=load.duration_s,
        whole=whole,
    )


def answer(task: bytes) -> bytes:
    """Answers an encoded question with an encoded answer; a plain function, so that it can run in any process."""
    question = msgspec.json.decode(task, type=HoldTask | NeedTask)
    case, share = question.case, question.share
    if isinstance(question, NeedTask):
        kind = question.kind
        return msgspec.json.encode(need(question, lambda count: probe(msgspec.structs.replace(case, fleet=alone(kind, count)), share)))
    wanted = question.wanted
    # The run at the wanted load is reported whether it is held or not, so it is not aborted.
    return msgspec.json.encode(
        hold(question, lambda load: probe(msgspec.structs.replace(case, load=load), 0.0 if load == wanted else share))
    )


def alone(kind: Kind, count: int) -> Fleet:
    """A fleet of one kind."""
    return Fleet(groups=[Group(kind=kind, count=count)])


def hold(task: HoldTask, ask: Callable[[float], Probe]) -> Held:
    """Steps up or down from the start until one load is held and a higher one is not, then bisects on the logarithm.

    Every load has the same requests at another rate, so two answers differ by the load and not by the random draw.
    """
    probes: dict[float, Probe] = {}

    def held(load: float) -> bool:
        if load not in probes:
            probes[load] = ask(load)
        return probes[load].share >= task.share

    low, high, stride = 0.0, 0.0, STRIDE
    at, last = min(MOST, max(LEAST, task.start)), 0.0
    while not (low and high) and at != last:
        low, high = (at, high) if held(at) else (low, at)
        at, last = min(MOST, at * stride) if low == at else max(LEAST, at / stride), at
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
    """Steps from the guess with doubling strides until one count holds the load and a lower one does not, then bisects."""
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


class Enough(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet that holds the wanted load."""

    fleet: str
    instances: int
    price: float
    share: float


def cheapest(wish: Question, needed: Mapping[str, Needed], tell: Callable[[str], None]) -> tuple[Enough | None, int, bool]:
    """Returns the cheapest fleet found, the number of mixed fleets tried, and whether all fleets that could be cheaper were tried.

    Candidates are tried in order of price. A candidate is skipped if in no kind it is larger than a fleet that failed, or if it could not
    hold the load even if each of its instances were worth as much as the last one needed in a fleet of its own kind. Of a kind that alone
    never holds the load no such worth is known: mixes with it are all tried, after the others.
    """
    # Such kinds come first, so that candidates without them come before the limit of candidates.
    kinds = sorted(wish.kinds, key=lambda kind: needed[kind.name].count > 0)
    enough = [kind for kind in kinds if needed[kind.name].count]
    if not enough or any(kind.price <= 0.0 for kind in kinds):
        return None, 0, False
    never = len(kinds) - len(enough)
    best = min(enough, key=lambda kind: needed[kind.name].count * kind.price)
    at = needed[best.name].at
    assert at is not None, "a count that holds the load has its run"
    cheapest = _enough(alone(best, needed[best.name].count), at)
    candidates = list(itertools.islice(_mixes([(kind, needed[kind.name].count) for kind in kinds], cheapest.price), MIX_CANDIDATES))
    failed: list[tuple[int, ...]] = []
    tried = 0
    for counts in sorted(candidates, key=lambda counts: (any(counts[:never]), _price(counts, kinds), counts)):
        fails = any(all(n <= f for n, f in zip(counts, other, strict=True)) for other in failed)
        if fails or _price(counts, kinds) >= cheapest.price - 1e-9:
            continue
        if tried == MIX_RUNS:
            return cheapest, tried, False
        fleet = Fleet(groups=[Group(kind=kind, count=n) for kind, n in zip(kinds, counts, strict=True) if n])
        result = probe(msgspec.structs.replace(wish.case, fleet=fleet, load=wish.load), wish.share)
        tried += 1
        tell(f"{fleet.name} at {fleet.price:g} an hour: {_within(result)} within their targets")
        if result.share >= wish.share:
            cheapest = _enough(fleet, result)
        else:
            failed.append(counts)
    return cheapest, tried, len(candidates) < MIX_CANDIDATES


def _mixes(kinds: Sequence[tuple[Kind, int]], below: float) -> Iterator[tuple[int, ...]]:
    """Counts of two or more kinds that cost less than `below` and might hold the load that `count` of each kind alone holds (0: never)."""
    # Upper bound of the share of the load that one instance holds: with one instance fewer the load was not held. Without a count, none.
    worth = [1.0 / (count - 1) if count > 1 else math.inf for _, count in kinds]

    def grow(place: int, counts: tuple[int, ...], spent: float) -> Iterator[tuple[int, ...]]:
        if place == len(kinds):
            enough = sum(n * w for n, w in zip(counts, worth, strict=True) if n) >= 1.0
            if enough and sum(n > 0 for n in counts) > 1:
                yield counts
            return
        price = kinds[place][0].price
        n = 0
        while spent + n * price < below - 1e-9 and n <= (kinds[place][1] or MAX_COUNT):
            yield from grow(place + 1, (*counts, n), spent + n * price)
            n += 1

    return grow(0, (), 0.0)


def _price(counts: tuple[int, ...], kinds: Sequence[Kind]) -> float:
    return sum(n * kind.price for n, kind in zip(counts, kinds, strict=True))


def _within(result: Probe) -> str:
    return f"{result.share:.1%}" if result.whole else f"less than {result.share:.1%}"


def _enough(fleet: Fleet, at: Probe) -> Enough:
    return Enough(fleet=fleet.name, instances=fleet.size, price=fleet.price, share=at.share)
