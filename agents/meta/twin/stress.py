"""Replays the same window under more load for the leading candidate: a policy that wins only at the current load is not robust. Pure.

A replay ends with its window, and a backlog that has just begun to build has cost nothing by then. A window that is too narrow for the load
looks as good as any until it is full, and even better, because the running requests are fast. More load makes the backlog visible.
"""

from zlib import crc32

from msgspec.structs import replace

from hmas.agents.meta.twin.replay import ReplayScenario

PRESSURE = 0.25
"""Share of the requests that are duplicated."""
_THRESHOLD = int((1 << 32) * PRESSURE)


def stress_replayed(world: ReplayScenario) -> ReplayScenario:
    """The same scenario with a share `PRESSURE` of the requests from `from_s` on duplicated: always the same ones, at the same time."""
    more = [
        replace(one, request=replace(one.request, id=f"{one.request.id}*"), good=None)
        for one in world.asked
        if one.request.arrival_s >= world.from_s and crc32(one.request.id.encode()[::-1]) < _THRESHOLD
    ]
    return replace(world, asked=tuple(sorted((*world.asked, *more), key=lambda one: one.request.arrival_s)))
