"""Routers that give instances their turns, whatever their load."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from hmas.controller.core.placement import Choice, InstanceState, Routable


class RoundRobin:
    """Ranks the instance first that got no request for the longest time, in alphabetical order those that never got one.

    One router may rank the instances of several models: the turns of one do not move another's.
    """

    name: ClassVar[str] = "round-robin"
    summary: ClassVar[str] = "each instance in turn"

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._turn = 0

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterator[Choice]:  # noqa: ARG002  the protocol's
        """The next of `instances` in turn first."""
        for _turn, name in sorted((self._turns.get(instance.name, 0), instance.name) for instance in instances):
            yield Choice(name, f"next of {len(instances)} in turn")

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """The turn is the next instance's."""
        self._turn += 1
        self._turns[instance] = self._turn

    def left(self, instance: str) -> None:
        """An instance that comes back is new."""
        self._turns.pop(instance, None)


class CapacityProportional:
    """Gives each instance the share of the requests that its KV cache has of all, spread as evenly as possible, whatever its load.

    The baseline "capacity" of HeteroServe (4.1). A dispatch gives every instance credit by its capacity and takes the sum from the one that
    got the request; the most credit is ranked first. Where an instance does not report its KV cache, all are compared by their windows.
    """

    name: ClassVar[str] = "capacity-proportional"
    summary: ClassVar[str] = "each instance by its share of the KV cache of all"

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}
        self._last: list[tuple[str, float]] = []

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterator[Choice]:  # noqa: ARG002  likewise
        """The instance with the most credit first; ties go to the given order."""
        known = all(instance.kv_capacity_tokens for instance in instances)
        sizes = [float(instance.kv_capacity_tokens) if known else instance.routing_window for instance in instances]
        total = sum(sizes)
        self._last = [(instance.name, size / total) for instance, size in zip(instances, sizes, strict=True)]
        shares = sorted(self._last, key=lambda one: -(self._credit.get(one[0], 0.0) + one[1]))
        for name, share in shares:
            yield Choice(name, f"its turn by {share:.0%} of the capacity of {len(instances)}")

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """Those that were ranked get credit; the instance pays for all."""
        for name, share in self._last:
            self._credit[name] = self._credit.get(name, 0.0) + share
        self._credit[instance] = self._credit.get(instance, 0.0) - 1.0
        self._last = []

    def left(self, instance: str) -> None:
        """An instance that comes back has no turns to make up for."""
        self._credit.pop(instance, None)
