"""What tests of prediction share: messages as the gateway sends them, and a regressor that always says the same."""

import numpy as np
from message_kit import completed, instance_view, request_features, system_snapshot

from hmas.agents.prediction.features import CATEGORIES
from hmas.controller.core.messages import Completion, InstanceView, RequestFeatures, SystemSnapshot
from hmas.engines.base import EngineSnapshot


def view(name: str = "a", in_flight: int = 4, **changes) -> InstanceView:
    load = {"in_flight": in_flight, "in_flight_tokens": 300 * in_flight, "n_run": 16, "kv_committed": 0.1, "capacity_n_run": 64}
    return instance_view(name, **(load | changes))


def snapshot(*views: InstanceView, at_s: float = 100.0, queued: int = 0, alone: bool = False) -> SystemSnapshot:
    return system_snapshot(*views, sent_s=at_s, queued=queued, wants_times_alone=alone)


def features(request_id: str = "r", prompt_tokens: int = 200, output_tokens: float = 100.0) -> RequestFeatures:
    return request_features(request_id, prompt_tokens=prompt_tokens, output_tokens=output_tokens, output_tokens_p90=output_tokens)


def completion(request_id: str = "r", *, ttft_ms: float = 80.0, tpot_ms: float = 20.0, instance: str = "a", **changes) -> Completion:
    fields = {
        "sent_s": 103.0,
        "instance": instance,
        "prompt_tokens": 200,
        "output_tokens": 100,
        "queue_ms": 0.0,
        "ttft_ms": ttft_ms,
        "service_ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
        "total_ms": ttft_ms + 99 * tpot_ms,
        "running": 3,
    }
    return completed(request_id, **(fields | changes))


def healthy(name: str, *, is_healthy: bool = True) -> EngineSnapshot:
    return EngineSnapshot(engine=name, taken_s=100.0, healthy=is_healthy, running=2, kv_usage=0.3, max_num_batched_tokens=1024)


class Constant:
    """A regressor that always says the same."""

    def __init__(self, ttft: float, tpot: float) -> None:
        self.accepted = {"ttft": 0.1, "tpot": 0.1}
        self.ranges = None
        self.said = (ttft, tpot)
        self.calls: list[tuple[int, int]] = []

    def log_ratios(self, rows, names):
        assert names.shape == (len(rows), len(CATEGORIES))
        self.calls.append(rows.shape)
        return np.tile(np.array(self.said), (len(rows), 1))
