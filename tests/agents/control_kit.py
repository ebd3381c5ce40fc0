"""Views and completions for the tests of the control agents, ordinary but for what a test changes."""

from typing import Any

from message_kit import instance_view, sharing, system_snapshot

from hmas.controller.core.messages import Completion, InstanceView, LatencySummary, LongView, ShortView, SystemSnapshot
from hmas.controller.core.types import OutcomeKind

CALM = LatencySummary(count=100, p50=100.0, p95=200.0, p99=300.0)


def instance(**changes: Any) -> InstanceView:
    load = {"in_flight": 8, "in_flight_tokens": 4000, "n_run": 16, "kv_committed": 0.2, "tpot_pressure": 0.8, "capacity_n_run": 256}
    return instance_view(**({"name": "i0"} | load | changes))


def short_view(now_s: float, **changes: Any) -> ShortView:
    values: dict[str, Any] = {
        "sent_s": now_s, "window_s": 5.0, "policy": "edf", "queued": 0, "oldest_wait_ms": 0.0, "queue_slope": 0.0, "ended": 100,
        "ttft_ms": CALM, "tpot_ms": CALM, "violation_rate": 0.02, "ttft_violation_rate": 0.01, "tpot_violation_rate": 0.01,
        "goodput_rps": 10.0, "throughput_tps": 1000.0, "utilization": {"i0": 0.8}, "instances": [instance()], "arrival_rps": 10.0,
    }  # fmt: skip
    values |= changes
    return ShortView(**(values | {"instances": sharing(values["instances"], values["queued"])}))


def long_view(now_s: float, **changes: Any) -> LongView:
    values: dict[str, Any] = {
        "sent_s": now_s, "window_s": 60.0, "policy": "edf", "arrived": 600, "ended": 600, "arrival_rps": 10.0, "arrival_cv": 1.0,
        "burst_ratio": 1.5, "prompt_mean": 500.0, "output_mean": 100.0, "total_cv": 0.8, "long_share": 0.2, "long_backlog": 0, "queued": 0,
        "ttft_ms": CALM, "tpot_ms": CALM, "violation_rate": 0.02, "ttft_violation_rate": 0.01, "tpot_violation_rate": 0.01,
        "deadline_miss_share": 0.0, "goodput_rps": 9.8, "goodput_rate": 0.98, "mismatch": 0.0, "mismatch_p95": 0.1, "fairness": 1.0,
    }  # fmt: skip
    return LongView(**(values | changes))


def completion(number: int, now_s: float, **changes: Any) -> Completion:
    values: dict[str, Any] = {
        "request_id": f"{number:08d}", "sent_s": now_s, "tenant": "a", "model": "m", "outcome": OutcomeKind.COMPLETED,
        "arrival_s": now_s - 3.0, "policy": "edf", "instance": "i0", "prompt_tokens": 300, "output_tokens": 100, "queue_ms": 100.0,
        "ttft_ms": 400.0, "service_ttft_ms": 300.0, "tpot_ms": 20.0, "total_ms": 2400.0, "ttft_slo_ms": 4000.0, "tpot_slo_ms": 40.0,
        "predicted_output_tokens": 90.0, "predicted_ttft_ms": 300.0, "predicted_tpot_ms": 20.0, "running": 8,
        "slo_met": True, "status": 200,
    }  # fmt: skip
    return Completion(**(values | changes))


def snapshot(now_s: float, *, arrived: int, ended: int, queued: int = 0, **changes: Any) -> SystemSnapshot:
    views = changes.pop("instances", [instance(in_flight=arrived - ended - queued)])
    counts = {"queued": queued, "arrived_total": arrived, "dispatched_total": arrived - queued, "ended": {"completed": ended}}
    return system_snapshot(*views, **({"sent_s": now_s} | counts | changes))
