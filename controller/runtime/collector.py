"""When Python looks for cycles of dead objects: not in the middle of serving."""

import gc

QUIET_S = 10.0
WHOLE_S = 120.0
LATEST_S = 600.0
_YOUNG, _MIDDLE, _NEVER = 700, 5, 1_000_000_000
"""Python's own first threshold; the middle generation is looked through after 4,200 objects instead of 7,700: 1 ms."""


class Collector:
    """Puts the whole-heap collection off to a quiet moment, in a process whose loop must not be held up.

    The collector's oldest generation is looked through as a whole, 0.3 us an object: 200 ms with 100,000 requests in the queue,
    which are some 600,000 objects of the scheduler alone, and it comes by itself when that number has grown by a quarter. The two
    young generations take about a millisecond. Nearly all objects here die by their reference count, so
    what a full collection finds is little: cycles out of exceptions and tasks.

    So: what the process has built by the time it serves is frozen and never looked at again; full collections never come by
    themselves; `look`, called often, looks at what has been made since the last time when nothing is under way, at the whole heap
    every two minutes of those (50 ms, nearly all of them for modules, was half of an idle gateway's CPU), and after ten minutes in
    any case, so that what there is of garbage stays bounded even where it is never quiet.
    """

    def __init__(self, now_s: float) -> None:
        """Freezes what there is and takes over. To be called once a process, when it is ready to serve."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        self._last_s = self._whole_s = now_s

    def look(self, now_s: float, *, quiet: bool) -> bool:
        """Makes a collection where it is time; True where it has. `quiet`: nothing is under way that it could hold up."""
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

    def age(self) -> None:
        """All that has been made by now is old: the next full collection looks at it, not the young ones."""
        gc.freeze()
