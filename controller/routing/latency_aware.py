"""Chooses the instance where the first token is expected soonest."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Choice, InstanceState, Routable


class LatencyAware:
    """Chooses the lowest expected wait: requests without a first token, including this one, over the instance's speed.

    This is HeteroServe's baseline of that name (4.1), pure queue feedback. Ties go to the fewest tokens in flight, then to the given order.
    It counts requests, not their prompt tokens: if the batch is full, a slot that becomes free is worth the same to a short prompt.

    Args:
        speeds: Speed by instance, each more than 0, in any common unit, such as requests per second under full load. An instance that is
            not named counts as the mean of those named; None treats all alike.

    Raises:
        PolicyError: A speed is not more than 0.
    """

    name: ClassVar[str] = "latency-aware"

    def __init__(self, speeds: Mapping[str, float] | None = None) -> None:
        self._speeds = dict(speeds or {})
        for instance, speed in self._speeds.items():
            if not speed > 0.0:
                raise PolicyError(f"speed of instance {instance!r} is {speed!r}; allowed: more than 0")
        self._mean = sum(self._speeds.values()) / len(self._speeds) if self._speeds else 1.0

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:  # noqa: ARG002  the protocol's argument
        """The instance with the lowest expected wait, None if there are no instances."""
        best: InstanceState | None = None
        least = (0.0, 0)
        for instance in instances:
            wait = ((instance.awaiting + 1) / self._speeds.get(instance.name, self._mean), instance.in_flight_tokens)
            if best is None or wait < least:
                best, least = instance, wait
        if best is None:
            return None
        return Choice(best.name, f"{best.awaiting} before it without a first token, the shortest wait of {len(instances)}")
