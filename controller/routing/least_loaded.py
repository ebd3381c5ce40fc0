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
        best: InstanceState | None = None
        best_load = (0.0, 0)
        for instance in instances:
            load = ((instance.in_flight + 1) / instance.n_run, instance.in_flight_tokens)
            if best is None or load < best_load:
                best, best_load = instance, load
        if best is None:
            return None
        return Choice(best.name, f"window {best.in_flight}/{best.n_run}, the emptiest of {len(instances)}")
