"""The QoS agent's model: telemetry in, V_short and V_long out (H-MAS 3.3). Pure and bounded.

Time is the telemetry's own: windows end at the newest `sent_s` seen, so that a slow bus or a late batch shifts no window.

Utilization of an instance is u = max(tpot_pressure, KV use). An engine behind an HTTP door has no honest GPU counter, and a busy GPU does
not say whether one more request would still be served in time. TPOT over its SLO and the share of the KV cache in use are the two ways in
which an instance is full, and both read 1 where it is exactly full. Where the engine does not report KV use, the share of the admission
fence that calibrated upper bounds take stands in.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from agents.qos.anomalies import AnomalyWatch
from agents.qos.long_view import build_long_view
from agents.qos.outcomes import asked_tokens, served_tokens, shares
from agents.qos.windows import RecentIds, TimeWindow, slope, summarize
from controller.core.messages import Completion, InstanceView, LongView, ShortView, SystemSnapshot
from controller.core.objectives import mismatch

COMPLETIONS_MAX = 20_000
READINGS_MAX = 4_096
RECENT_MAX = 256
"""Completions in one short view."""
BACKLOG_MAX = 4_096
"""Completions that wait for the next short view; the oldest go first."""
ENGINE_FRESH_S = 5.0
"""Age beyond which an engine's own figures no longer count."""
SKEW_MAX_S = 3_600.0
"""Distance between a message's time and this process's beyond which the message's own time is not believed."""
MISMATCH_MAX = 100.0
"""Ceiling of Eq. 7, which is without one while nothing at all is served."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment. `prompt_tokens` and `output_tokens` are summed over engines, free of engine restarts."""

    at_s: float
    queued: int
    overdue: int
    arrived: int
    prompt_tokens: int
    output_tokens: int
    engines_speak: bool


class QosModel:
    """State of the QoS agent.

    Args:
        short_window_s: Span of V_short's latency figures.
        long_window_s: Span of V_long.
        short_period_s: Least time between two short views.
        long_period_s: Least time between two long views.
        weights: Tenants' weights for the fairness index; 1 for others.
    """

    def __init__(
        self,
        *,
        short_window_s: float = 5.0,
        long_window_s: float = 60.0,
        short_period_s: float = 0.2,
        long_period_s: float = 5.0,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._short_window_s = short_window_s
        self._long_window_s = max(long_window_s, short_window_s)
        self._short_period_s = short_period_s
        self._long_period_s = long_period_s
        self._weights = dict(weights or {})
        self._completions: TimeWindow[Completion] = TimeWindow(self._long_window_s, COMPLETIONS_MAX)
        self._readings: TimeWindow[Reading] = TimeWindow(self._long_window_s, READINGS_MAX)
        self._mismatches: TimeWindow[float] = TimeWindow(self._long_window_s, READINGS_MAX)
        self._seen = RecentIds(COMPLETIONS_MAX)
        self._replayed = RecentIds(COMPLETIONS_MAX)
        self._backlog: deque[Completion] = deque(maxlen=BACKLOG_MAX)
        self._watch = AnomalyWatch()
        self._counters: dict[str, tuple[int, int]] = {}
        self._served = (0, 0)
        self._gateway = ""
        self._arrived = 0
        self._now_s = float("-inf")
        self._short_s = self._long_s = self._mismatch_s = float("-inf")

    def replay(self, message: Completion | SystemSnapshot) -> None:
        """Takes a message from before a restart: fills the windows, posts nothing, and hands no completion on a second time."""
        if isinstance(message, Completion):
            self._replayed.add(message.request_id)
            self._remember(message, message.sent_s)
        else:
            self._advance(message, message.sent_s)

    def complete(self, completion: Completion, now_s: float) -> None:
        """Takes the end of a request; one that was delivered before is ignored."""
        if self._replayed.discard(completion.request_id) or self._remember(completion, now_s):
            self._backlog.append(completion)

    def observe(self, snapshot: SystemSnapshot, now_s: float) -> list[ShortView | LongView]:
        """Takes a system snapshot and returns the views that are due."""
        anomalies = self._advance(snapshot, now_s)
        views: list[ShortView | LongView] = []
        if anomalies is None:
            return views
        if self._is_due(self._short_s, self._short_period_s):
            self._short_s = self._now_s
            views.append(self._short_view(snapshot, anomalies, now_s))
        if self._is_due(self._long_s, self._long_period_s):
            self._long_s = self._now_s
            views.append(
                build_long_view(
                    snapshot,
                    self._completions.all(),
                    [(reading.at_s, reading.arrived) for reading in self._readings.all()],
                    self._mismatches.all(),
                    more_overdue=_more_overdue(self._readings.all()),
                    window_s=self._span_s(self._long_window_s),
                    weights=self._weights,
                    now_s=now_s,
                )
            )
        return views

    def _is_due(self, last_s: float, period_s: float) -> bool:
        # Snapshots come on the gateway's own tick: half of a percent keeps a period that is a whole number of ticks from slipping by one.
        return self._now_s >= last_s + period_s * 0.995

    def _time_of(self, sent_s: float, now_s: float) -> float:
        return sent_s if abs(sent_s - now_s) <= SKEW_MAX_S else now_s

    def _remember(self, completion: Completion, now_s: float) -> bool:
        """Puts a completion into its window; False for one that is already there."""
        if not self._seen.add(completion.request_id):
            return False
        at_s = self._time_of(completion.sent_s, now_s)
        if at_s >= self._now_s - self._long_window_s:
            # One that runs ahead of the last snapshot counts from now: a stray time in the future must not outlive the window.
            self._completions.add(min(at_s, max(self._now_s, now_s)), completion)
        return True

    def _advance(self, snapshot: SystemSnapshot, now_s: float) -> list[str] | None:
        """Moves time and windows on and returns the anomalies in force; None for a snapshot that came out of order."""
        at_s = self._time_of(snapshot.sent_s, now_s)
        went_back = at_s < self._now_s - self._short_window_s
        if at_s < self._now_s and not went_back and snapshot.gateway == self._gateway:
            return None
        if went_back:
            self._completions.clear()
        if went_back or snapshot.gateway != self._gateway or snapshot.arrived_total < self._arrived:
            self._forget_counters()
        self._gateway = snapshot.gateway
        self._arrived = snapshot.arrived_total
        self._now_s = at_s
        self._count_engines(snapshot)
        speak = bool(snapshot.instances) and all(_has_kv_usage(view, at_s) for view in snapshot.instances)
        self._readings.add(at_s, Reading(at_s, snapshot.queued, snapshot.overdue, snapshot.arrived_total, *self._served, speak))
        for window in (self._completions, self._readings, self._mismatches):
            window.prune(at_s)
        if self._is_due(self._mismatch_s, 1.0):
            self._mismatch_s = at_s
            self._mismatches.add(at_s, self._mismatch())
        return self._watch.observe(snapshot, at_s)

    def _forget_counters(self) -> None:
        """Another gateway process speaks, or its clock has gone back: its counters start anew."""
        self._readings.clear()
        self._mismatches.clear()
        self._watch.reset()
        self._short_s = self._long_s = self._mismatch_s = float("-inf")

    def _count_engines(self, snapshot: SystemSnapshot) -> None:
        """Adds what each engine has done since its last snapshot; a counter that went back belongs to a restarted engine."""
        prompt, output = self._served
        counters: dict[str, tuple[int, int]] = {}
        for view in snapshot.instances:
            if view.engine is None:
                continue
            new = (view.engine.prompt_tokens_total, view.engine.generation_tokens_total)
            old = self._counters.get(view.name, new)
            base = old if new[0] >= old[0] and new[1] >= old[1] else (0, 0)
            prompt += max(0, new[0] - base[0])
            output += max(0, new[1] - base[1])
            counters[view.name] = new
        self._served = (prompt, output)
        self._counters = counters

    def _span_s(self, window_s: float) -> float:
        """How much of a window has been watched, at least a second."""
        readings = self._readings.all()
        return max(1.0, min(window_s, self._now_s - readings[0].at_s)) if readings else 1.0

    def _rates(self) -> tuple[float, float, float, bool]:
        """Over the short window: arrivals/s, served tokens/s, output tokens/s, and whether the engines themselves counted."""
        readings = self._readings.since(self._now_s - self._short_window_s)
        span_s = self._span_s(self._short_window_s)
        first, last = readings[0], readings[-1]
        arrival_rps = (last.arrived - first.arrived) / span_s
        if all(reading.engines_speak for reading in readings):
            prompt, output = last.prompt_tokens - first.prompt_tokens, last.output_tokens - first.output_tokens
            return arrival_rps, (prompt + output) / span_s, output / span_s, True
        ended = self._completions.since(self._now_s - self._short_window_s)
        served, output = sum(served_tokens(c) for c in ended), sum(max(0, c.output_tokens) for c in ended)
        return arrival_rps, served / span_s, output / span_s, False

    def _mismatch(self) -> float:
        """Eq. 7 over the short window. Demand is arrivals times the mean demand of the requests that ended within the long window."""
        ended = self._completions.all()
        demand = sum(asked_tokens(c) for c in ended) / len(ended) if ended else 0.0
        arrival_rps, served_tps, _, _ = self._rates()
        return min(MISMATCH_MAX, mismatch(arrival_rps * demand, served_tps))

    def _short_view(self, snapshot: SystemSnapshot, anomalies: list[str], now_s: float) -> ShortView:
        ended = self._completions.since(self._now_s - self._short_window_s)
        readings = self._readings.since(self._now_s - self._short_window_s)
        missed = shares(ended, _more_overdue(readings))
        span_s = self._span_s(self._short_window_s)
        arrival_rps, _, output_tps, counted = self._rates()
        queue = [(r.at_s, float(r.queued)) for r in readings]
        recent = [self._backlog.popleft() for _ in range(min(RECENT_MAX, len(self._backlog)))]
        fallbacks = [f"kv_usage:{view.name}" for view in snapshot.instances if not _has_kv_usage(view, self._now_s)]
        return ShortView(
            sent_s=now_s,
            window_s=self._short_window_s,
            policy=snapshot.policy,
            queued=max(0, snapshot.queued),
            oldest_wait_ms=max(0.0, snapshot.oldest_wait_ms),
            queue_slope=slope(queue),
            ended=missed.judged,
            ttft_ms=summarize(c.ttft_ms for c in ended),
            tpot_ms=summarize(c.tpot_ms for c in ended),
            violation_rate=missed.missed,
            ttft_violation_rate=missed.ttft,
            tpot_violation_rate=missed.tpot,
            goodput_rps=missed.met / span_s,
            throughput_tps=output_tps,
            utilization={view.name: utilization(view, self._now_s) for view in snapshot.instances},
            instances=snapshot.instances,
            recent=recent,
            forced=snapshot.forced,
            arrival_rps=arrival_rps,
            anomalies=anomalies,
            fallbacks=fallbacks if counted else [*fallbacks, "throughput"],
        )


def _more_overdue(readings: list[Reading]) -> int:
    return readings[-1].overdue - readings[0].overdue if readings else 0


def _has_kv_usage(view: InstanceView, at_s: float) -> bool:
    """Whether the engine reports on itself, and lately. Those that report KV use report token counters too."""
    return view.engine is not None and view.engine.kv_usage is not None and at_s - view.engine.taken_s <= ENGINE_FRESH_S


def utilization(view: InstanceView, at_s: float) -> float:
    """Utilization of one instance, 0 to 4: max(TPOT pressure, KV use); `kv_committed` stands in for a KV use that is missing or stale."""
    measured = view.engine.kv_usage if view.engine is not None and _has_kv_usage(view, at_s) else None
    kv = view.kv_committed if measured is None else measured
    return min(4.0, max(0.0, view.tpot_pressure, kv))
