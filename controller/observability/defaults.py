"""Counts the requests that were dispatched on the gateway's own estimates: unasked, or before an agent's answer came (H-MAS E.4)."""

from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

AGENTS = ("perception", "prediction")
RECENT_S = 60


class DispatchedOnDefaults(Collector):
    """Dispatches, and how many of them were made unasked or before an agent's answer: in all, and in each second of the last minute.

    Attributes:
        dispatched: First dispatches of requests since the start.
        unasked: Those of them about which no agent had been asked.
        late: Those of the others without an answer, by agent; an agent that does not run is never late.
    """

    def __init__(self, running: Collection[str], registry: CollectorRegistry) -> None:
        self.dispatched = 0
        self.unasked = 0
        self.late = {agent: 0 for agent in AGENTS if agent in running}
        self._seconds: deque[list[int]] = deque(maxlen=RECENT_S)
        registry.register(self)

    def count(self, now_s: float, *, asked: bool, features: bool, cost: bool) -> None:
        """Counts the first dispatch of a request: whether the agents had been asked about it, and which answer had come."""
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0, 0, 0])
        row = self._seconds[-1]
        self.dispatched += 1
        row[1] += 1
        if not asked:
            self.unasked += 1
            row[2] += 1
            return
        for place, (agent, answered) in enumerate(zip(AGENTS, (features, cost), strict=True), start=3):
            if not answered and agent in self.late:
                self.late[agent] += 1
                row[place] += 1

    def recent(self, now_s: float) -> dict[str, Any]:
        """The figures of the last minute, for operators."""
        rows = [row for row in self._seconds if row[0] > now_s - RECENT_S]
        dispatched, unasked, *late = (sum(row[place] for row in rows) for place in range(1, 3 + len(AGENTS)))
        on_defaults = {agent: count for agent, count in zip(AGENTS, late, strict=True) if agent in self.late}
        return {"window_s": float(RECENT_S), "dispatched": dispatched, "unasked": unasked, "on_defaults": on_defaults}

    def collect(self) -> Iterable[CounterMetricFamily]:
        """See `Collector`."""
        dispatched = CounterMetricFamily("hmas_dispatched_requests", "Requests dispatched to an instance; a retry does not count again.")
        dispatched.add_metric((), self.dispatched)
        help_text = "Requests dispatched without asking the agents: they were sent at once, or nothing about them was left to ask."
        unasked = CounterMetricFamily("hmas_dispatched_unasked_requests", help_text)
        unasked.add_metric((), self.unasked)
        help_text = "Requests dispatched after the agents were asked and before this one's answer came, so on the gateway's own estimates."
        late = CounterMetricFamily("hmas_dispatched_on_defaults_requests", help_text, labels=["agent"])
        for agent, count in self.late.items():
            late.add_metric((agent,), count)
        return dispatched, unasked, late
