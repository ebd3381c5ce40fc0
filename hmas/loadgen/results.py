"""What became of one request of a run, as its client saw it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from hmas.controller.core.errors import TraceError
from hmas.controller.core.objectives import slo_met
from hmas.controller.core.types import Slo, TaskType

ClientOutcome = Literal["completed", "rejected", "shed", "timed_out", "failed", "lost"]
OUTCOMES: tuple[ClientOutcome, ...] = ("completed", "rejected", "shed", "timed_out", "failed", "lost")
"""`completed`: the answer came to its proper end. `rejected`: 4xx, or 503 before it was queued. `shed`, `timed_out`: 504 by its code.
`failed`: an error answer or an error event in the stream. `lost`: no answer, or a stream that broke off without a word."""


class Result(msgspec.Struct, kw_only=True):
    """One request; exactly one per arrival.

    Attributes:
        index: Place of the arrival in the workload.
        at_s: Scheduled arrival, seconds from the run's start; `late_ms` is how much later it was really sent.
        ttft_ms: Scheduled arrival to first content chunk; -1 where none came.
        tpot_ms: (last chunk - first chunk) / (n - 1) with n the tokens of one answer; -1 with fewer than two tokens.
        total_ms: Scheduled arrival to the end of the answer, whatever it was.
        output_tokens: From usage, or the number of content events; 0 where none came.
        streamed: Whether the answer came as a stream; one that did not has neither TTFT nor TPOT, and its total time decides.
        answers: How many answers to the prompt were wanted; `output_tokens` counts all of them.
        capped, declared: Whether the client sent `max_tokens`, and targets.
        retry_after_s: What a refusal says about when to come back; -1 where it says nothing.
        policy, queue_ms: As the gateway's response headers say, where they do.
        detail: Why it was not completed, in words.
    """

    index: int
    at_s: float
    kind: str
    tenant: str
    task_type: TaskType
    size: str
    prompt_tokens: int
    wanted_tokens: int
    slo: Slo
    outcome: ClientOutcome = "lost"
    status: int = 0
    late_ms: float = 0.0
    ttft_ms: float = -1.0
    tpot_ms: float = -1.0
    total_ms: float = -1.0
    output_tokens: int = 0
    policy: str = ""
    queue_ms: float = -1.0
    detail: str = ""
    streamed: bool = True
    answers: int = 1
    capped: bool = True
    declared: bool = True
    retry_after_s: float = -1.0

    @property
    def tokens_each(self) -> float:
        """Output tokens of one answer, the mean of those to the same prompt."""
        return self.output_tokens / self.answers

    @property
    def total_target_ms(self) -> float:
        """Within what time the whole answer is wanted: its TTFT target, and its TPOT target for each token after the first."""
        return self.slo.ttft_ms + self.slo.tpot_ms * max(0.0, self.tokens_each - 1.0)


def is_good(result: Result) -> bool:
    """OK(r) of H-MAS Eq. 1, and completed. An answer that is not streamed has to be there when a stream would have had to end."""
    if result.outcome != "completed":
        return False
    if not result.streamed:
        return 0.0 <= result.total_ms <= result.total_target_ms
    return slo_met(result.ttft_ms, result.tpot_ms, result.slo)


class RunSummary(msgspec.Struct, kw_only=True):
    """How a load generator's run went.

    Attributes:
        started_s: When arrivals began, seconds since the epoch.
        elapsed_s: Until the last answer, or the giving up.
        max_gap_s: Longest time the event loop did not run; above `GAP_LIMIT_S` latencies are not to be trusted.
        cpu_s: CPU time of the load generator.
        output_tokens: Received in all.
        outcomes: Count by outcome.
    """

    started_s: float
    elapsed_s: float
    max_gap_s: float
    cpu_s: float
    output_tokens: int
    outcomes: dict[str, int]
    late_ms_max: float = 0.0

    @property
    def noisy(self) -> bool:
        """Whether the run is to be flagged for timer gaps."""
        return self.max_gap_s > GAP_LIMIT_S


GAP_LIMIT_S = 0.3


def write_lines(path: Path, items: Iterable[object]) -> None:
    """Writes one JSON document a line."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as handle:
        for item in items:
            handle.write(encoder.encode(item) + b"\n")


def read_results(path: Path) -> list[Result]:
    """Reads a results file.

    Raises:
        TraceError: It is not there, or a line is no result; names the line.
    """
    try:
        return msgspec.json.Decoder(Result).decode_lines(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {error}") from error


def count_outcomes(results: Sequence[Result]) -> dict[str, int]:
    """Requests by outcome; every outcome is named, also with none."""
    return {name: sum(r.outcome == name for r in results) for name in OUTCOMES}
