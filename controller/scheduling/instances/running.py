"""The scheduler's account of one request in flight, and where its tokens are counted if they are not reported one by one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from hmas.controller.core.objectives import whole_due_ms
from hmas.controller.core.types import Estimates
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

if TYPE_CHECKING:
    from hmas.controller.scheduling.instances.foresight import Expectation
    from hmas.controller.scheduling.instances.instance import Instance


class TokenSource(Protocol):
    """A source of an instance's token counts for cases where tokens are not reported one by one: an engine model in virtual time."""

    def tokens(self, now_s: float) -> Sequence[tuple[str, int]]:
        """Id and output tokens so far of each request that has its first token."""

    def last_step_s(self, now_s: float) -> float:
        """Time of the latest token of these requests."""

    def generated(self, now_s: float) -> int:
        """Output tokens of all requests since the start."""


class Running:
    """A request in flight.

    Attributes:
        predicted: Estimates at the first token; before it, the latest ones.
        running: Requests in flight on the instance at dispatch; `kv_usage`: its cache use then, -1 if unknown.
        tokens: Output tokens produced so far.
        first_s: Time of the first token, None before it. `last_s`: time of the latest token.
        alone: Whether no other prompt was waiting for its first token at the same time.
        expected_tokens: Prompt and expected output at dispatch.
        cached_tokens: As `Choice.cached_tokens`. `to_compute`: tokens of the prompt that the engine has to compute by them.
        from_step: Of a whole answer, the instance's decode steps (`Foresight.steps`) until its first token, as expected.
        streams, sequences: Whether it streams, and its number of answers. `tpot_slo_ms`, `tpot_ms`: its TPOT target and
            predicted TPOT.
        length: Predicted output length of one answer, in the mean.
        expectation: What its first token found of the pace; None before it, or if that was not known.
    """

    # Written out instead of a dataclass: mypyc would need the class of `instance` before its module is loaded.
    __slots__ = (
        "alone",
        "cached_tokens",
        "dispatched_s",
        "entry",
        "expectation",
        "expected_tokens",
        "first_s",
        "from_step",
        "instance",
        "kv_usage",
        "last_s",
        "length",
        "policy",
        "predicted",
        "running",
        "sequences",
        "streams",
        "to_compute",
        "tokens",
        "tpot_ms",
        "tpot_slo_ms",
    )

    def __init__(
        self,
        entry: QueueEntry,
        instance: "Instance",
        policy: str,
        dispatched_s: float,
        *,
        kv_usage: float,
        cached_tokens: int | None = None,
    ) -> None:
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
        self.expectation: Expectation | None = None
        self.alone = True
        self.from_step = 0.0
        self.expected_tokens = entry.request.prompt_tokens + int(entry.estimates.output_tokens)
        self.cached_tokens = cached_tokens
        # A router may be a plugin, and err.
        self.to_compute = entry.request.prompt_tokens - max(0, min(cached_tokens or 0, entry.request.prompt_tokens))
        self.streams = entry.request.stream
        self.sequences = entry.request.sequences
        self.believe(entry.estimates)

    @property
    def is_computed(self) -> bool:
        """Whether half of its prompt is to be computed. Of less, a first token shows the time of a step rather than that of its tokens."""
        return 2 * self.to_compute >= self.entry.request.prompt_tokens

    def believe(self, estimates: Estimates) -> None:
        """Takes new estimates. The values that the guard needs are copied: it reads them for all requests in flight at every dispatch."""
        self.entry.estimates = estimates
        if self.first_s is None:
            # On a quiet gateway agents answer a few milliseconds after the dispatch; nothing of the output is known before its first token.
            self.predicted = estimates
        self.tpot_slo_ms = estimates.slo.tpot_ms
        self.tpot_ms = estimates.tpot_ms
        self.length = estimates.output_tokens / self.sequences

    def tpot_over_slo(self, now_s: float) -> float | None:
        """Mean TPOT so far over its target, None before two tokens of each answer. A stalled stream counts as slow while it stalls.

        Of a whole answer: its time from dispatch to the end that its instance's pace gives, over when it is due; None before a step.
        """
        if not self.streams:
            # Without counters the steps stand still while nobody streams: it would seem to make no progress.
            steps, token_ms = self.instance.pace.foresight.steps, self.instance.token_ms
            if token_ms is None or steps <= self.from_step:
                return None
            left_ms, tokens = self.whole_left(now_s, steps)
            due_ms = left_ms + 1000.0 * (now_s - self.entry.request.arrival_s)
            return (1000.0 * (now_s - self.dispatched_s) + tokens * token_ms) / due_ms
        each = self.tokens / self.sequences
        if self.first_s is None or each < 2.0:
            return None
        mean_s = max((self.last_s - self.first_s) / (each - 1.0), (now_s - self.first_s) / each)
        return 1000.0 * mean_s / self.tpot_slo_ms

    def target_ms(self) -> float:
        """The time per token that it may take: its TPOT target, of a whole answer what its one target leaves if it did not wait."""
        return self.tpot_slo_ms if self.streams else whole_due_ms(self.length, self.entry.estimates.slo) / max(1.0, self.length)

    def whole_left(self, now_s: float, steps: float) -> tuple[float, float]:
        """Milliseconds until a whole answer is due, and the tokens that it probably lacks, at so many decode steps of its instance.

        Nothing is heard of it before its end. It is taken to have got a token with each step since its prompt was computed.
        """
        tokens = max(0.0, steps - self.from_step)
        length = max(self.length, tokens + 1.0)
        due_ms = whole_due_ms(length, self.entry.estimates.slo)
        return due_ms - 1000.0 * (now_s - self.entry.request.arrival_s), length - tokens
