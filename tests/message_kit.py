"""Messages as the gateway and the agents send them, ordinary but for what a test changes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hmas.controller.core.messages import Completion, InstanceView, RequestFeatures, RequestNotice, SystemSnapshot
from hmas.controller.core.types import OutcomeKind, TaskType


def instance_view(name: str = "a", **changes: Any) -> InstanceView:
    values: dict[str, Any] = {
        "name": name, "in_flight": 2, "in_flight_tokens": 500, "n_run": 8, "token_budget": 0, "kv_committed": 0.0, "tpot_pressure": 0.0,
        "capacity_n_run": 8,
    }  # fmt: skip
    return InstanceView(**(values | changes))


def sharing(views: Sequence[InstanceView], queued: int) -> list[InstanceView]:
    """Instances that all serve what waits, in equal parts; as they are where one says that requests wait for it."""
    if any(view.queued_for for view in views):
        return list(views)
    return [msgspec.structs.replace(view, queued_for=queued / len(views)) for view in views]


def system_snapshot(*views: InstanceView, **changes: Any) -> SystemSnapshot:
    values: dict[str, Any] = {
        "sent_s": 1.0, "gateway": "g", "policy": "edf", "queued": 0, "queued_tokens": 0, "queued_long": 0, "overdue": 0,
        "oldest_wait_ms": 0.0, "arrived_total": 0, "dispatched_total": 0, "ended": {}, "instances": list(views),
    }  # fmt: skip
    values |= changes
    return SystemSnapshot(**(values | {"instances": sharing(values["instances"], values["queued"])}))


def request_notice(request_id: str = "r", **changes: Any) -> RequestNotice:
    values: dict[str, Any] = {"request_id": request_id, "sent_s": 100.0, "tenant": "t", "model": "m", "prompt_tokens": 300}
    return RequestNotice(**(values | changes))


def request_features(request_id: str = "r", **changes: Any) -> RequestFeatures:
    values: dict[str, Any] = {
        "request_id": request_id, "sent_s": 100.0, "tenant": "t", "model": "m", "prompt_tokens": 200, "task_type": TaskType.QA,
        "confidence": 0.9, "ttft_slo_ms": 1000.0, "tpot_slo_ms": 50.0, "importance": 0.75, "output_tokens": 100.0,
        "output_tokens_p90": 100.0,
    }  # fmt: skip
    return RequestFeatures(**(values | changes))


def completed(request_id: str = "r", **changes: Any) -> Completion:
    values: dict[str, Any] = {
        "request_id": request_id, "sent_s": 101.0, "tenant": "t", "model": "m", "outcome": OutcomeKind.COMPLETED, "arrival_s": 100.0,
        "policy": "edf",
    }  # fmt: skip
    return Completion(**(values | changes))
