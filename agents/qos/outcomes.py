"""Derives from an ended request how good the service was. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from hmas.agents.qos.sketch import Share
from hmas.controller.core.messages import Completion
from hmas.controller.core.objectives import jain, missed_ttft
from hmas.controller.core.types import OutcomeKind


def missed_in_queue(completion: Completion) -> bool:
    """Whether waiting caused the TTFT miss: service alone would have met the target, or never began."""
    return missed_ttft(completion) and (completion.service_ttft_ms < 0 or completion.service_ttft_ms <= completion.ttft_slo_ms)


def served_late(completion: Completion) -> bool:
    """Whether service began after the TTFT target had passed."""
    return completion.queue_ms >= 0 and 0 < completion.ttft_slo_ms < completion.queue_ms


def served_tokens(completion: Completion) -> int:
    """Tokens that an engine served for this request: the whole prompt, as engines count it, and the output; 0 if never dispatched."""
    if completion.queue_ms < 0:
        return 0
    served = max(0, completion.output_tokens)
    if completion.prompt_tokens > 0 and (completion.ttft_ms >= 0 or completion.outcome is OutcomeKind.COMPLETED):
        served += completion.prompt_tokens
    return served


def asked_output_tokens(completion: Completion) -> int:
    """Output tokens the request asked for: the real ones, or the predicted ones if it did not complete and they are more."""
    if completion.outcome is OutcomeKind.COMPLETED:
        return max(0, completion.output_tokens)
    return max(0, completion.output_tokens, round(completion.predicted_output_tokens))


def asked_tokens(completion: Completion) -> int:
    """Tokens the request asked for: the served ones, or prompt and asked output if it did not complete."""
    if completion.outcome is OutcomeKind.COMPLETED:
        return served_tokens(completion)
    return max(0, completion.prompt_tokens) + asked_output_tokens(completion)


class Tally(NamedTuple):
    """Requests whose outcome was settled within a window, as counts or weights.

    A scheduler that puts late requests last lets them wait long: their misses would show only when they end, which may be never within
    the window. So a miss is counted when it is certain: `overdue` is the growth of the number of waiting requests past their TTFT target
    (requests of this number that end reduce it again).

    Attributes:
        judged: Ended and judged. `met`: met both targets. `ttft`, `tpot`, `queue`: missed so, see `missed_ttft` and the like.
        overdue: Growth over the window; negative if that number fell.
    """

    judged: float = 0
    met: float = 0
    ttft: float = 0
    tpot: float = 0
    queue: float = 0
    overdue: float = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """Miss shares among requests whose outcome is settled, 0 to 1; all 0 if there are none.

    Attributes:
        missed: Share that missed at least one target. `ttft`, `tpot`: by target (tpot: of those that ended). `queue`: lost to waiting.
    """

    missed: float
    ttft: float
    tpot: float
    queue: float


def shares(tally: Tally) -> Shares:
    """Returns the shares of a tally."""
    settled = tally.judged + tally.overdue

    def share(count: float) -> float:
        return min(1.0, max(0.0, count + tally.overdue) / settled) if settled > 0 else 0.0

    return Shares(
        missed=share(tally.judged - tally.met),
        ttft=share(tally.ttft),
        tpot=tally.tpot / tally.judged if tally.judged > 0 else 0.0,
        queue=share(tally.queue),
    )


def fairness(parts: Mapping[str, Share], weights: Mapping[str, float]) -> tuple[float, int]:
    """Jain index over tenants of served tokens relative to the weighted max-min fair share of all served tokens, and how many they are.

    Measuring against the fair share instead of zero keeps a tenant with little demand from looking starved: if all tenants get what they
    ask for, or all are cut back alike, the index is 1. With fewer than two tenants it is 1 and says nothing. The weight
    of a tenant that is not named is 1.
    """
    asked = {tenant: float(part.asked) for tenant, part in parts.items()}
    fair = _max_min(asked, {tenant: weights.get(tenant, 1.0) for tenant in asked}, sum(part.served for part in parts.values()))
    rates = [parts[tenant].served / share for tenant, share in fair.items() if share > 0]
    return jain(rates), len(rates)


def _max_min(asked: Mapping[str, float], weights: Mapping[str, float], total: float) -> dict[str, float]:
    """Splits `total` among demands by weighted max-min: no tenant gets more than it asks for, the rest is shared by weight."""
    order = sorted(asked, key=lambda name: (asked[name] / weights[name], name))
    # Weights of a tenant and all after it, summed from the end: subtracting them one by one would accumulate rounding errors.
    tails = list(accumulate(weights[tenant] for tenant in reversed(order)))[::-1]
    fair: dict[str, float] = {}
    left = min(total, sum(asked.values()))
    for tenant, tail in zip(order, tails, strict=True):
        fair[tenant] = max(0.0, min(asked[tenant], left * weights[tenant] / tail))
        left -= fair[tenant]
    return fair
