"""Finds the names that make up most of a stream, in bounded memory with a known error. Pure.

This is Misra and Gries' summary, emptied by halves: when it holds more than twice `KEPT` names, the count of the (KEPT + 1)-th largest is
subtracted from all, and names without a remaining count are dropped. Each time, at least KEPT + 1 names lose the same amount, so one name
loses at most the stream over KEPT + 1 in total. Summaries of parts of a stream add up (Agarwal et al. 2012), and so do their errors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KEPT = 64
"""No name with a share above 1 / (KEPT + 1) is missed. Up to twice as many names are held, and with no more names all counts are exact."""


@dataclass(slots=True)
class Share:
    """One name's part: a lower bound of its requests, and the tokens asked for and served since the name was last added."""

    count: int = 0
    asked: int = 0
    served: int = 0


class HeavyHitters:
    """Counts by name. A call costs O(1) on average.

    Attributes:
        total: Requests counted.
        error: Most by which a name's count may be too low: 0 up to 2 `KEPT` names, and at most total / (KEPT + 1).
    """

    __slots__ = ("_held", "error", "total")

    def __init__(self) -> None:
        self._held: dict[str, Share] = {}
        self.total = 0
        self.error = 0

    def add(self, name: str, asked: int, served: int) -> None:
        """Counts one request."""
        share = self._held.get(name)
        if share is None:
            share = self._held[name] = Share()
        share.count += 1
        share.asked += asked
        share.served += served
        self.total += 1
        if len(self._held) > 2 * KEPT:
            self._empty()

    def merge(self, other: "HeavyHitters") -> None:
        """Adds the counts of another summary."""
        for name, theirs in other.held().items():
            share = self._held.setdefault(name, Share())
            share.count += theirs.count
            share.asked += theirs.asked
            share.served += theirs.served
        self.total += other.total
        self.error += other.error
        if len(self._held) > 2 * KEPT:
            self._empty()

    def held(self) -> Mapping[str, Share]:
        """Returns the held counts by name."""
        return self._held

    def _empty(self) -> None:
        taken = sorted((share.count for share in self._held.values()), reverse=True)[KEPT]
        self.error += taken
        for share in self._held.values():
            share.count -= taken
        self._held = {name: share for name, share in self._held.items() if share.count > 0}


def merged(parts: Iterable[HeavyHitters]) -> HeavyHitters:
    """Returns one summary of all parts."""
    whole = HeavyHitters()
    for part in parts:
        whole.merge(part)
    return whole
