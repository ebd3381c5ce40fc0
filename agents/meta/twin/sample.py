"""Chooses which part of the past is replayed when all of it would take too long. Pure.

A fleet of equal instances behaves like a few of them with their share of the requests. So a part of the instances is replayed, with
requests selected by their ids. With one instance left, or with unequal ones, the newest part of the window is replayed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.replay import ReplayInstance

WHOLE = 1 << 32


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a fleet and of its requests.

    Attributes:
        plants: The replayed instances.
        share: Their share of the fleet, and so of the requests; above 0, at most 1.
    """

    plants: tuple[ReplayInstance, ...]
    share: float

    def of(self, asked: Iterable[PastRequest]) -> list[PastRequest]:
        """Returns the requests of this part, always the same ones; those that none of its instances serves are left out."""
        threshold = int(WHOLE * self.share)
        any_model = any(plant.models is None for plant in self.plants)
        models = {model for plant in self.plants for model in plant.models or ()}
        found = [one for one in asked if any_model or one.request.model in models]
        return [one for one in found if crc32(one.request.id.encode()) < threshold] if self.share < 1.0 else found


def part_of(plants: Sequence[ReplayInstance], asked: int, most: int) -> Part:
    """Returns as much of the fleet as reduces the requests to about `most`; all of it if instances are not alike."""
    if asked <= most or not _alike(plants):
        return Part(tuple(plants), 1.0)
    kept = max(1, min(len(plants), round(len(plants) * most / asked)))
    return Part(tuple(plants[:kept]), kept / len(plants))


def _alike(plants: Sequence[ReplayInstance]) -> bool:
    """Whether all instances have the same models, equal KV caches, and windows that are set alike, so that any can represent the others."""
    return len({(plant.models, plant.profile.kv_blocks, plant.held) for plant in plants}) == 1
