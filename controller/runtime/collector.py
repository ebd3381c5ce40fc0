"""Schedules Python's garbage collection for moments when no request is served."""

import gc

QUIET_S = 10.0
WHOLE_S = 120.0
LATEST_S = 600.0
_YOUNG, _MIDDLE, _NEVER = 700, 5, 1_000_000_000
"""The first is Python's default; the middle generation is collected after 4,200 objects instead of 7,700, which takes 1 ms."""


class Collector:
    """Postpones the full collection to an idle moment, in a process whose event loop must not be blocked.

    A full collection takes 0.3 us per object of the oldest generation: 200 ms with 100,000 requests in the queue, which are about 600,000
    objects of the scheduler alone. By default it starts when the number of objects has grown by a quarter. The two young generations take
    about a millisecond. Nearly all objects here are freed by their reference count, so a full collection finds little: cycles of exceptions
    and tasks.

    Therefore the objects that exist when the process begins to serve are frozen, and no full collection starts by itself. `look` is called
    often. If no request is in progress, it collects the objects made since its last collection, and every two minutes the whole heap (a
    whole-heap collection takes 50 ms, nearly all of it for modules, which was half of an idle gateway's CPU). After ten minutes it collects
    in any case, so that garbage stays bounded in a process that is never idle.
    """

    def __init__(self, now_s: float) -> None:
        """Freezes the existing objects and takes over. Call it once per process, when the process is ready to serve."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        self._last_s = self._whole_s = now_s

    def look(self, now_s: float, *, quiet: bool) -> bool:
        """Collects if it is time, and returns whether it did. `quiet`: no request is in progress that a collection could delay."""
        since_s = now_s - self._last_s
        if since_s < QUIET_S or (not quiet and since_s < LATEST_S):
            return False
        if not quiet or now_s - self._whole_s >= WHOLE_S:
            gc.unfreeze()
            self._whole_s = now_s
        gc.collect()
        gc.freeze()
        self._last_s = now_s
        return True
