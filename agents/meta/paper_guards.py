"""The paper's guards as printed (C.2): Eq. 12, and the bypass under extreme overload or instability. Pure."""

from collections.abc import Sequence

from hmas.agents.meta.guards import Baseline, BypassGuard, GuardSet, RollbackWindow, Verdict
from hmas.agents.meta.limits import Limits
from hmas.controller.core.messages import LongView, ShortView

EXTREME_RATE = 0.9
"""Share of misses, while the queue grows, that is extreme overload. The paper prints no condition."""
EXTREME_LEAST = 20
"""Fewest settled requests on which it counts."""


def rolls_back(ttft_99: float, rate: float, ttft_99_pre: float, rate_pre: float, rho: float) -> bool:
    """Eq. 12: TTFT_99 > rho TTFT_99_pre or nu > rho nu_pre."""
    return ttft_99 > rho * ttft_99_pre or rate > rho * rate_pre


def is_extreme(view: ShortView) -> bool:
    """Whether the system is in extreme overload or severe instability."""
    overloaded = view.ended >= EXTREME_LEAST and view.violation_rate >= EXTREME_RATE and view.queue_slope > 0.0
    return bool(view.anomalies) or overloaded


class PaperRollback(RollbackWindow):
    """Watches the guard window by Eq. 12, from the switch on, with no allowance of any kind."""

    def observe(self, view: ShortView, now_s: float) -> Verdict | None:  # noqa: ARG002 - as in the base class
        """Evaluates Eq. 12 on one short view in which requests have ended."""
        before, rho = self.before, self.ratio
        if not view.ended or not rolls_back(view.ttft_ms.p99, view.violation_rate, before.ttft_ms_p99, before.violation_rate, rho):
            return None
        figures = (
            f"violation rate {view.violation_rate:.0%} against {before.violation_rate:.0%} before, "
            f"TTFT p99 {view.ttft_ms.p99:.0f} ms against {before.ttft_ms_p99:.0f} ms, limit {rho:.2f} times (Eq. 12)"
        )
        return Verdict(figures, {"violation_rate": view.violation_rate, "ttft_ms_p99": view.ttft_ms.p99, "rho": rho})


class PaperBypass(BypassGuard):
    """The bypass on anomalies and on extreme overload; off once neither was seen for `CLEAR_S`."""

    def signs(self, view: ShortView) -> tuple[str, ...]:
        """The anomalies, and `extreme overload`."""
        return (*sorted(view.anomalies), *(("extreme overload",) if is_extreme(view) and not view.anomalies else ()))


def watched(short: Sequence[ShortView], long: LongView, limits: Limits, _settle_s: float, now_s: float) -> RollbackWindow:
    """The guard window, with the baseline measured immediately before the switch."""
    last = short[-1] if short else long
    before = Baseline(last.ttft_ms.p99, last.violation_rate, last.arrival_rps, 0.0)
    return PaperRollback(before, ratio=limits.rollback_ratio, from_s=now_s, until_s=now_s + limits.rollback_window_s)


PAPER_GUARDS = GuardSet(trusting=True, bypass=PaperBypass, watched=watched)
