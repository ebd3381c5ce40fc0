"""Chooses the instance with the emptiest window."""

from collections.abc import Sequence
from typing import ClassVar

from hmas.controller.core.placement import Choice, InstanceState, Routable

LIKE = 1.25
"""Windows of engines of the same kind differ by no more than this factor."""


class LeastLoaded:
    """Chooses the lowest share of the window after taking the request, with a tolerance of one request; then the fewest tokens per slot.

    Further ties go to the given order. The share counts, not the number of requests, so that a large and a small engine fill alike. The
    tolerance: an instance counts as equally empty if its share without the request is below the lowest share with it. For equal windows,
    these are the instances with the fewest requests in flight. The windows that an agent sets differ slightly between engines of the same
    kind, so exact shares are hardly ever equal: without the tolerance, the wider window would win each time, however many tokens its
    requests have. Windows that differ by more than `LIKE` are compared exactly: one request is almost nothing in a wide window and
    everything in a narrow one.
    """

    name: ClassVar[str] = "least-loaded"

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:
        """The emptiest of `instances`, None if there are none."""
        if not instances:
            return None
        if len(instances) == 1:
            return _choice(instances[0], 1)
        # One list, its minimum and one number to compare with, without tuples: with hundreds of instances this is the cost of a dispatch.
        sequences = entry.request.sequences
        loads = [(instance.sequences + sequences) / instance.n_run for instance in instances]
        least = min(loads)
        window = instances[loads.index(least)].n_run
        low, high = window / LIKE, window * LIKE
        # No window similar to this one is within one request of the minimum beyond that.
        near = least + sequences / low
        emptiest = [
            instance
            for instance, load in zip(instances, loads, strict=True)
            if load <= near and (load == least or (instance.sequences / instance.n_run < least and low <= instance.n_run <= high))
        ]
        best = emptiest[0] if len(emptiest) == 1 else min(emptiest, key=_tokens)
        return _choice(best, len(instances))


def _choice(best: InstanceState, among: int) -> Choice:
    return Choice(best.name, f"window {best.sequences}/{best.n_run}, the emptiest of {among}")


def _tokens(instance: InstanceState) -> float:
    return instance.in_flight_tokens / instance.n_run
