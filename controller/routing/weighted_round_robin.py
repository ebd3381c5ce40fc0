"""Chooses the instances in turn, the larger ones more often."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Choice, InstanceState, Routable


class WeightedRoundRobin:
    """Gives each instance a share of the requests equal to its share of the weights, spread as evenly as possible.

    Each choice gives every candidate its weight as credit and takes the sum of the weights from the one with the most credit. The load of
    the instances has no influence.

    Args:
        weights: Weight by instance, each more than 0; an instance that is not named has 1, and with None all have 1.

    Raises:
        PolicyError: A weight is not more than 0.
    """

    name: ClassVar[str] = "weighted-round-robin"

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        for instance, weight in self._weights.items():
            if not weight > 0.0:
                raise PolicyError(f"weight of instance {instance!r} is {weight!r}; allowed: more than 0")
        self._credit: dict[str, float] = {}

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:  # noqa: ARG002  the protocol's argument
        """The instance with the most credit, None if there are none; ties go to the given order."""
        if not instances:
            return None
        weights = {instance.name: self._weights.get(instance.name, 1.0) for instance in instances}
        for name, weight in weights.items():
            self._credit[name] = self._credit.get(name, 0.0) + weight
        chosen = max(weights, key=lambda name: self._credit[name])
        self._credit[chosen] -= sum(weights.values())
        return Choice(chosen, f"its turn by weight {weights[chosen]:g} among {len(instances)}")
