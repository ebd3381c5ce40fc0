"""Meta's guards (H-MAS C.2): the emergency bypass and the rollback window of Eq. 12. Pure.

The bypass is for a broken control loop, not for load. FCFS without bounds is the safe baseline when the figures behind every decision are
not reliable. Under plain overload it is the one policy that serves no request in time, so load alone never triggers the bypass.
`ShortView.anomalies` trigger it: counters that do not add up, requests that wait before idle engines, windows full of requests that no
engine has, impossible figures. Engines that are down do not trigger it: there is nothing to bypass to, and an engine that has just come
back must not receive the whole backlog at once; decisions are held until an engine is healthy. The gateway handles missing decisions:
without fresh views meta posts nothing, and the gateway returns to its configured policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from hmas.agents.meta.limits import Limits
from hmas.controller.core.messages import LongView, ShortView

SAMPLES_MIN = 20
"""Eq. 12 is not evaluated on fewer requests: on a short view with fewer, it is on all since the switch."""
FEW_ENOUGH = 2 * SAMPLES_MIN
"""Requests since a switch that suffice to judge it where few come."""
FEW_LONGER = 4.0
"""Until there are so many, a switch is watched this many times as long at most."""
FEW_SURE = 3.0
"""Standard errors by which the violation rate of few requests must exceed the earlier one, beside rho times it."""
VIOLATION_FLOOR = 0.05
"""Lower bound of the violation rate before a switch: a multiple of almost zero would be no limit."""
TTFT_FLOOR_MS = 100.0
STRIKES = 5
"""Consecutive short views that must show a failure: about one second."""
LOAD_MAX = 3.0
"""Upper bound of the factor by which a rise of the arrival rate relaxes the limits."""
CLEAR_S = 10.0
"""A bypass ends after this long without an anomaly."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The state right before a switch: TTFT p99, violation rate, arrival rate, age of the oldest waiting request, usable instances."""

    ttft_ms_p99: float
    violation_rate: float
    arrival_rps: float
    oldest_wait_ms: float
    usable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why Eq. 12 requires a rollback, with the figures."""

    reason: str
    evidence: dict[str, float]


def baseline(short: Sequence[ShortView], long: LongView) -> Baseline:
    """Returns (TTFT99_pre, nu_pre) of Eq. 12: the worse of the recent short views and the long view.

    A switch often happens in the lull after the burst that caused it. Measured against the lull alone, the next burst would condemn any
    policy; the long view contains bursts.
    """
    judged = [view for view in short if view.ended >= SAMPLES_MIN]
    return Baseline(
        ttft_ms_p99=max(seen.p99 if seen.count >= SAMPLES_MIN else 0.0 for seen in (long.ttft_ms, *(view.ttft_ms for view in judged))),
        violation_rate=max([long.violation_rate, *(view.violation_rate for view in judged)]),
        arrival_rps=max([long.arrival_rps, *(view.arrival_rps for view in short)]),
        oldest_wait_ms=max((view.oldest_wait_ms for view in short), default=0.0),
        usable=usable(short[-1]) if short else frozenset(),
    )


class RollbackWindow:
    """Watches the time after a switch.

    Args:
        before: State right before the switch.
        ratio: Rho of Eq. 12, more than 1.
        from_s: Time from which the short window holds no requests from before the switch.
        until_s: Time at which the switch counts as good; `longest_s`: the same where few requests end, `until_s` by default.
    """

    def __init__(self, before: Baseline, *, ratio: float, from_s: float, until_s: float, longest_s: float = 0.0) -> None:
        self.before = before
        self.until_s = self._planned_s = until_s
        self.ratio = ratio
        self._from_s = from_s
        self._longest_s = longest_s
        self._strikes = 0
        self._counted = _Counted()

    def observe(self, view: ShortView, now_s: float) -> Verdict | None:
        """Evaluates Eq. 12 on one short view: TTFT99 > rho TTFT99_pre or nu > rho nu_pre, in STRIKES views in a row.

        Rho grows with the arrival rate relative to before the switch, up to LOAD_MAX: a switch just before a burst looks bad for no fault
        of its own. The tail limit also grows with the age of the oldest waiting request, because requests that had waited long before the
        switch end after it. A longer tail with fewer misses is no failure: an order that puts some requests last does so on purpose. Where
        few requests stream, there is no tail to compare. While an instance that was usable is not, what goes wrong says nothing about the
        switch.

        Where fewer requests end than a view needs, all since the switch are judged together, by their violation rate alone, for longer.
        """
        if now_s < self._from_s:
            return None
        if not self.before.usable <= usable(view):
            self._strikes, self._counted = 0, _Counted()
            return None
        is_more = self._counted.add(view, now_s)
        if view.ended < SAMPLES_MIN:
            return self._judge_few(self._counted) if is_more else None
        if now_s >= self._planned_s:
            # It was watched for longer because few requests came. What more of them meet now is no longer the switch's.
            self.until_s = now_s
            return None
        rho = self._rho(view.arrival_rps)
        rate_limit = rho * max(VIOLATION_FLOOR, self.before.violation_rate)
        aged = min(LOAD_MAX, max(1.0, view.oldest_wait_ms / max(1.0, self.before.oldest_wait_ms)))
        tail_limit = rho * aged * max(TTFT_FLOOR_MS, self.before.ttft_ms_p99)
        too_many = view.violation_rate > rate_limit
        known = view.ttft_ms.count >= SAMPLES_MIN and self.before.ttft_ms_p99 > 0.0
        too_late = known and view.ttft_ms.p99 > tail_limit and view.violation_rate >= self.before.violation_rate
        self._strikes = self._strikes + 1 if too_many or too_late else 0
        if self._strikes < STRIKES:
            return None
        figures = (
            f"violation rate {view.violation_rate:.0%} against {self.before.violation_rate:.0%} before, "
            f"TTFT p99 {view.ttft_ms.p99:.0f} ms against {self.before.ttft_ms_p99:.0f} ms, limit {rho:.2f} times"
        )
        evidence = {
            "violation_rate": view.violation_rate,
            "violation_rate_before": self.before.violation_rate,
            "ttft_ms_p99": view.ttft_ms.p99,
            "ttft_ms_p99_before": self.before.ttft_ms_p99,
            "rho": rho,
        }
        return Verdict(figures, evidence)

    def _rho(self, arrival_rps: float) -> float:
        before_rps = self.before.arrival_rps
        return self.ratio * (min(LOAD_MAX, max(1.0, arrival_rps / before_rps)) if before_rps > 0 else LOAD_MAX)

    def _judge_few(self, counted: "_Counted") -> Verdict | None:
        settled = counted.settled
        if settled < FEW_ENOUGH:
            self.until_s = max(self.until_s, min(self._longest_s, counted.next_s))
        if settled < SAMPLES_MIN:
            return None
        rate, rho, before = counted.missed / settled, self._rho(counted.arrival_rps), max(VIOLATION_FLOOR, self.before.violation_rate)
        if rate <= max(rho * before, before + FEW_SURE * sqrt(before * max(0.0, 1.0 - before) / settled)):
            return None
        figures = f"violation rate {rate:.0%} of {settled:.0f} requests since then, against {self.before.violation_rate:.0%} before"
        evidence = {"violation_rate": rate, "violation_rate_before": self.before.violation_rate, "rho": rho, "requests": settled}
        return Verdict(f"{figures}, limit {rho:.2f} times", evidence)


class _Counted:
    """What has been settled since a switch, of short views that follow each other without overlap.

    Attributes:
        settled: Requests that ended or became overdue in the queue; `missed`: those of them that missed a target.
        arrival_rps: Mean arrival rate.
        next_s: When the next view counts.
    """

    def __init__(self) -> None:
        self.settled = self.missed = self.arrival_rps = 0.0
        self.next_s = -inf
        self._views = self._overdue = 0

    def add(self, view: ShortView, now_s: float) -> bool:
        """Takes a view; returns whether it counts."""
        if now_s < self.next_s:
            return False
        # Before the first view the growth is not known.
        settled = max(0, view.ended + (view.overdue - self._overdue if self._views else 0))
        self.settled += settled
        self.missed += view.violation_rate * settled
        self._views += 1
        self.arrival_rps += (view.arrival_rps - self.arrival_rps) / self._views
        self._overdue, self.next_s = view.overdue, now_s + view.window_s
        return True


class BypassGuard:
    """The emergency bypass xi: on while the control loop is broken."""

    def __init__(self) -> None:
        self.active = False
        self._seen_s = float("-inf")
        self.names: tuple[str, ...] = ()

    def observe(self, view: ShortView, now_s: float) -> bool:
        """Takes a short view; returns True if the bypass has just gone on or off."""
        signs = self.signs(view)
        if signs:
            self._seen_s = now_s
            self.names = signs
        wanted = bool(signs) or (self.active and 0 <= now_s - self._seen_s < CLEAR_S)
        changed = wanted != self.active
        self.active = wanted
        return changed

    def signs(self, view: ShortView) -> tuple[str, ...]:
        """Returns what calls for the bypass now; empty if nothing does."""
        return tuple(sorted(view.anomalies))

    def resume(self, seen_s: float) -> None:
        """Resumes a bypass from before a restart, last active at `seen_s`, until its time is up."""
        self.active = True
        self._seen_s = seen_s


def watched(short: Sequence[ShortView], long: LongView, limits: Limits, settle_s: float, now_s: float) -> RollbackWindow:
    """Returns the window that watches a switch made now."""
    before = baseline(recent(short, now_s, settle_s), long)
    span_s = limits.rollback_window_s
    longest_s = now_s + FEW_LONGER * span_s
    return RollbackWindow(before, ratio=limits.rollback_ratio, from_s=now_s + settle_s, until_s=now_s + span_s, longest_s=longest_s)


@dataclass(frozen=True, slots=True)
class GuardSet:
    """What makes meta's bypass guard and the window that watches a switch; the defaults are this product's own.

    Attributes:
        trusting: Whether every selector is followed without a judge, as the paper's language model is.
    """

    trusting: bool = False
    bypass: Callable[[], BypassGuard] = BypassGuard
    watched: Callable[[Sequence[ShortView], LongView, Limits, float, float], RollbackWindow] = watched


def has_engine(view: ShortView) -> bool:
    """Whether any engine is healthy, as far as the view tells."""
    return not view.instances or any(instance.engine is None or instance.engine.healthy for instance in view.instances)


def usable(view: ShortView) -> frozenset[str]:
    """Names of the instances that new requests may go to."""
    return frozenset(instance.name for instance in view.instances if instance.usable)


def recent(views: Sequence[ShortView], now_s: float, span_s: float) -> list[ShortView]:
    """Returns the views of the last `span_s` seconds."""
    return [view for view in views if 0 <= now_s - view.sent_s <= span_s]
