"""Ranks instances by how full their windows are."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from hmas.controller.core.placement import Choice, InstanceState, Routable

LIKE = 1.25
"""Windows of engines of the same kind differ by no more than this factor."""


class LeastLoaded:
    """Ranks by the share of the window after taking the request, with a tolerance of one request; then by the fewest tokens per slot.

    Further ties go to the given order. The share counts, not the number of requests, so that a large and a small engine fill alike. The
    tolerance: an instance counts as equally empty if its share without the request is below the lowest share with it. For equal windows,
    these are the instances with the fewest requests in flight. Without the tolerance, the wider of two similar windows would win each time,
    however many tokens its requests have. Windows that differ by more than `LIKE` are compared exactly: one request is almost nothing in a
    wide window and everything in a narrow one. The windows are `InstanceState.routing_window`: identical engines get equal load, whatever
    windows agents have set.
    """

    name: ClassVar[str] = "least-loaded"
    summary: ClassVar[str] = "emptiest window first, then the fewest tokens in flight"

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterator[Choice]:  # noqa: ARG002  the protocol's
        """The emptiest of `instances` first. The order of the others is determined only if it is asked for, and without the tolerance."""
        best = _emptiest(instances, entry.request.sequences)
        yield _choice(best, len(instances))
        left = [one for one in instances if one is not best]
        left.sort(key=lambda one: (one.sequences / one.routing_window, tokens_per_slot(one)))
        for place, one in enumerate(left):
            yield _choice(one, len(left) - place)


def _emptiest(instances: Sequence[InstanceState], sequences: int) -> InstanceState:
    if len(instances) == 1:
        return instances[0]
    # One list, its minimum and one number to compare with, without tuples: with hundreds of instances this is the cost of a dispatch.
    loads = [(instance.sequences + sequences) / instance.routing_window for instance in instances]
    least = min(loads)
    window = instances[loads.index(least)].routing_window
    low, high = window / LIKE, window * LIKE
    # No window similar to this one is within one request of the minimum beyond that.
    near = least + sequences / low
    emptiest = [
        instance
        for instance, load in zip(instances, loads, strict=True)
        if load <= near
        and (load == least or (instance.sequences / instance.routing_window < least and low <= instance.routing_window <= high))
    ]
    return emptiest[0] if len(emptiest) == 1 else min(emptiest, key=tokens_per_slot)


def tokens_per_slot(instance: InstanceState) -> float:
    """Tokens in flight by the slots of the window: what ties go by."""
    return instance.in_flight_tokens / instance.routing_window


def _choice(best: InstanceState, among: int) -> Choice:
    return Choice(best.name, f"window {best.sequences}/{best.n_run}, the emptiest of {among}")
