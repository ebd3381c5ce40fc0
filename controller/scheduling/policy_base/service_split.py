"""Where short requests end and long ones begin."""

from collections import deque
from collections.abc import Sequence

FOLLOWS_TRAFFIC = 0.0
"""The threshold in milliseconds that means no fixed threshold: the split follows a quantile."""
SLOW_QUANTILE = 0.8
"""Default quantile of recent total times above which a request counts as long."""
_KEEP = 512
_REFRESH = 32
_LEAST = 32


class ServiceSplit:
    """The threshold on T_tot between the fast and the slow side (H-MAS 3.5).

    The threshold is fixed if one is given; otherwise it is a quantile of the last 512 requests, updated every 32. Until 32 requests have
    been seen, no request counts as long, because nothing is known about the traffic yet.

    Attributes:
        parameters: The configuration: the fixed threshold in milliseconds, 0 for none, and the quantile.
        threshold_ms: The active split.
    """

    __slots__ = ("_fixed", "_quantile", "_recent", "_since", "parameters", "threshold_ms")

    def __init__(self, threshold_ms: float, quantile: float) -> None:
        self.parameters = (threshold_ms, quantile)
        self._fixed = threshold_ms > 0
        self._quantile = quantile
        self._recent: deque[float] = deque(maxlen=_KEEP)
        self._since = 0
        self.threshold_ms = threshold_ms if self._fixed else float("inf")

    def learn(self, total_ms: float) -> None:
        """Learns from one request's T_tot."""
        if self._fixed:
            return
        self._recent.append(total_ms)
        self._since += 1
        if self._since >= _REFRESH:
            self._refresh()

    def learn_all(self, totals_ms: Sequence[float]) -> None:
        """Learns from many at once: the last 512 of them."""
        if self._fixed:
            return
        self._recent.extend(totals_ms[-_KEEP:])
        self._refresh()

    def is_long(self, total_ms: float) -> bool:
        """Whether a request belongs on the slow side."""
        return total_ms > self.threshold_ms

    def _refresh(self) -> None:
        self._since = 0
        if len(self._recent) >= _LEAST:
            ordered = sorted(self._recent)
            self.threshold_ms = ordered[min(len(ordered) - 1, int(self._quantile * len(ordered)))]
