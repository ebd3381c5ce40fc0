"""What meta knows again after a restart, from its own decisions on the bus. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hmas.agents.meta.candidate import Candidate, candidate
from hmas.agents.meta.cooldowns import Cooldowns
from hmas.controller.core.messages import MetaDecision

FRESH_S = 600.0
"""Age beyond which its own last decision is not resumed: the workload it was made for has passed."""
FREE = frozenset({"rollback", "bypass"})
"""Sources whose changes are not on the hour's budget."""


@dataclass(slots=True)
class RestoredState:
    """What is left of decisions.

    Attributes:
        current: In force before, where it may be resumed.
        bypass_s: When the bypass was last in force, None where the newest decision is no bypass.
        switches: Changes that count towards the hour's budget, the oldest first.
        bans: What was rolled back and for how long it stays away.
    """

    current: Candidate | None = None
    bypass_s: float | None = None
    switches: list[float] = field(default_factory=list)
    bans: Cooldowns = field(default_factory=Cooldowns)


def past_of(decisions: Sequence[MetaDecision], pool: Collection[str], now_s: float, *, ban_s: float, span_s: float) -> RestoredState:
    """Reads its own decisions, signs of life among them, in the order in which they were said.

    Only the newest says what is in force: a bypass that has ended since is over. A switch that was still being watched counts as good, for
    what it was held against is gone.

    Args:
        decisions: What is older than the others counts for what is left of it.
        pool: Policies that may be resumed.
        now_s: The moment of the restart.
        ban_s: How long a rollback keeps its candidate away.
        span_s: Span of the budget of switches.
    """
    past = RestoredState()
    running: Candidate | None = None
    for decision in decisions:
        said = candidate(decision.policy, decision.parameters, decision.n_run)
        if decision.source == "rollback" and decision.changed and running is not None and decision.sent_s + ban_s > now_s:
            past.bans.add(running, said, decision.sent_s + ban_s)
        if decision.changed and decision.source not in FREE and 0.0 <= now_s - decision.sent_s < span_s:
            past.switches.append(decision.sent_s)
        if not decision.bypass:
            running = said
        elif running is None or running.policy != decision.previous:
            # The bypass has put back what was stable; its decision tells the policy alone.
            running = candidate(decision.previous)
    if decisions and running is not None and now_s - decisions[-1].sent_s <= FRESH_S:
        past.current = running if running.policy in pool else None
        past.bypass_s = decisions[-1].sent_s if decisions[-1].bypass else None
    return past
