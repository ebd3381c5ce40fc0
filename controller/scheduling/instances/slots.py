"""Tracks which instances of a group have a free slot, without asking all of them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Slotted(Protocol):
    """The part of an instance that `Slots` needs."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def open(self) -> bool:
        """Whether it may take one more request now."""
        ...


Engine = TypeVar("Engine", bound=Slotted)


class Slots(Generic[Engine]):
    """The open ones of some instances, in the order of the configuration. Instances report when they open or close: O(log n) each.

    Attributes:
        open: Instances with a free slot. Callers may read this list, but not keep it.
    """

    __slots__ = ("_numbers", "_places", "open")

    def __init__(self, instances: Sequence[Engine]) -> None:
        self._places = {instance.name: place for place, instance in enumerate(instances)}
        self.open = [instance for instance in instances if instance.open]
        self._numbers = [self._places[instance.name] for instance in self.open]

    def turned(self, instance: Engine, *, is_open: bool) -> None:
        """Records that an instance has opened or closed."""
        number = self._places[instance.name]
        place = bisect_left(self._numbers, number)
        known = place < len(self._numbers) and self._numbers[place] == number
        if is_open and not known:
            self._numbers.insert(place, number)
            self.open.insert(place, instance)
        elif known and not is_open:
            del self._numbers[place], self.open[place]
