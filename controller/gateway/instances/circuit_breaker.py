"""Whether an engine that answers its health check serves too: a circuit breaker for each (Nygard, Release It!, 2007). Pure."""

from typing import Literal

FAILURES = 5
"""Different requests that fail one after the other before no more are sent."""
FIRST_WAIT_S = 1.0
"""How long none is sent at first; twice as long after each probe that fails, up to `LONGEST_WAIT_S`."""
LONGEST_WAIT_S = 15.0
KNOWN = 64
"""Failed requests that are told from others while a breaker is not closed."""

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Counts what became of the requests that an engine was given.

    Closed, all go. After `FAILURES` in a row it opens and none goes. After a while it is half open: one goes as a probe, and what becomes
    of it decides. What was sent before it opened last says nothing of how the engine is now, neither good nor bad.

    The same request again, by its fingerprint, counts once: a client that keeps on sending what the engine cannot serve neither opens a
    breaker nor keeps it open.

    Attributes:
        state: As above.
        failures: Different requests that failed in a row.
        reason: How the last one failed.
        until_s: When it is half open again, while it is open.
    """

    __slots__ = ("_known", "_opened_s", "_wait_s", "reason", "state", "until_s")

    def __init__(self) -> None:
        self.state: State = "closed"
        self.reason = ""
        self.until_s = 0.0
        self._known: set[int] = set()
        self._opened_s = float("-inf")
        self._wait_s = FIRST_WAIT_S

    @property
    def failures(self) -> int:
        """See the class."""
        return len(self._known)

    @property
    def detail(self) -> str:
        """Why no request goes, in words."""
        return f"{self.failures} requests in a row have failed, the last one: {self.reason}"

    def served(self, sent_s: float) -> bool:
        """A request that was sent at `sent_s` has been answered. True where the state is another now."""
        if sent_s < self._opened_s:
            return False
        changed = self.state != "closed"
        self.state, self._wait_s = "closed", FIRST_WAIT_S
        self._known.clear()
        return changed

    def failed(self, fingerprint: int, sent_s: float, reason: str, now_s: float) -> bool:
        """A request that was sent at `sent_s` has failed. True where the state is another now."""
        if sent_s < self._opened_s or fingerprint in self._known:
            return False
        if len(self._known) < KNOWN:
            self._known.add(fingerprint)
        self.reason = reason
        if self.state == "open" or (self.state == "closed" and self.failures < FAILURES):
            return False
        if self.state == "half-open":
            self._wait_s = min(LONGEST_WAIT_S, 2.0 * self._wait_s)
        self.state, self._opened_s, self.until_s = "open", now_s, now_s + self._wait_s
        return True

    def look(self, now_s: float) -> bool:
        """Half opens when it is time. True where the state is another now."""
        if self.state != "open" or now_s < self.until_s:
            return False
        self.state, self._opened_s = "half-open", now_s
        return True
