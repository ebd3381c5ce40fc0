"""The scheduler's account of one request in flight."""

from typing import TYPE_CHECKING

from hmas.controller.core.types import Estimates
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

if TYPE_CHECKING:
    from hmas.controller.scheduling.instances.instance import Instance


class Running:
    """A request in flight.

    Attributes:
        predicted: Estimates when the first token came; the latest ones before it.
        running: Requests in flight on the instance when this one came; `kv_usage` likewise, -1 where nothing is known.
        tokens: Output tokens so far.
        first_s: When the first token came, None before it. `last_s`: when the latest came.
        alone: Whether no other prompt was waiting for its first token beside this one.
        expected_tokens: Prompt and expected output at dispatch.
        streams, tpot_slo_ms, tpot_ms, length: Whether it streams, its TPOT target, predicted TPOT and predicted output length.
    """

    # Written out, not a dataclass: compiled, that would want the class of `instance` before its module is there.
    __slots__ = (
        "alone",
        "dispatched_s",
        "entry",
        "expected_tokens",
        "first_s",
        "instance",
        "kv_usage",
        "last_s",
        "length",
        "policy",
        "predicted",
        "running",
        "streams",
        "tokens",
        "tpot_ms",
        "tpot_slo_ms",
    )

    def __init__(self, entry: QueueEntry, instance: "Instance", policy: str, dispatched_s: float, *, kv_usage: float, alone: bool) -> None:
        self.entry = entry
        self.instance = instance
        self.policy = policy
        self.dispatched_s = dispatched_s
        self.predicted = entry.estimates
        self.running = instance.in_flight
        self.kv_usage = kv_usage
        self.tokens = 0
        self.first_s: float | None = None
        self.last_s = 0.0
        self.alone = alone
        self.expected_tokens = entry.request.prompt_tokens + int(entry.estimates.output_tokens)
        self.streams = entry.request.stream
        self.believe(entry.estimates)

    def believe(self, estimates: Estimates) -> None:
        """Takes new estimates. What the guard reads of them stands by itself: it reads it for all in flight at every dispatch."""
        self.entry.estimates = estimates
        if self.first_s is None:
            # Agents answer a few milliseconds after a dispatch on a quiet gateway: nothing of the answer is known before its first token.
            self.predicted = estimates
        self.tpot_slo_ms = estimates.slo.tpot_ms
        self.tpot_ms = estimates.tpot_ms
        self.length = estimates.output_tokens

    def tpot_over_slo(self, now_s: float) -> float | None:
        """Mean TPOT so far over its target, None before two tokens. A stream that has stopped counts as slow while it stands."""
        if self.first_s is None or self.tokens < 2:
            return None
        mean_s = max((self.last_s - self.first_s) / (self.tokens - 1), (now_s - self.first_s) / self.tokens)
        return 1000.0 * mean_s / self.tpot_slo_ms
