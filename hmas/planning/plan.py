"""Capacity planning: what load the fleet holds, how many instances hold a wanted load, and what the next instance buys."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np

from hmas.controller.core.errors import ConfigError
from hmas.planning.backends import Backend
from hmas.planning.case import SloTarget
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.loads import Load
from hmas.planning.probing import MAX_COUNT, Enough, Held, HoldTask, Needed, NeedTask, Question, answer, cheapest

VERSION = 1
SHORT_S = 120.0
"""In arrivals shorter than this a queue has little time to build up."""
SCORED_LEAST = 1000
"""With fewer requests a share near 1 depends on few misses."""


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
    """Answers all questions about a load at its own rate; `tell` is called with a line of text for each answer."""
    fleets = [wish.case.fleet, *(wish.case.fleet.with_one_more(kind) for kind in wish.kinds)]
    guesses = {kind.name: guess_rps(kind, load, wish.case.slo) / load.own_rps for kind in [*wish.case.fleet.kinds, *wish.kinds]}
    tasks: list[HoldTask | NeedTask] = [
        HoldTask(
            case=msgspec.structs.replace(wish.case, fleet=fleet),
            share=wish.share,
            tolerance=wish.tolerance,
            start=sum(group.count * guesses[group.kind.name] for group in fleet.groups),
            wanted=wish.load,
        )
        for fleet in fleets
    ]
    wanted = msgspec.structs.replace(wish.case, load=wish.load)
    tasks += [
        NeedTask(case=wanted, kind=kind, share=wish.share, guess=math.ceil(min(MAX_COUNT, wish.load / guesses[kind.name])))
        for kind in wish.kinds
    ]
    helds: dict[int, Held] = {}
    needed: dict[str, Needed] = {}
    with closing(backend(answer, [msgspec.json.encode(task) for task in tasks])) as answers:
        for place, reply in answers:
            if place < len(fleets):
                helds[place] = msgspec.json.decode(reply, type=Held)
                tell(f"{fleets[place].name} holds {helds[place].load:.3g} times the workload's rate")
            else:
                kind = wish.kinds[place - len(fleets)]
                needed[kind.name] = msgspec.json.decode(reply, type=Needed)
                tell(f"{needed[kind.name].count or 'no number'} of {kind.name} alone hold {wish.load:g} times the workload's rate")
    held = helds[0]
    mix, tried, sure = cheapest(wish, needed, tell)
    return Plan(
        wish=wish,
        own_rps=load.own_rps,
        held=held,
        needed={kind.name: needed[kind.name] for kind in wish.kinds},
        mix=mix,
        mixes_tried=tried,
        mix_sure=sure,
        next_one=[_next_one(kind, held, helds[place], load.own_rps) for place, kind in enumerate(wish.kinds, 1)],
        assumptions=assumptions(wish, load, held),
    )


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


def guess_rps(kind: Kind, load: Load, slo: SloTarget) -> float:
    """Requests per second, all of mean lengths, that one instance serves with the largest steady batch that meets the mean TPOT target.

    In a steady batch of B each request takes part in as many steps as it has output tokens, and is delayed by one prefill per request that
    ends meanwhile: B requests take `output * step(B) + B * prefill`.
    """
    profile = kind.profile
    prompt, output = float(np.mean(load.prompt_tokens)), float(np.mean(load.output_tokens))
    tpot_ms = slo.tpot_ms or load.slo_tpot_ms
    prefill_ms = profile.prefill_ms_per_token * prompt + profile.prefill_ms_per_ktoken_sq * prompt * prompt / 2.0 * 1e-6
    prefill_ms += profile.curve_ms(int(prompt)) - profile.curve_ms(0)
    held = prompt + output / 2.0
    most = max(1, min(kind.n_run, int(profile.kv_capacity_tokens / held)))
    best = 0.0
    for batch in sorted({*range(1, min(most, 16)), *np.geomspace(1, most, 40).astype(int).tolist()}):
        fixed_ms, token_ms = profile.decode_line(batch)
        all_ms = output * (fixed_ms + token_ms * batch * held) + batch * prefill_ms
        if batch == 1 or all_ms / output <= tpot_ms:
            best = max(best, 1000.0 * batch / all_ms)
    return best


def check_question(wish: Question) -> None:
    """Checks whether the question can be answered.

    Raises:
        ConfigError: A value cannot be used; the error names it.
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


def assumptions(wish: Question, load: Load, held: Held) -> list[str]:
    """The assumptions of the answers, as text."""
    case = wish.case
    slo, admission = case.slo, case.admission
    ttft = f"TTFT {slo.ttft_ms:g} ms" if slo.ttft_ms else "each request's own TTFT target"
    tpot = f"TPOT {slo.tpot_ms:g} ms" if slo.tpot_ms else "each request's own TPOT target"
    fence = "on" if admission.fence else "off"
    own = f"{load.count} requests of {case.workload}, {load.own_rps:.4g} a second at their own pace"
    rules = f"Order {case.policy}, router {case.router}, overdue requests: {admission.overdue}, KV fence {fence}"
    said = [
        f"Held means: at least {wish.share:.1%} of all requests complete within {ttft} and {tpot}; refused and dropped ones missed.",
        f"{own}; more load is the same requests in less time. Held loads are exact to {wish.tolerance:.1%}.",
        f"{rules}, TPOT guard {admission.tpot_guard:g}, agents: {', '.join(case.agents) or 'none'}.",
        "Engines behave as their profiles say, start empty and never fail; network and gateway cost nothing.",
    ]
    kinds = distinct([*case.fleet.kinds, *wish.kinds])
    said += [f"Profile {kind.profile.name}: {kind.profile.source.split('. ')[0].rstrip('.')}." for kind in kinds]
    return said + _warnings(wish, load, held)


def _warnings(wish: Question, load: Load, held: Held) -> list[str]:
    """The weaknesses of the answers, as text."""
    said = []
    if held.at is not None and held.at.duration_s < SHORT_S:
        said.append(f"Mind: at the held load all requests come within {held.at.duration_s:.0f} s, too short for a queue to show.")
    if load.count < SCORED_LEAST:
        said.append(f"Mind: {load.count} requests are few; one miss is {1.0 / load.count:.2%}.")
    for kind in distinct([*wish.case.fleet.kinds, *wish.kinds]):
        most = kind.profile.max_model_len
        if over := load.longer_than(most):
            missed = f"{over} requests are longer than the context of {kind.name}, {most} tokens, and count as missed there"
            said.append(f"Mind: {missed}; context=N in the workload cuts them.")
    return said


def distinct(kinds: Sequence[Kind]) -> list[Kind]:
    """Each kind once, by its name."""
    return list({kind.name: kind for kind in kinds}.values())
