"""Capacity planning: what load the fleet holds, how many instances hold a wanted load, and what the next instance buys."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import msgspec

from hmas.planning.backends import Backend
from hmas.planning.first_guess import guess_rps
from hmas.planning.fleet import Kind
from hmas.planning.loads import Load
from hmas.planning.mixes import Enough, cheapest
from hmas.planning.probing import MAX_COUNT, Held, HoldTask, Needed, NeedTask, alone, answer
from hmas.planning.question import Question, assumptions, distinct

VERSION = 1
ROUGH_REQUESTS = 1000
ROUGH_TOLERANCE = 0.1
"""The rough load of one instance is searched on the first `ROUGH_REQUESTS` requests, to this relative tolerance."""


class NextOne(msgspec.Struct, frozen=True, kw_only=True):
    """The gain of one more instance of a kind.

    Attributes:
        load_gain, rate_gain_rps: Additional load held, as a multiple of the workload's rate and in requests per second.
        goodput_gain_rps: Additional good requests per second at the wanted load.
        rate_gain_per_price: `rate_gain_rps` per unit of hourly price, 0 without prices.
    """

    kind: str
    held: Held
    load_gain: float
    rate_gain_rps: float
    goodput_gain_rps: float
    price: float
    rate_gain_per_price: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answers.

    Attributes:
        held: The load that the present fleet holds.
        needed: By kind, how many instances of it alone hold the wanted load.
        mix: The cheapest fleet found that holds it, None without prices or if none was found.
        mixes_tried: Mixed fleets simulated for it. mix_sure: whether every mix that could be cheaper was tried.
        next_one: By kind.
        assumptions: As text.
    """

    wish: Question
    own_rps: float
    held: Held
    needed: dict[str, Needed]
    mix: Enough | None
    mixes_tried: int
    mix_sure: bool
    next_one: list[NextOne]
    assumptions: list[str]


def make_plan(wish: Question, load: Load, backend: Backend, tell: Callable[[str], None]) -> Plan:
    """Answers all questions.

    Args:
        wish: The question.
        load: The question's workload at its own rate.
        backend: Where the runs are made.
        tell: Called with a line of text for each answer.
    """
    kinds = distinct([*wish.case.fleet.kinds, *wish.kinds])
    worth = _worth(wish, kinds, load, backend, tell)
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
    # If one instance of a kind holds no load, no number of them does, so that kind is skipped.
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


def _worth(wish: Question, kinds: Sequence[Kind], load: Load, backend: Backend, tell: Callable[[str], None]) -> dict[str, float]:
    """Rough requests per second that one instance of each kind holds alone; only a start for the searches."""
    few = min(wish.case.limit or ROUGH_REQUESTS, ROUGH_REQUESTS)
    guesses = [guess_rps(kind, load, wish.case.slo) / load.own_rps for kind in kinds]
    tasks = [
        HoldTask(
            case=msgspec.structs.replace(wish.case, fleet=alone(kind, 1), limit=few),
            share=wish.share,
            tolerance=ROUGH_TOLERANCE,
            stride=1.5,
            start=guess,
            # At a fiftieth of the guessed load an engine is nearly idle and cannot serve requests any faster.
            least=guess / 50.0,
        )
        for kind, guess in zip(kinds, guesses, strict=True)
    ]
    worth = dict.fromkeys((kind.name for kind in kinds), 0.0)
    with closing(backend(answer, [msgspec.json.encode(task) for task in tasks])) as answers:
        for place, reply in answers:
            found = msgspec.json.decode(reply, type=Held)
            worth[kinds[place].name] = found.at.rate_rps if found.at is not None else 0.0
            tell(f"one {kinds[place].name} alone holds about {worth[kinds[place].name]:.3g} requests/s")
    return worth


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


def document(plan: Plan) -> dict[str, Any]:
    """The plan as a JSON document."""
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
