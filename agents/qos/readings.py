"""Growth and rates of the counters of gateway and engines over the short window, and how full an instance is. Pure and bounded."""

from dataclasses import dataclass

from hmas.agents.qos.windows import TimeWindow, slope
from hmas.controller.core.messages import InstanceView, SystemSnapshot

READINGS_MAX = 4_096
ENGINE_FRESH_S = 5.0
"""Age above which an engine's own figures do not count."""
UTILIZATION_MAX = 4.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment. `prompt_tokens` and `output_tokens` are summed over engines and unaffected by engine restarts.

    `arrived_tokens` are the prompt tokens of the requests that arrived.
    """

    at_s: float
    queued: int
    overdue: int
    arrived: int
    arrived_tokens: int
    prompt_tokens: int
    output_tokens: int
    engines_speak: bool


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth from the previous snapshot, taken at `since_s`, to this one; `peak_rps`: arrivals per second over the last second."""

    since_s: float
    arrived: int = 0
    overdue: int = 0
    peak_rps: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates over the short window per second: arrivals, their prompt tokens, served tokens (prompt and output) and output tokens.

    The rates of served tokens are None unless the engines themselves counted them all the time; that of arriving prompt tokens is None for
    a gateway that does not count them.
    """

    arrival_rps: float
    arrival_tps: float | None
    served_tps: float | None
    output_tps: float | None


class Readings:
    """The counters of the last `span_s` seconds, `READINGS_MAX` readings at most."""

    def __init__(self, span_s: float) -> None:
        self._readings: TimeWindow[Reading] = TimeWindow(span_s, READINGS_MAX)
        self._counters: dict[str, tuple[int, int]] = {}
        self._served = (0, 0)
        self._last: Reading | None = None

    def add(self, snapshot: SystemSnapshot, at_s: float) -> Growth:
        """Takes a snapshot and returns the growth since the one before."""
        self._count_engines(snapshot)
        speak = bool(snapshot.instances) and all(has_kv_usage(view, at_s) for view in snapshot.instances)
        before = self._last
        self._last = last = Reading(
            at_s, snapshot.queued, snapshot.overdue, snapshot.arrived_total, snapshot.arrived_prompt_tokens_total, *self._served, speak
        )
        self._readings.add(at_s, last)
        self._readings.prune(at_s)
        if before is None:
            return Growth(at_s)
        return Growth(before.at_s, last.arrived - before.arrived, last.overdue - before.overdue, self._peak_rps(last))

    def forget(self) -> None:
        """Resets the gateway's counters: another gateway process reports, or its clock went back. The engines' counters continue."""
        self._readings.clear()
        self._last = None

    def queue_slope(self) -> float:
        """Returns the growth of the queue in requests per second."""
        return slope([(reading.at_s, float(reading.queued)) for reading in self._readings.all()])

    def rates(self) -> Rates:
        """Returns the rates, over at least a second."""
        readings = self._readings.all()
        if not readings:
            return Rates(0.0, None, None, None)
        first, last = readings[0], readings[-1]
        span_s = max(1.0, last.at_s - first.at_s)
        arrival_rps = (last.arrived - first.arrived) / span_s
        arrival_tps = (last.arrived_tokens - first.arrived_tokens) / span_s if last.arrived_tokens else None
        if not all(reading.engines_speak for reading in readings):
            return Rates(arrival_rps, arrival_tps, None, None)
        prompt, output = last.prompt_tokens - first.prompt_tokens, last.output_tokens - first.output_tokens
        return Rates(arrival_rps, arrival_tps, (prompt + output) / span_s, output / span_s)

    def _peak_rps(self, last: Reading) -> float:
        """Arrivals over about the last second, as the readings allow; over all readings if their span is shorter."""
        first = last
        for reading in self._readings.newest_first():
            first = reading
            if reading.at_s <= last.at_s - 1.0:
                break
        return max(0, last.arrived - first.arrived) / max(1.0, last.at_s - first.at_s)

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


@dataclass(frozen=True, slots=True)
class Utilization:
    """How full an instance is.

    An engine behind an HTTP interface has no reliable GPU counter, and a busy GPU does not show whether one more request would still be
    served in time. An instance can be full in two ways: TPOT over its SLO, and the used share of the KV cache. Both read 1 when it is
    exactly full. If the engine does not report KV use, the share of the admission fence that calibrated upper bounds take replaces it.

    Attributes:
        value: 0 to `UTILIZATION_MAX`; 1 when it is exactly full.
        source: The signal that determines it: `tpot_pressure`, `kv_usage` or `kv_committed`.
        kv: Used share of the KV cache: measured, or the fence's if `measured` is False.
    """

    value: float
    source: str
    kv: float
    measured: bool


def has_kv_usage(view: InstanceView, at_s: float) -> bool:
    """Whether the engine reported its KV use recently. Engines that report KV use also report token counters."""
    return view.engine is not None and view.engine.kv_usage is not None and at_s - view.engine.taken_s <= ENGINE_FRESH_S


def utilization(view: InstanceView, at_s: float) -> Utilization:
    """The larger of TPOT pressure and KV use; `kv_committed` replaces a KV use that is missing or stale."""
    engine_kv = view.engine.kv_usage if view.engine is not None and has_kv_usage(view, at_s) else None
    measured = engine_kv is not None
    kv = max(0.0, view.kv_committed if engine_kv is None else engine_kv)
    pressure = max(0.0, view.tpot_pressure)
    by_kv = "kv_usage" if measured else "kv_committed"
    return Utilization(min(UTILIZATION_MAX, max(pressure, kv)), "tpot_pressure" if pressure >= kv else by_kv, kv, measured)
