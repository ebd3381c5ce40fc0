"""How much of the past is replayed where all of it would take too long. Pure.

A fleet of equal instances is a fleet of a few of them with their share of the requests: so part of the instances is replayed, with requests
drawn by their ids. Where one instance is left, or they are not alike, it is the newest part of the window.
"""

from collections.abc import Sequence
from zlib import crc32

from agents.meta.twin.replay import Plant
from agents.meta.twin.traffic import Asked

WHOLE = 1 << 32


def sampled(asked: Sequence[Asked], plants: Sequence[Plant], most: int) -> tuple[list[Asked], list[Plant]]:
    """At most about so many requests, and the instances that they are replayed on."""
    if len(asked) <= most:
        return list(asked), list(plants)
    if _alike(plants):
        kept = max(1, min(len(plants), -(-len(plants) * most // len(asked))))
        threshold = WHOLE * kept // len(plants)
        asked = [one for one in asked if crc32(one.request_id.encode()) < threshold]
        plants = plants[:kept]
    return list(asked[-most:]), list(plants)


def _alike(plants: Sequence[Plant]) -> bool:
    """Whether any of them may stand for the others: what they serve, and how many at once."""
    first = plants[0]
    return all(plant.models == first.models and plant.profile.kv_blocks == first.profile.kv_blocks for plant in plants)
