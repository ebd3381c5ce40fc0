"""The instance with the emptiest window."""

from collections.abc import Sequence
from typing import ClassVar

from hmas.controller.core.placement import Choice, InstanceState, Routable

LIKE = 1.25
"""Windows of engines of a kind differ by no more than this factor."""


class LeastLoaded:
    """The lowest share of the window after taking the request, to within a request; then the fewest tokens per slot; then the order given.

    The share, not the count, so that a large and a small engine fill alike. To within a request: an instance that lies below the lowest
    such share without the request is as empty as any. For equal windows that is the fewest in flight. The windows that an agent sets differ
    by a few between engines of a kind, and their shares are hardly ever the same number: compared as numbers, the wider window would win
    each time, however many tokens its requests have. Windows that differ by more than `LIKE` are compared as numbers: a request is next to
    nothing in a wide window and all of a narrow one.
    """

    name: ClassVar[str] = "least-loaded"

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:  # noqa: ARG002  the protocol's argument
        """The emptiest of `instances`, None where there is none."""
        if not instances:
            return None
        if len(instances) == 1:
            return _choice(instances[0], 1)
        # One list, its least, and one number to compare with, no tuples: among hundreds of instances this is what a dispatch costs.
        loads = [(instance.in_flight + 1) / instance.n_run for instance in instances]
        least = min(loads)
        window = instances[loads.index(least)].n_run
        low, high = window / LIKE, window * LIKE
        # No window that is like this one is within a request of the least beyond that.
        near = least + 1.0 / low
        emptiest = [
            instance
            for instance, load in zip(instances, loads, strict=True)
            if load <= near and (load == least or (instance.in_flight / instance.n_run < least and low <= instance.n_run <= high))
        ]
        best = emptiest[0] if len(emptiest) == 1 else min(emptiest, key=_tokens)
        return _choice(best, len(instances))


def _choice(best: InstanceState, among: int) -> Choice:
    return Choice(best.name, f"window {best.in_flight}/{best.n_run}, the emptiest of {among}")


def _tokens(instance: InstanceState) -> float:
    return instance.in_flight_tokens / instance.n_run
