"""A circuit breaker per engine: an engine that answers its health check may still fail requests (Nygard, Release It!, 2007). Pure."""

from typing import Literal

FAILURES = 5
"""Different requests that fail in a row before the breaker opens."""
FIRST_WAIT_S = 1.0
"""How long no request is sent at first; doubled after each failed probe, up to `LONGEST_WAIT_S`."""
LONGEST_WAIT_S = 15.0
FAILED_KEPT = 64
"""Most failed requests that are remembered while a breaker is not closed."""

State = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Tracks the outcomes of the requests that an engine was given.

    While the breaker is closed, all requests are sent. After `FAILURES` in a row it opens, and no request is sent; `trip` opens it at once.
    After a while it is half open: one request is sent as a probe. Once its answer begins, the breaker is closed; until a request has been
    served whole, the next failure opens it again. The outcome of a request that was sent before the breaker last opened does not count,
    because it shows nothing about the engine's current state.

    The same request, identified by its fingerprint, counts once: a client that keeps sending a request that the engine cannot serve neither
    opens a breaker nor keeps it open.

    Attributes:
        changed_s: When it last opened, or became half open.
        failures: Number of different requests that failed in a row.
        detail: Why it last opened, as text for an operator.
        doubted: Whether no request has been served whole since it last opened.
        until_s: When it becomes half open again, while it is open.
    """

    __slots__ = ("_failed", "_wait_s", "changed_s", "detail", "doubted", "state", "until_s")

    def __init__(self) -> None:
        self.state: State = "closed"
        self.detail = ""
        self.doubted = False
        self.until_s = 0.0
        self._failed: set[int] = set()
        self.changed_s = float("-inf")
        self._wait_s = FIRST_WAIT_S

    @property
    def failures(self) -> int:
        """See the class."""
        return len(self._failed)

    def began(self, sent_s: float) -> bool:
        """Records that the answer to a request sent at `sent_s` has begun; its end may be minutes away. True if the state has changed."""
        if self.state != "half-open" or sent_s < self.changed_s:
            return False
        self.state = "closed"
        return True

    def succeeded(self, sent_s: float) -> bool:
        """Records that a request sent at `sent_s` was served. True if the state has changed."""
        if sent_s < self.changed_s:
            return False
        changed = self.state != "closed"
        self.state, self._wait_s, self.doubted = "closed", FIRST_WAIT_S, False
        self._failed.clear()
        return changed

    def failed(self, fingerprint: int, sent_s: float, reason: str, now_s: float) -> bool:
        """Records that a request sent at `sent_s` has failed. True if the state has changed."""
        if sent_s < self.changed_s or fingerprint in self._failed:
            return False
        if len(self._failed) < FAILED_KEPT:
            self._failed.add(fingerprint)
        if self.state == "closed" and self.failures < FAILURES and not self.doubted:
            return False
        in_a_row = f"{self.failures} requests in a row have failed, the last one" if self.failures > 1 else "a request has failed"
        return self.trip(f"{in_a_row}: {reason}", now_s)

    def trip(self, detail: str, now_s: float) -> bool:
        """Opens for the reason `detail`, whatever became of the requests. False if it is open already."""
        if self.state == "open":
            return False
        if self.doubted:
            self._wait_s = min(LONGEST_WAIT_S, 2.0 * self._wait_s)
        self.doubted = True
        self.state, self.detail, self.changed_s, self.until_s = "open", detail, now_s, now_s + self._wait_s
        return True

    def probe_when_due(self, now_s: float) -> bool:
        """Becomes half open when it is time. True if the state has changed."""
        if self.state != "open" or now_s < self.until_s:
            return False
        self.state, self.changed_s = "half-open", now_s
        return True
