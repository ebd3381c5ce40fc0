"""How an instance that has failed, or has just joined, gets requests again: few at first, and more as it answers. Pure."""

import math

FIRST = 4
"""Requests that it gets before it has answered any."""
LONGEST_S = 10.0
"""How long the limit holds at most: an instance may answer nothing for long and still be well, as with long answers in one piece."""
OUTAGE_S = 2.0
"""An engine that has not answered for so long was away; a shorter gap may be one lost connection, or one request that it cannot serve."""


class Recovery:
    """The most requests in flight on an instance while it shows that it serves.

    While its circuit is half open, that is one more than it had. Once it serves again, it is `FIRST` more, and two more with every first
    token: one in place of the request that has begun, and one beyond. So the number of those that wait for their first token doubles each
    time, and a queue that has grown meanwhile does not fall on it at once. The limit ends at the window, or after `LONGEST_S`.

    Attributes:
        limit: Most requests in flight; infinite without a limit.
    """

    __slots__ = ("_down_s", "_growing", "_since_s", "limit")

    def __init__(self) -> None:
        self.limit = math.inf
        self._growing = False
        self._down_s = math.inf
        self._since_s: float | None = None

    @property
    def probed(self) -> bool:
        """Whether one request shows whether it serves at all."""
        return not self._growing and self.limit < math.inf

    def probe(self, in_flight: int) -> None:
        """Lets one more request go there, and no second one."""
        self.limit, self._growing = in_flight + 1, False

    def begin(self, in_flight: int) -> None:
        """It serves, again or for the first time."""
        self.limit, self._growing, self._since_s = in_flight + FIRST, True, None

    def answered(self, window: int) -> bool:
        """One of its requests has its first token. Returns whether the limit has changed."""
        if not self._growing:
            return False
        self.limit += 2
        if self.limit >= window:
            self._end()
        return True

    def returns(self, now_s: float, *, healthy: bool) -> bool:
        """Its engine has been read at `now_s`. Returns whether it is back after an outage."""
        down_s = self._down_s
        self._down_s = math.inf if healthy else min(down_s, now_s)
        return healthy and now_s - down_s > OUTAGE_S

    def seen(self, now_s: float) -> None:
        """Its engine has answered a reading at `now_s`."""
        if not self._growing:
            return
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= LONGEST_S:
            self._end()

    def _end(self) -> None:
        self.limit, self._growing = math.inf, False
