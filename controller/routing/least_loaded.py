"""The instance with the emptiest window."""

from collections.abc import Sequence
from typing import ClassVar

from controller.core.placement import Choice, InstanceState, Routable


class LeastLoaded:
    """The lowest share of the window after taking the request; then the fewest tokens in flight; then the order given.

    The share, not the count, so that a large and a small engine fill alike.
    """

    name: ClassVar[str] = "least-loaded"

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:  # noqa: ARG002  the protocol's argument
        """The emptiest of `instances`, None where there is none."""
        if not instances:
            return None
        # One list and one look at its least, not a comparison of tuples each: among hundreds of instances this is what a dispatch costs.
        loads = [(instance.in_flight + 1) / instance.n_run for instance in instances]
        least = min(loads)
        emptiest = [instance for instance, load in zip(instances, loads, strict=True) if load == least]
        best = emptiest[0] if len(emptiest) == 1 else min(emptiest, key=_tokens)
        return Choice(best.name, f"window {best.in_flight}/{best.n_run}, the emptiest of {len(instances)}")


def _tokens(instance: InstanceState) -> int:
    return instance.in_flight_tokens
