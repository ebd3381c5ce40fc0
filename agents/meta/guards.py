"""What holds the selector back (H-MAS C.2): emergency bypass and the rollback window. Pure."""

from dataclasses import dataclass

from controller.core.messages import ShortView

CLEAR_S = 10.0
"""Without an anomaly for this long, the bypass ends."""
WATCH_SAMPLES = 20
"""Ended requests that a guard window must have seen before Eq. 12 is believed."""
TTFT_FLOOR_MS = 50.0
VIOLATION_FLOOR = 0.05
"""Below these a ratio to the baseline says nothing: 2 ms after 1 ms is no harm."""


class BypassGuard:
    """Emergency bypass: on while the telemetry speaks of a stuck or broken control loop, and for a while after.

    High load alone is no ground: FCFS without bounds is what collapses under it. The grounds are the anomalies that qos names
    (counters that do not add up, requests waiting before idle engines, a window full of requests the engine does not have).
    """

    def __init__(self) -> None:
        self.active = False
        self.reason = ""
        self._last_s = float("-inf")

    def observe(self, view: ShortView, now_s: float) -> bool:
        """Takes a view; whether the bypass is now on."""
        if view.anomalies:
            self._last_s = now_s
            self.active = True
            self.reason = f"the control loop's telemetry contradicts itself: {', '.join(view.anomalies)}"
        elif self.active and now_s - self._last_s >= CLEAR_S:
            self.active = False
            self.reason = f"no anomaly for {CLEAR_S:.0f} s"
        return self.active


@dataclass(frozen=True, slots=True)
class Baseline:
    """How it went right before a switch: TTFT p99, violation rate, and the load that this stands on.

    Attributes:
        arrival_rps: A burst that starts after the switch worsens both figures under any policy; they are compared per arrival rate.
    """

    ttft_p99_ms: float
    violation_rate: float
    arrival_rps: float
    ended: int


def baseline_of(view: ShortView) -> Baseline:
    """The baseline that a view gives."""
    return Baseline(view.ttft_ms.p99, view.violation_rate, view.arrival_rps, view.ended)


@dataclass(slots=True)
class RollbackWindow:
    """Watches one switch for `until_s` (Eq. 12): back to the last stable policy where TTFT p99 or violations exceed rho times before."""

    previous: str
    switched_to: str
    before: Baseline
    since_s: float
    until_s: float
    ratio: float

    def verdict(self, view: ShortView, now_s: float) -> str:
        """Why the switch is to be undone; empty where it is not.

        Only figures whose window lies wholly after the switch count, and only with enough requests on both sides.
        """
        if now_s - self.since_s < view.window_s or min(view.ended, self.before.ended) < WATCH_SAMPLES:
            return ""
        # Load that has grown since explains a part of any worsening: the allowance grows with it.
        growth = max(1.0, view.arrival_rps / self.before.arrival_rps) if self.before.arrival_rps > 0 else 1.0
        allowed = self.ratio * growth
        ttft_before = max(self.before.ttft_p99_ms, TTFT_FLOOR_MS)
        if view.ttft_ms.p99 > allowed * ttft_before:
            return f"TTFT p99 is {view.ttft_ms.p99:.0f} ms, more than {allowed:.2f} times the {ttft_before:.0f} ms before the switch"
        violations_before = max(self.before.violation_rate, VIOLATION_FLOOR)
        if view.violation_rate > allowed * violations_before:
            return f"{view.violation_rate:.0%} of requests miss a target, more than {allowed:.2f} times the {violations_before:.0%} before"
        return ""
