"""Which of a group's instances have a slot free, known without asking them all."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Slotted(Protocol):
    """An instance, as far as this goes."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def open(self) -> bool:
        """Whether it may be given one more now."""
        ...


Engine = TypeVar("Engine", bound=Slotted)


class Slots(Generic[Engine]):
    """Those of some instances that are open, in the order of the configuration. They tell it when one opens or closes: O(log n) each.

    Attributes:
        open: Those with a slot. To be read, not to be kept.
    """

    __slots__ = ("_numbers", "_places", "open")

    def __init__(self, instances: Sequence[Engine]) -> None:
        self._places = {instance.name: place for place, instance in enumerate(instances)}
        self.open = [instance for instance in instances if instance.open]
        self._numbers = [self._places[instance.name] for instance in self.open]

    def turned(self, instance: Engine, *, is_open: bool) -> None:
        """One has opened or closed."""
        number = self._places[instance.name]
        place = bisect_left(self._numbers, number)
        known = place < len(self._numbers) and self._numbers[place] == number
        if is_open and not known:
            self._numbers.insert(place, number)
            self.open.insert(place, instance)
        elif known and not is_open:
            del self._numbers[place], self.open[place]
