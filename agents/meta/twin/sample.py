"""Chooses which part of the past is replayed when all of it would take too long. Pure.

A fleet of equal instances behaves like a few of them with their share of the requests. So a part of the instances is replayed, with
requests selected by their ids: of unequal ones the same share of each kind. Where that leaves too many requests, as with one instance, the
newest part of the window is replayed.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.replay import ReplayInstance
from hmas.controller.scheduling.instances.likeness import DECODE_LIKE, KV_LIKE
from hmas.engines.sim.profile import Profile

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
    """Returns as much of the fleet as reduces the requests to about `most`: the same share of each group of instances that are alike."""
    if asked <= most or not plants:
        return Part(tuple(plants), 1.0)
    groups = _groups(plants)
    if len(groups) == 1:
        kept = max(1, min(len(plants), round(len(plants) * most / asked)))
        return Part(tuple(plants[:kept]), kept / len(plants))
    common = math.gcd(*map(len, groups))
    divided = next((number for number in range(1, common + 1) if common % number == 0 and asked <= most * number), common)
    return Part(tuple(plant for group in groups for plant in group[: len(group) // divided]), 1.0 / divided)


def _groups(plants: Sequence[ReplayInstance]) -> list[list[ReplayInstance]]:
    """The instances with the same models, about the same KV cache and speed, and windows that are set alike, each in the given order."""
    kinds: dict[object, list[ReplayInstance]] = {}
    for plant in plants:
        kinds.setdefault((plant.models, plant.held), []).append(plant)
    groups = [part for kind in kinds.values() for part in _split(kind, lambda plant: plant.profile.kv_blocks, KV_LIKE)]
    return [part for group in groups for part in _split(group, lambda plant: decode_step_s(plant.profile), DECODE_LIKE)]


def _split(plants: list[ReplayInstance], size_of: Callable[[ReplayInstance], float], ratio: float) -> list[list[ReplayInstance]]:
    """The instances in groups by rising size: one more than `ratio` times larger than the one before begins another group."""
    sizes = sorted(map(size_of, plants))
    begins = [larger for smaller, larger in pairwise(sizes) if larger > ratio * smaller]
    groups: dict[int, list[ReplayInstance]] = {}
    for plant in plants:
        groups.setdefault(bisect_right(begins, size_of(plant)), []).append(plant)
    return [groups[number] for number in sorted(groups)]


def decode_step_s(profile: Profile) -> float:
    """Returns how long a step of a middling batch takes, in seconds, by which speeds are compared."""
    return profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=16, decode_kv_tokens=8_192)
