"""A capacity planner's questions: what load the fleet holds, what it takes to hold a wanted one, and what the next instance buys."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from controller.core.errors import ConfigError
from hmas.lab.studies.backends import Backend
from hmas.lab.studies.case import Case
from hmas.lab.studies.fleet import Fleet, Group, Kind
from hmas.lab.studies.loads import Load
from hmas.lab.studies.probing import MAX_COUNT, Held, HoldTask, Needed, NeedTask, Probe, alone, answer, probe

VERSION = 1
ROUGH_REQUESTS = 2000
ROUGH_TOLERANCE = 0.1
"""What one instance is worth, roughly, is found out on the first so many requests, to this relative distance."""
MIX_RUNS = 40
"""Mixed fleets that are simulated at most in search of a cheaper one."""
MIX_CANDIDATES = 200_000
SHORT_S = 120.0
"""Arrivals shorter than this leave a queue little time to build up."""
SCORED_LEAST = 1000
"""Requests below which a share near 1 stands on few misses."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked.

    Attributes:
        case: Workload, fleet as it is, and rules.
        share: Of requests that has to keep both targets.
        load: Wanted load, a multiple of the workload's own rate.
        kinds: Kinds of instances that could be added.
        tolerance: Relative distance, 0.02 for 2 %, to which a held load is searched for.
    """

    case: Case
    share: float
    load: float
    kinds: list[Kind]
    tolerance: float


class NextOne(msgspec.Struct, frozen=True, kw_only=True):
    """What one more instance of a kind buys.

    Attributes:
        load_gain, rate_gain_rps: More load held, as a multiple of the workload's rate and in requests per second.
        goodput_gain_rps: More requests within their targets per second at the wanted load.
        rate_gain_per_price: `rate_gain_rps` per unit of price an hour, 0 without prices.
    """

    kind: str
    held: Held
    load_gain: float
    rate_gain_rps: float
    goodput_gain_rps: float
    price: float
    rate_gain_per_price: float


class Enough(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet that holds the wanted load."""

    fleet: str
    instances: int
    price: float
    share: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answers.

    Attributes:
        held: What the fleet as it is holds.
        needed: By kind, how many of it alone hold the wanted load.
        mix: The cheapest fleet found that holds it, None without prices or where none was found.
        mixes_tried: Mixed fleets simulated for it. mix_sure: whether no cheaper mix was left untried.
        next_one: By kind.
        assumptions: In words.
    """

    wish: Wish
    own_rps: float
    held: Held
    needed: dict[str, Needed]
    mix: Enough | None
    mixes_tried: int
    mix_sure: bool
    next_one: list[NextOne]
    assumptions: list[str]


def make_plan(wish: Wish, load: Load, backend: Backend, tell: Callable[[str], None]) -> Plan:
    """Answers all questions.

    Args:
        wish: What is asked.
        load: The wish's workload at its own rate.
        backend: Where the runs are made.
        tell: Called with a line whenever an answer is there.
    """
    kinds = _distinct([*wish.case.fleet.kinds, *wish.kinds])
    worth = _worth(wish, kinds, backend, tell)
    fleets = [wish.case.fleet, *(wish.case.fleet.with_one_more(kind) for kind in wish.kinds)]
    tasks: list[HoldTask | NeedTask] = [
        HoldTask(
            case=msgspec.structs.replace(wish.case, fleet=fleet),
            share=wish.share,
            tolerance=wish.tolerance,
            start=sum(group.count * worth[group.kind.name] for group in fleet.groups) / load.own_rps,
            wanted=wish.load,
        )
        for fleet in fleets
    ]
    # A kind that holds nothing by itself holds nothing in numbers either: it is not asked for.
    asked = [kind for kind in wish.kinds if worth[kind.name] > 0.0]
    wanted = msgspec.structs.replace(wish.case, load=wish.load)
    tasks += [
        NeedTask(case=wanted, kind=kind, share=wish.share, guess=math.ceil(min(MAX_COUNT, wish.load * load.own_rps / worth[kind.name])))
        for kind in asked
    ]
    helds: dict[int, Held] = {}
    needed = {kind.name: Needed(count=0, at=None, fewer=None, tried=0) for kind in wish.kinds}
    with closing(backend(answer, [msgspec.json.encode(task) for task in tasks])) as answers:
        for place, reply in answers:
            if place < len(fleets):
                helds[place] = msgspec.json.decode(reply, type=Held)
                tell(f"{fleets[place].name} holds {helds[place].load:.3g} times the workload's rate")
            else:
                kind = asked[place - len(fleets)]
                needed[kind.name] = msgspec.json.decode(reply, type=Needed)
                tell(f"{needed[kind.name].count or 'no number'} of {kind.name} alone hold {wish.load:g} times the workload's rate")
    held = helds[0]
    mix, tried, sure = cheapest(wish, needed, tell)
    return Plan(
        wish=wish,
        own_rps=load.own_rps,
        held=held,
        needed=needed,
        mix=mix,
        mixes_tried=tried,
        mix_sure=sure,
        next_one=[
            _next_one(kind, held, after, load.own_rps)
            for kind, after in zip(wish.kinds, [helds[1 + i] for i in range(len(wish.kinds))], strict=True)
        ],
        assumptions=assumptions(wish, load, held),
    )


def _distinct(kinds: Sequence[Kind]) -> list[Kind]:
    return list({kind.name: kind for kind in kinds}.values())


def _worth(wish: Wish, kinds: Sequence[Kind], backend: Backend, tell: Callable[[str], None]) -> dict[str, float]:
    """Requests per second that one instance of each kind holds by itself, roughly: where the searches begin, no answer by itself."""
    few = min(wish.case.limit or ROUGH_REQUESTS, ROUGH_REQUESTS)
    tasks = [
        HoldTask(
            case=msgspec.structs.replace(wish.case, fleet=alone(kind, 1), limit=few),
            share=wish.share,
            tolerance=ROUGH_TOLERANCE,
            stride=2.0,
            start=wish.load / wish.case.fleet.size,
        )
        for kind in kinds
    ]
    worth = dict.fromkeys((kind.name for kind in kinds), 0.0)
    with closing(backend(answer, [msgspec.json.encode(task) for task in tasks])) as answers:
        for place, reply in answers:
            found = msgspec.json.decode(reply, type=Held)
            worth[kinds[place].name] = found.at.rate_rps if found.at is not None else 0.0
            tell(f"one {kinds[place].name} alone holds about {worth[kinds[place].name]:.3g} requests/s")
    return worth


def cheapest(wish: Wish, needed: Mapping[str, Needed], tell: Callable[[str], None]) -> tuple[Enough | None, int, bool]:
    """The cheapest fleet found, mixed fleets tried, and whether all that could be cheaper were tried.

    Candidates are tried by rising price. One that is no larger in any kind than one that failed is passed over, and so is one that could
    not hold the load even if each instance in it were worth as much as the last one needed among its own kind.
    """
    kinds = [kind for kind in wish.kinds if needed[kind.name].count]
    if not kinds or any(kind.price <= 0.0 for kind in kinds):
        return None, 0, False
    best = min(kinds, key=lambda kind: needed[kind.name].count * kind.price)
    at = needed[best.name].at
    assert at is not None, "a count that holds the load has its run"
    cheapest = _enough(alone(best, needed[best.name].count), at)
    candidates = list(itertools.islice(_mixes([(kind, needed[kind.name].count) for kind in kinds], cheapest.price), MIX_CANDIDATES))
    failed: list[tuple[int, ...]] = []
    tried = 0
    for counts in sorted(candidates, key=lambda counts: (_price(counts, kinds), counts)):
        if any(all(n <= f for n, f in zip(counts, other, strict=True)) for other in failed):
            continue
        if tried == MIX_RUNS:
            return cheapest, tried, False
        fleet = Fleet(groups=[Group(kind=kind, count=n) for kind, n in zip(kinds, counts, strict=True) if n])
        result = probe(msgspec.structs.replace(wish.case, fleet=fleet, load=wish.load), wish.share)
        tried += 1
        tell(f"{fleet.name} at {fleet.price:g} an hour: {_within(result)} within their targets")
        if result.share >= wish.share:
            return _enough(fleet, result), tried, len(candidates) < MIX_CANDIDATES
        failed.append(counts)
    return cheapest, tried, len(candidates) < MIX_CANDIDATES


def _mixes(kinds: Sequence[tuple[Kind, int]], below: float) -> Iterator[tuple[int, ...]]:
    """Counts of each kind, two kinds or more, cheaper than `below`, that might hold what `count` of each kind alone holds."""
    # So much of the load one instance is worth at most: with one instance fewer the load was not held.
    worth = [1.0 / (count - 1) if count > 1 else math.inf for _, count in kinds]

    def grow(place: int, counts: tuple[int, ...], spent: float) -> Iterator[tuple[int, ...]]:
        if place == len(kinds):
            enough = sum(n * w for n, w in zip(counts, worth, strict=True) if n) >= 1.0
            if enough and sum(n > 0 for n in counts) > 1:
                yield counts
            return
        price = kinds[place][0].price
        n = 0
        while spent + n * price < below - 1e-9 and n <= kinds[place][1]:
            yield from grow(place + 1, (*counts, n), spent + n * price)
            n += 1

    return grow(0, (), 0.0)


def _price(counts: tuple[int, ...], kinds: Sequence[Kind]) -> float:
    return sum(n * kind.price for n, kind in zip(counts, kinds, strict=True))


def _within(result: Probe) -> str:
    return f"{result.share:.1%}" if result.whole else f"less than {result.share:.1%}"


def _enough(fleet: Fleet, at: Probe) -> Enough:
    return Enough(fleet=fleet.name, instances=fleet.size, price=fleet.price, share=at.share)


def _next_one(kind: Kind, before: Held, after: Held, own_rps: float) -> NextOne:
    gain = after.load - before.load
    return NextOne(
        kind=kind.name,
        held=after,
        load_gain=gain,
        rate_gain_rps=gain * own_rps,
        goodput_gain_rps=after.wanted.goodput_rps - before.wanted.goodput_rps if after.wanted and before.wanted else 0.0,
        price=kind.price,
        rate_gain_per_price=gain * own_rps / kind.price if kind.price else 0.0,
    )


def assumptions(wish: Wish, load: Load, held: Held) -> list[str]:
    """What the answers stand on, in words."""
    case = wish.case
    slo, admission = case.slo, case.admission
    ttft = f"TTFT {slo.ttft_ms:g} ms" if slo.ttft_ms else "each request's own TTFT target"
    tpot = f"TPOT {slo.tpot_ms:g} ms" if slo.tpot_ms else "each request's own TPOT target"
    fence = "on" if admission.fence else "off"
    own = f"{load.count} requests of {load.workload.name}, {load.own_rps:.4g} a second at their own pace"
    rules = f"Order {case.policy}, router {case.router}, overdue requests: {admission.overdue}, KV fence {fence}"
    said = [
        f"Held means: at least {wish.share:.1%} of all requests complete within {ttft} and {tpot}; refused and dropped ones missed.",
        f"{own}; more load is the same requests in less time. Held loads are exact to {wish.tolerance:.1%}.",
        f"{rules}, TPOT guard {admission.tpot_guard:g}, agents: {', '.join(case.agents) or 'none'}.",
        "Engines behave as their profiles say, start empty and never fail; network and gateway cost nothing.",
    ]
    kinds = _distinct([*case.fleet.kinds, *wish.kinds])
    said += [f"Profile {kind.profile.name}: {kind.profile.source.split('. ')[0].rstrip('.')}." for kind in kinds]
    return said + _warnings(wish, load, held)


def _warnings(wish: Wish, load: Load, held: Held) -> list[str]:
    """What makes the answers weak, in words."""
    said = []
    if held.at is not None and held.at.duration_s < SHORT_S:
        said.append(f"Mind: at the held load all requests come within {held.at.duration_s:.0f} s, too short for a queue to show.")
    if load.count < SCORED_LEAST:
        said.append(f"Mind: {load.count} requests are few; one miss is {1.0 / load.count:.2%}.")
    over = max(load.longer_than(kind.profile.max_model_len) for kind in wish.case.fleet.kinds)
    if over:
        said.append(f"Mind: {over} requests are longer than an engine's context and count as missed; context=N in the workload cuts them.")
    return said


def document(plan: Plan) -> dict[str, Any]:
    """The plan for programs."""
    wish = plan.wish
    plain: dict[str, Any] = msgspec.to_builtins(plan)
    del plain["wish"]
    return {
        "version": VERSION,
        "case": wish.case.document(),
        "share": wish.share,
        "wanted_load": wish.load,
        "tolerance": wish.tolerance,
        **plain,
    }


def check_wish(wish: Wish) -> None:
    """Whether it can be answered.

    Raises:
        ConfigError: Names what cannot be used.
    """
    wish.case.check()
    if not wish.load > 0.0:
        raise ConfigError(f"load is {wish.load:g}; allowed: more than 0")
    if not 0.001 <= wish.tolerance <= 0.5:
        raise ConfigError(f"tolerance is {wish.tolerance:g}; allowed: 0.001 to 0.5")
    names = [kind.name for kind in wish.kinds]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"kinds are {', '.join(names) or 'none'}; allowed: one or more, each once")
    Fleet(groups=[Group(kind=kind, count=1) for kind in wish.kinds]).model(wish.case.fleet.model(wish.case.model))
