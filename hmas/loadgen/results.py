"""The result of one request of a run, as measured by its client."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from hmas.controller.core.errors import TraceError
from hmas.controller.core.objectives import slo_met, whole_due_ms
from hmas.controller.core.types import OutcomeKind, Slo, TaskType
from hmas.controller.simulation import RequestRecord
from hmas.loadgen.workload import Arrival

ClientOutcome = Literal["completed", "rejected", "shed", "timed_out", "failed", "lost"]
OUTCOMES: tuple[ClientOutcome, ...] = ("completed", "rejected", "shed", "timed_out", "failed", "lost")
"""`completed`: the answer ended properly. `rejected`: 4xx, or 503 before it was queued. `shed`, `timed_out`: 504, by its code.
`failed`: an error answer or an error event in the stream. `lost`: no answer, or a stream that broke off without an error."""


class Result(msgspec.Struct, kw_only=True):
    """One request; exactly one per arrival.

    Attributes:
        index: Index of the arrival in the workload.
        at_s: Scheduled arrival, seconds from the run's start; `late_ms` is how much later it was actually sent.
        ttft_ms: Scheduled arrival to first content chunk; -1 if none came.
        tpot_ms: (last chunk - first chunk) / (n - 1) with n the tokens of one answer; -1 with fewer than two tokens.
        total_ms: Scheduled arrival to the end of the answer, for any outcome.
        output_tokens: From usage, or the number of content events; 0 if none came.
        streamed: Whether the answer was streamed; if not, it has neither TTFT nor TPOT, and its total time decides.
        answers: Number of requested answers to the prompt; `output_tokens` counts all of them.
        capped, declared: Whether the client sent `max_tokens`, and targets.
        retry_after_s: The Retry-After of a refusal; -1 if it has none.
        policy, queue_ms, instance: From the gateway's response headers, if it sends them; the instance is the engine that answered.
        detail: Why it was not completed, as text.
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
    instance: str = ""
    detail: str = ""
    streamed: bool = True
    answers: int = 1
    capped: bool = True
    declared: bool = True
    retry_after_s: float = -1.0

    @property
    def tokens_each(self) -> float:
        """Output tokens per answer, the mean over the answers to the prompt."""
        return self.output_tokens / self.answers

    @property
    def total_target_ms(self) -> float:
        """Target for the whole answer: its TTFT target plus its TPOT target for each token after the first."""
        return whole_due_ms(self.tokens_each, self.slo)


def is_good(result: Result) -> bool:
    """OK(r) of H-MAS Eq. 1, and completed. An answer that is not streamed must be complete when a stream would have had to end."""
    if result.outcome != "completed":
        return False
    if not result.streamed:
        return 0.0 <= result.total_ms <= result.total_target_ms
    return slo_met(result.ttft_ms, result.tpot_ms, result.slo)


def empty_result(index: int, arrival: Arrival) -> Result:
    """The initial result of an arrival."""
    return Result(
        index=index,
        at_s=arrival.at_s,
        kind=arrival.kind,
        tenant=arrival.tenant,
        task_type=arrival.task_type,
        size=arrival.size,
        prompt_tokens=arrival.prompt_tokens,
        wanted_tokens=arrival.output_tokens,
        slo=arrival.slo,
        streamed=arrival.body is None or arrival.body.streamed,
        answers=1 if arrival.body is None else arrival.body.answers,
        capped=arrival.max_tokens > 0,
        declared=arrival.declares,
    )


class RunSummary(msgspec.Struct, kw_only=True):
    """The summary of a load generator's run.

    Attributes:
        started_s: When arrivals began, seconds since the epoch.
        elapsed_s: Time until the last answer, or until the end of waiting.
        max_gap_s: Longest time in which the event loop did not run; above `GAP_LIMIT_S` latencies are unreliable.
        outcomes: Count by outcome.
    """

    started_s: float
    elapsed_s: float
    max_gap_s: float
    outcomes: dict[str, int]

    @property
    def noisy(self) -> bool:
        """Whether timer gaps make the run unreliable."""
        return self.max_gap_s > GAP_LIMIT_S


GAP_LIMIT_S = 0.3


def write_lines(path: Path, items: Iterable[object]) -> None:
    """Writes one JSON document per line."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as handle:
        for item in items:
            handle.write(encoder.encode(item) + b"\n")


def read_results(path: Path) -> list[Result]:
    """Reads a results file.

    Raises:
        TraceError: The file does not exist, or a line is not a result; the error names the line.
    """
    try:
        return msgspec.json.Decoder(Result).decode_lines(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {error}") from error


def count_outcomes(results: Sequence[Result]) -> dict[str, int]:
    """Number of requests by outcome, including outcomes with none."""
    return {name: sum(r.outcome == name for r in results) for name in OUTCOMES}


SIMULATED_OUTCOMES: Mapping[OutcomeKind, ClientOutcome] = {
    OutcomeKind.COMPLETED: "completed",
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.SHED: "shed",
    OutcomeKind.TIMED_OUT: "timed_out",
    OutcomeKind.FAILED: "failed",
    OutcomeKind.CANCELLED: "failed",
}


def with_record(result: Result, record: RequestRecord, *, outcome: ClientOutcome, detail: str) -> Result:
    """The result with what the client of a simulated request would measure: the times and counts of its record."""
    result.outcome, result.detail = outcome, detail
    result.ttft_ms, result.tpot_ms, result.total_ms = record.ttft_ms, record.tpot_ms, record.total_ms
    result.output_tokens = record.output_tokens
    result.policy, result.queue_ms = record.policy, record.queue_ms
    return result
