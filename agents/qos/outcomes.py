"""What an ended request says about the service it got. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from controller.core.messages import Completion
from controller.core.objectives import jain
from controller.core.types import OutcomeKind


def is_judged(completion: Completion) -> bool:
    """Whether the end says anything about the service.

    Not judged: what the client itself caused. These are answers 400 to 428 (malformed, unknown, too large) and clients that left while
    their TTFT target could still have been met.
    """
    if 400 <= completion.status < 429:
        return False
    if completion.outcome is OutcomeKind.CANCELLED:
        return completion.ttft_ms < 0 and 0 < completion.ttft_slo_ms < completion.total_ms
    return True


def missed_ttft(completion: Completion) -> bool:
    """No first token came, or it came after its target. For judged requests; an answer in one piece is late where it missed its SLO."""
    if completion.ttft_ms < 0:
        return not completion.slo_met
    return 0 < completion.ttft_slo_ms < completion.ttft_ms


def missed_tpot(completion: Completion) -> bool:
    """Tokens came slower than their target."""
    return 0 < completion.tpot_slo_ms < completion.tpot_ms


def missed_in_queue(completion: Completion) -> bool:
    """The TTFT target was lost to waiting: service alone would have kept it, or never began."""
    return missed_ttft(completion) and (completion.service_ttft_ms < 0 or completion.service_ttft_ms <= completion.ttft_slo_ms)


def served_late(completion: Completion) -> bool:
    """Service began after the TTFT target had passed."""
    return completion.queue_ms >= 0 and 0 < completion.ttft_slo_ms < completion.queue_ms


def served_tokens(completion: Completion) -> int:
    """Tokens an engine worked on for this request: prompt (less what its prefix cache gave) and output; 0 where it was never dispatched."""
    if completion.queue_ms < 0:
        return 0
    began = completion.ttft_ms >= 0 or completion.outcome is OutcomeKind.COMPLETED
    prompt = max(0, completion.prompt_tokens - completion.cached_tokens) if began else 0
    return prompt + max(0, completion.output_tokens)


def asked_tokens(completion: Completion) -> float:
    """Tokens the request asked for: what was served, or what was predicted where it was not served to its end."""
    if completion.outcome is OutcomeKind.COMPLETED:
        return float(served_tokens(completion))
    wanted = max(float(completion.output_tokens), completion.predicted_output_tokens)
    return max(0, completion.prompt_tokens) + max(0.0, wanted)


@dataclass(frozen=True, slots=True)
class Shares:
    """Miss shares among requests whose fate is settled, 0 to 1; all 0 with none.

    Attributes:
        judged: How many ended and were judged.
        met: How many met both targets.
        missed: Share that missed at least one. `ttft`, `tpot`: by target (tpot: of those that ended). `queue`: lost to waiting.
    """

    judged: int
    met: int
    missed: float
    ttft: float
    tpot: float
    queue: float


def shares(completions: Sequence[Completion], more_overdue: int = 0) -> Shares:
    """Counts misses over a window.

    A scheduler that puts late requests last lets them wait for long: their misses would show only when they end, which may be never within
    the window. A miss is counted when it is certain instead: `more_overdue` is by how much the number of waiting requests past their TTFT
    target has grown (those of them that end take themselves out of it again).

    Args:
        completions: Requests that ended within the window.
        more_overdue: Growth over the window, negative where that pool was worked off.
    """
    judged = [c for c in completions if is_judged(c)]
    ended = max(1, len(judged))
    settled = max(1, len(judged) + more_overdue)
    met = sum(c.slo_met for c in judged)

    def share(count: int) -> float:
        return min(1.0, max(0, count + more_overdue) / settled)

    return Shares(
        judged=len(judged),
        met=met,
        missed=share(len(judged) - met),
        ttft=share(sum(missed_ttft(c) for c in judged)),
        tpot=sum(missed_tpot(c) for c in judged) / ended,
        queue=share(sum(missed_in_queue(c) for c in judged)),
    )


def fairness(completions: Sequence[Completion], weights: Mapping[str, float]) -> float:
    """Jain index over tenants of tokens served over the weighted max-min fair share of what was served in all.

    Measuring against the fair share rather than against zero keeps a tenant that asks for little from looking starved: where everyone
    gets what it asks for, or all are cut back alike, the index is 1. Tenants without a weight have 1.
    """
    asked: dict[str, float] = {}
    served: dict[str, float] = {}
    for completion in completions:
        if is_judged(completion):
            asked[completion.tenant] = asked.get(completion.tenant, 0.0) + asked_tokens(completion)
            served[completion.tenant] = served.get(completion.tenant, 0.0) + served_tokens(completion)
    fair = _max_min(asked, {tenant: weights.get(tenant, 1.0) for tenant in asked}, sum(served.values()))
    return jain(served[tenant] / share for tenant, share in fair.items() if share > 0)


def _max_min(asked: Mapping[str, float], weights: Mapping[str, float], total: float) -> dict[str, float]:
    """Weighted max-min split of `total` among demands: nobody gets more than it asks for, the rest is shared by weight."""
    order = sorted(asked, key=lambda name: (asked[name] / weights[name], name))
    # Weights of a tenant and all after it, summed from the end: subtracting them one by one would leave rounding behind.
    tails = list(accumulate(weights[tenant] for tenant in reversed(order)))[::-1]
    fair: dict[str, float] = {}
    left = min(total, sum(asked.values()))
    for tenant, tail in zip(order, tails, strict=True):
        fair[tenant] = max(0.0, min(asked[tenant], left * weights[tenant] / tail))
        left -= fair[tenant]
    return fair
