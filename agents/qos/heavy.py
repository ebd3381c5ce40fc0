"""Which names make up most of a stream, in bounded memory with a stated error. Pure.

Misra and Gries' summary, emptied by halves: when more than twice `KEPT` names are held, the count of the one behind the first `KEPT` is
taken from all, and who has nothing left is forgotten. Each time that takes the same from KEPT + 1 names at least, so all that was ever
taken from one name is at most the stream over KEPT + 1. Summaries of parts of a stream add up (Agarwal et al. 2012): the errors do too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KEPT = 64
"""Names of which none with a larger share than 1 / (KEPT + 1) is missed; up to twice as many are held, and to those all is exact."""


@dataclass(slots=True)
class Share:
    """One name's part: requests (at least), tokens asked for and served since it was last taken in."""

    count: int = 0
    asked: int = 0
    served: int = 0


class HeavyHitters:
    """Counts by name. A call costs O(1) on average.

    Attributes:
        total: Requests counted.
        error: By how much the count of any name may be too low, 0 while at most 2 `KEPT` names came; at most total / (KEPT + 1).
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
        """Takes in what another has counted."""
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
        """What is held, by name."""
        return self._held

    def _empty(self) -> None:
        taken = sorted((share.count for share in self._held.values()), reverse=True)[KEPT]
        self.error += taken
        for share in self._held.values():
            share.count -= taken
        self._held = {name: share for name, share in self._held.items() if share.count > 0}


def merged(parts: Iterable[HeavyHitters]) -> HeavyHitters:
    """One summary of all parts."""
    whole = HeavyHitters()
    for part in parts:
        whole.merge(part)
    return whole
