"""The question of a capacity plan, and the assumptions of its answers."""

from collections.abc import Sequence

import msgspec

from hmas.controller.core.errors import ConfigError
from hmas.planning.case import Case
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.loads import Load
from hmas.planning.probing import Held

SHORT_S = 120.0
"""In arrivals shorter than this a queue has little time to build up."""
SCORED_LEAST = 1000
"""With fewer requests a share near 1 depends on few misses."""


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
    over = max(load.longer_than(kind.profile.max_model_len) for kind in wish.case.fleet.kinds)
    if over:
        said.append(f"Mind: {over} requests are longer than an engine's context and count as missed; context=N in the workload cuts them.")
    return said


def distinct(kinds: Sequence[Kind]) -> list[Kind]:
    """Each kind once, by its name."""
    return list({kind.name: kind for kind in kinds}.values())
