"""Counts the requests that were dispatched on the gateway's own estimates because an agent's answer came too late (H-MAS E.4)."""

from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

AGENTS = ("perception", "prediction")
RECENT_S = 60


class DispatchedOnDefaults(Collector):
    """Dispatches, and how many of them were made before an agent's answer, by agent: in all, and in each second of the last minute.

    Args:
        running: The agents that run; one that does not run is never late.
        registry: The registry that Prometheus scrapes.

    Attributes:
        dispatched: First dispatches of requests since the start.
        late: Those of them without an answer, by agent.
    """

    def __init__(self, running: Collection[str], registry: CollectorRegistry) -> None:
        self.dispatched = 0
        self.late = {agent: 0 for agent in AGENTS if agent in running}
        self._seconds: deque[list[int]] = deque(maxlen=RECENT_S)
        registry.register(self)

    def count(self, now_s: float, *, features: bool, cost: bool) -> None:
        """Counts the first dispatch of a request. `features`, `cost`: whether perception's and prediction's answer had come."""
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0, 0])
        row = self._seconds[-1]
        self.dispatched += 1
        row[1] += 1
        if not features and "perception" in self.late:
            self.late["perception"] += 1
            row[2] += 1
        if not cost and "prediction" in self.late:
            self.late["prediction"] += 1
            row[3] += 1

    def recent(self, now_s: float) -> dict[str, Any]:
        """The figures of the last minute, for operators."""
        rows = [row for row in self._seconds if row[0] > now_s - RECENT_S]
        late = {agent: sum(row[place] for row in rows) for place, agent in enumerate(AGENTS, start=2) if agent in self.late}
        return {"window_s": float(RECENT_S), "dispatched": sum(row[1] for row in rows), "on_defaults": late}

    def collect(self) -> Iterable[CounterMetricFamily]:
        """See `Collector`."""
        dispatched = CounterMetricFamily("hmas_dispatched_requests", "Requests dispatched to an instance; a retry does not count again.")
        dispatched.add_metric((), self.dispatched)
        help_text = "Requests dispatched before the agent's answer about them came, so on the gateway's own estimates."
        late = CounterMetricFamily("hmas_dispatched_on_defaults_requests", help_text, labels=["agent"])
        for agent, count in self.late.items():
            late.add_metric((agent,), count)
        return dispatched, late
