"""How full an instance is, by the signals that there are. Pure.

Utilization of an instance is u = max(tpot_pressure, KV use). An engine behind an HTTP door has no honest GPU counter, and a busy GPU does
not say whether one more request would still be served in time. TPOT over its SLO and the share of the KV cache in use are the two ways in
which an instance is full, and both read 1 where it is exactly full. Where the engine does not report KV use, the share of the admission
fence that calibrated upper bounds take stands in.
"""

from dataclasses import dataclass

from hmas.controller.core.messages import InstanceView

ENGINE_FRESH_S = 5.0
"""Age beyond which an engine's own figures no longer count."""
UTILIZATION_MAX = 4.0


@dataclass(frozen=True, slots=True)
class Utilization:
    """How full an instance is.

    Attributes:
        value: 0 to `UTILIZATION_MAX`, 1 where it is exactly full.
        source: The signal that it is: `tpot_pressure`, `kv_usage` or `kv_committed`.
        kv: Share of the KV cache in use: measured, or the fence's where `measured` is False.
    """

    value: float
    source: str
    kv: float
    measured: bool


def has_kv_usage(view: InstanceView, at_s: float) -> bool:
    """Whether the engine reports on itself, and lately. Those that report KV use report token counters too."""
    return view.engine is not None and view.engine.kv_usage is not None and at_s - view.engine.taken_s <= ENGINE_FRESH_S


def utilization(view: InstanceView, at_s: float) -> Utilization:
    """The larger of TPOT pressure and KV use; `kv_committed` stands in for a KV use that is missing or stale."""
    engine_kv = view.engine.kv_usage if view.engine is not None and has_kv_usage(view, at_s) else None
    measured = engine_kv is not None
    kv = max(0.0, view.kv_committed if engine_kv is None else engine_kv)
    pressure = max(0.0, view.tpot_pressure)
    by_kv = "kv_usage" if measured else "kv_committed"
    return Utilization(min(UTILIZATION_MAX, max(pressure, kv)), "tpot_pressure" if pressure >= kv else by_kv, kv, measured)
