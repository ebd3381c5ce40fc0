"""How much of the past is replayed where all of it would take too long. Pure.

A fleet of equal instances is a fleet of a few of them with their share of the requests: so part of the instances is replayed, with requests
drawn by their ids. Where one instance is left, or they are not alike, it is the newest part of the window.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.replay import ReplayInstance

WHOLE = 1 << 32


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a fleet and of what it is asked.

    Attributes:
        plants: The instances that are replayed.
        share: Their share of the fleet, above 0 to 1, and so of the requests.
    """

    plants: tuple[ReplayInstance, ...]
    share: float

    def of(self, asked: Iterable[PastRequest]) -> list[PastRequest]:
        """The requests that fall to this part: always the same ones."""
        threshold = int(WHOLE * self.share)
        return [one for one in asked if crc32(one.request.id.encode()) < threshold] if self.share < 1.0 else list(asked)


def part_of(plants: Sequence[ReplayInstance], asked: int, most: int) -> Part:
    """As much of the fleet as brings so many requests down to about `most`; all of it where instances are not alike."""
    if asked <= most or not _alike(plants):
        return Part(tuple(plants), 1.0)
    kept = max(1, min(len(plants), round(len(plants) * most / asked)))
    return Part(tuple(plants[:kept]), kept / len(plants))


def _alike(plants: Sequence[ReplayInstance]) -> bool:
    """Whether any of them may stand for the others: what they serve, and how many at once."""
    first = plants[0]
    return all(plant.models == first.models and plant.profile.kv_blocks == first.profile.kv_blocks for plant in plants)
