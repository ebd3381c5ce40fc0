"""Computes how full an instance is, from the available signals. Pure.

Utilization of an instance is u = max(tpot_pressure, KV use). An engine behind an HTTP interface has no reliable GPU counter, and a busy GPU
does not show whether one more request would still be served in time. An instance can be full in two ways: TPOT over its SLO, and the used
share of the KV cache. Both read 1 when it is exactly full. If the engine does not report KV use, the share of the admission fence that
calibrated upper bounds take replaces it.
"""

from dataclasses import dataclass

from hmas.controller.core.messages import InstanceView

ENGINE_FRESH_S = 5.0
"""Age above which an engine's own figures do not count."""
UTILIZATION_MAX = 4.0


@dataclass(frozen=True, slots=True)
class Utilization:
    """How full an instance is.

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
