"""The QoS agent's model: telemetry in, V_short and V_long out (H-MAS 3.3). Pure and bounded.

Time is the telemetry's own: windows end at the newest `sent_s`, so that a slow bus or a late batch shifts no window. docs/qos.md lists the
figures of the views with their units, windows and errors.
"""

from collections import Counter, deque

from hmas.agents.qos import counters as col
from hmas.agents.qos.anomalies import AnomalyWatch
from hmas.agents.qos.long_view import build_long_view
from hmas.agents.qos.readings import Readings
from hmas.agents.qos.short_view import build_short_view
from hmas.agents.qos.tallies import Tallies
from hmas.agents.qos.windows import TimeWindow
from hmas.agents.qos.workload_watch import Blocks
from hmas.controller.core.messages import VIEW_FRESH_S, Completion, LongView, ShortView, SystemSnapshot
from hmas.controller.core.messages.views import TelemetryCounts
from hmas.controller.core.objectives import mismatch
from hmas.controller.core.statistics.recent_ids import RecentIds

IDS_MAX = 20_000
"""Number of newest ids by which repeated completions are recognised."""
MISMATCHES_MAX = 4_096
RECENT_MAX = 256
"""Most completions in one short view."""
BACKLOG_MAX = 4_096
"""Most completions that wait for the next short view; the oldest are dropped first."""
SKEW_MAX_S = 3_600.0
"""If a message's time differs more from this process's, the message's own time is not used."""
MISMATCH_MAX = 100.0
"""Upper bound of Eq. 7, which has none while nothing at all is served."""
SHORT_PERIOD_S = 0.2
"""Shortest time between two short views."""


class QosModel:
    """State of the QoS agent.

    Args:
        short_window_s: Span of V_short's latency figures.
        long_window_s: Span of V_long.
        long_period_s: Shortest time between two long views.

    Attributes:
        tallies: The counts of both windows.
        seen: Ids of the requests counted, as far as they are remembered.
        backlog: Completions that the next short views pass on.
    """

    def __init__(
        self,
        *,
        short_window_s: float = 5.0,
        long_window_s: float = 60.0,
        long_period_s: float = 5.0,
    ) -> None:
        self._short_window_s = short_window_s
        self._long_window_s = max(long_window_s, short_window_s)
        self._long_period_s = long_period_s
        self.tallies = Tallies(self._short_window_s, self._long_window_s)
        self._readings = Readings(self._short_window_s)
        self._blocks = Blocks(self.tallies.long)
        self._mismatches: TimeWindow[float] = TimeWindow(self._long_window_s, MISMATCHES_MAX)
        self.seen = RecentIds(IDS_MAX)
        self._replayed = RecentIds(IDS_MAX)
        # By gateway, the time of the newest replayed snapshot, until a newer one arrives.
        self._replayed_s: dict[str, float] = {}
        self.backlog: deque[Completion] = deque(maxlen=BACKLOG_MAX)
        self._watch = AnomalyWatch()
        # Errors in the telemetry so far, by their names in `TelemetryCounts`.
        self._wrong: Counter[str] = Counter()
        self._gateway: str | None = None
        self._arrived = 0
        self._now_s = float("-inf")
        # When the first telemetry arrived, and when that of the present gateway did.
        self._since_s = self._gateway_since_s = float("inf")
        self._short_s = self._long_s = self._mismatch_s = float("-inf")

    def replay(self, message: Completion | SystemSnapshot) -> None:
        """Takes a message from before a restart: it fills the windows, posts nothing, and passes no completion on a second time."""
        if isinstance(message, Completion):
            self._replayed.add(message.request_id)
            self._remember(message, message.sent_s)
        else:
            self._replayed_s[message.gateway] = max(message.sent_s, self._replayed_s.get(message.gateway, message.sent_s))
            self._advance(message, message.sent_s)

    def complete(self, completion: Completion, now_s: float) -> None:
        """Takes an ended request; a repeated delivery is ignored."""
        if self._replayed.discard(completion.request_id) or self._remember(completion, now_s):
            self.backlog.append(completion)

    def observe(self, snapshot: SystemSnapshot, now_s: float) -> list[ShortView | LongView]:
        """Takes a system snapshot and returns the views that are due; one that was replayed is ignored."""
        views: list[ShortView | LongView] = []
        if self._was_replayed(snapshot):
            return views
        anomalies = self._advance(snapshot, now_s)
        if anomalies is None:
            return views
        if self._is_due(self._short_s, SHORT_PERIOD_S):
            self._short_s = self._now_s
            views.append(self._short_view(snapshot, anomalies, now_s))
        if self._is_due(self._long_s, self._long_period_s):
            self._long_s = self._now_s
            views.append(self._long_view(snapshot, now_s))
        return views

    def _was_replayed(self, snapshot: SystemSnapshot) -> bool:
        """Whether the bus delivers a snapshot that was replayed; the gateway's first newer one ends the question."""
        newest_s = self._replayed_s.get(snapshot.gateway)
        # None that is older still is delivered again: then the gateway's clock went back.
        if newest_s is not None and newest_s - VIEW_FRESH_S <= snapshot.sent_s <= newest_s:
            return True
        self._replayed_s.pop(snapshot.gateway, None)
        return False

    def _is_due(self, last_s: float, period_s: float) -> bool:
        # Snapshots come on the gateway's own tick: half a percent keeps a period of a whole number of ticks from slipping by one.
        return self._now_s >= last_s + period_s * 0.995

    def _time_of(self, sent_s: float, now_s: float) -> float:
        return sent_s if abs(sent_s - now_s) <= SKEW_MAX_S else now_s

    def _remember(self, completion: Completion, now_s: float) -> bool:
        """Counts a completion in the sub-window of its time; returns False if it was counted before."""
        if not self.seen.add(completion.request_id):
            self._wrong["duplicates"] += 1
            return False
        at_s, newest_s = self._time_of(completion.sent_s, now_s), max(self._now_s, now_s)
        if at_s > newest_s:
            # A stray time in the future must not outlive the window, so it counts from now.
            self._wrong["ahead"] += 1
            at_s = newest_s
        self._since_s = min(self._since_s, at_s)
        self._wrong["late"] += not self.tallies.add(completion, at_s)
        return True

    def _advance(self, snapshot: SystemSnapshot, now_s: float) -> list[str] | None:
        """Advances time and windows and returns the active anomalies; None for a snapshot out of order."""
        at_s = self._time_of(snapshot.sent_s, now_s)
        went_back = at_s < self._now_s - self._short_window_s
        if at_s < self._now_s and not went_back and snapshot.gateway == self._gateway:
            self._wrong["unordered"] += 1
            return None
        if went_back:
            self.tallies.clear()
            self._blocks.forget()
            self._since_s = at_s
        if went_back or snapshot.gateway != self._gateway or snapshot.arrived_total < self._arrived:
            self._wrong["restarts"] += self._gateway is not None
            self._forget_counters(at_s)
        self._gateway = snapshot.gateway
        self._arrived = snapshot.arrived_total
        self._now_s = at_s
        self._since_s = min(self._since_s, at_s)
        self.tallies.move(at_s)
        self.tallies.observe(at_s, self._readings.add(snapshot, at_s))
        self._blocks.advance(at_s, self._gateway_since_s)
        self._mismatches.prune(at_s)
        if self._is_due(self._mismatch_s, 1.0):
            self._mismatch_s = at_s
            self._mismatches.add(at_s, self._mismatch())
        return self._watch.observe(snapshot, at_s)

    def _forget_counters(self, at_s: float) -> None:
        """Resets the counters: another gateway process reports, or its clock went back, so its counters start again."""
        self._readings.forget()
        self.tallies.forget_gateway()
        self._blocks.changes.reset_arrivals()
        self._mismatches.clear()
        self._watch.reset()
        self._gateway_since_s = at_s
        self._short_s = self._long_s = self._mismatch_s = float("-inf")

    def _span_s(self, start_s: float) -> float:
        """Returns the observed part of a window that begins there, at least a second."""
        return max(1.0, self._now_s - max(start_s, self._since_s))

    def _mismatch(self) -> float:
        """Eq. 7 over the short window.

        Demand is the prompt tokens of what arrives, and for each arrival the mean output of the requests that ended within the long window:
        an output is known when it ends. Prompts count whole on both sides, whether or not they were found cached.
        """
        rates = self._readings.rates()
        served_tps = rates.served_tps
        if served_tps is None:
            served_tps = self.tallies.short.sum_of(col.SERVED) / self._span_s(self.tallies.short.start_s)
        prompt, output = self.tallies.demand()
        arriving_tps = rates.arrival_rps * prompt if rates.arrival_tps is None else rates.arrival_tps
        return min(MISMATCH_MAX, mismatch(arriving_tps + rates.arrival_rps * output, served_tps))

    def _short_view(self, snapshot: SystemSnapshot, anomalies: list[str], now_s: float) -> ShortView:
        window = self.tallies.short
        return build_short_view(
            snapshot,
            window.total(),
            self._readings,
            recent=[self.backlog.popleft() for _ in range(min(RECENT_MAX, len(self.backlog)))],
            anomalies=anomalies,
            telemetry=TelemetryCounts(**self._wrong),
            window_s=self._short_window_s,
            span_s=self._span_s(window.start_s),
            at_s=self._now_s,
            sent_s=min(self._now_s, now_s),
        )

    def _long_view(self, snapshot: SystemSnapshot, now_s: float) -> LongView:
        start_s = self.tallies.long.start_s
        return build_long_view(
            snapshot,
            self.tallies,
            self._mismatches.all(),
            changes=self._blocks.changes.since(self._now_s - self._long_window_s),
            telemetry=TelemetryCounts(**self._wrong),
            span_s=self._span_s(start_s),
            arrivals_span_s=self._span_s(max(start_s, self._gateway_since_s)),
            sent_s=min(self._now_s, now_s),
        )
