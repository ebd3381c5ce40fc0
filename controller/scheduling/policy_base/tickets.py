"""Tickets: a flow's claim under proportional-share policies."""

from hmas.controller.scheduling.policy_base.keyed import PRIORITY_LIMIT
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

PER_WEIGHT = 1000
"""Tickets of weight 1 at priority 0. They are whole numbers, which add up exactly in any order."""
DOUBLING = 10.0
"""Steps of client priority that halve a claim."""
_LIMIT = 10**9


def tickets_of(entry: QueueEntry) -> int:
    """The claim of a tenant with this as its next entry: its weight, doubled for every ten steps of better priority. At least 1."""
    claim = PER_WEIGHT * entry.weight
    priority = entry.request.priority
    if priority:
        claim *= 2.0 ** (-max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, priority)) / DOUBLING)
    return 1 if claim < 1.5 else _LIMIT if claim > _LIMIT else int(claim + 0.5)
