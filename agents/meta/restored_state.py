"""Restores meta's state after a restart from its own decisions on the bus. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hmas.agents.meta.candidate import Candidate, candidate
from hmas.agents.meta.cooldowns import Cooldowns
from hmas.controller.core.messages import MetaDecision

FRESH_S = 600.0
"""Age above which meta does not resume its own last decision: the workload it was made for has passed."""
FREE = frozenset({"rollback", "bypass"})
"""Sources whose changes do not count towards the hour's budget."""


@dataclass(slots=True)
class RestoredState:
    """The state that decisions on the bus still determine.

    Attributes:
        current: The previously active candidate, if it may be resumed.
        bypass_s: When the bypass was last active; None if the newest decision is no bypass.
        switches: Times of the changes that count towards the hour's budget, oldest first.
        bans: The rolled-back candidates and the ends of their cooldowns.
    """

    current: Candidate | None = None
    bypass_s: float | None = None
    switches: list[float] = field(default_factory=list)
    bans: Cooldowns = field(default_factory=Cooldowns)


def past_of(
    decisions: Sequence[MetaDecision],
    pool: Collection[str],
    now_s: float,
    *,
    ban_s: float,
    span_s: float,
    routers: Collection[str] = (),
    configured: str = "",
) -> RestoredState:
    """Reads meta's own decisions, keep-alives included, in the order in which they were posted.

    Only the newest decision determines what is active: a bypass that has ended since is over. A switch that was still being watched counts
    as good, because the baseline it was compared with is gone.

    Args:
        decisions: Meta's decisions, oldest first; an old rollback counts for the remaining part of its cooldown.
        pool: Policies that may be resumed.
        now_s: Time of the restart.
        ban_s: Length of the cooldown after a rollback.
        span_s: Span of the budget of switches.
        routers: Routers that may be resumed, besides the configured one.
        configured: Label of the configured candidate. What ran under another one is not resumed; a bypass is.
    """
    past = RestoredState()
    running: Candidate | None = None
    for decision in decisions:
        said = candidate(decision.policy, decision.parameters, decision.n_run, decision.router)
        if decision.source == "rollback" and decision.changed and running is not None and decision.sent_s + ban_s > now_s:
            past.bans.add(running, said, decision.sent_s + ban_s)
        if decision.changed and decision.source not in FREE and 0.0 <= now_s - decision.sent_s < span_s:
            past.switches.append(decision.sent_s)
        # A bypass names what returns after it.
        returns = candidate(decision.previous, decision.previous_parameters, decision.previous_n_run, decision.previous_router)
        running = returns if decision.bypass else said
    if decisions and running is not None and now_s - decisions[-1].sent_s <= FRESH_S:
        newest = decisions[-1]
        allowed = running.policy in pool and running.router in ("", *routers) and newest.configured in ("", configured)
        past.current = running if allowed else None
        past.bypass_s = newest.sent_s if newest.bypass else None
    return past
