"""The same window under more load, for who leads: what wins only as long as no more comes is no place to be. Pure.

A replay ends with the window, and what has only begun to pile up by then has cost nothing yet: a window that is too narrow for what comes
looks as good as any until it has filled up, and better, for those that run are fast. Under more load than came it shows.
"""

from zlib import crc32

from msgspec.structs import replace

from hmas.agents.meta.twin.replay import ReplayScenario

PRESSURE = 0.25
"""Share of the requests that come twice."""
_THRESHOLD = int((1 << 32) * PRESSURE)


def stress_replayed(world: ReplayScenario) -> ReplayScenario:
    """The same world with `PRESSURE` more requests from `from_s` on: always the same ones, each at once with its like."""
    more = [
        replace(one, request=replace(one.request, id=f"{one.request.id}*"), good=None)
        for one in world.asked
        if one.request.arrival_s >= world.from_s and crc32(one.request.id.encode()[::-1]) < _THRESHOLD
    ]
    return replace(world, asked=tuple(sorted((*world.asked, *more), key=lambda one: one.request.arrival_s)))
