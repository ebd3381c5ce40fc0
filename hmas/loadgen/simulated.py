"""The result of a simulated request as its client would measure it."""

from hmas.controller.core.types import Slo, TaskType
from hmas.controller.simulation import RequestRecord
from hmas.loadgen.results import ClientOutcome, Result


def result_of(
    record: RequestRecord,
    *,
    index: int,
    kind: str,
    task_type: TaskType,
    size: str,
    wanted_tokens: int,
    slo: Slo,
    outcome: ClientOutcome,
    detail: str,
) -> Result:
    """A result with the record's times and counts and the data of the workload; see `Result` for the fields."""
    return Result(
        index=index,
        at_s=record.arrival_s,
        kind=kind,
        tenant=record.tenant,
        task_type=task_type,
        size=size,
        prompt_tokens=record.prompt_tokens,
        wanted_tokens=wanted_tokens,
        slo=slo,
        outcome=outcome,
        ttft_ms=record.ttft_ms,
        tpot_ms=record.tpot_ms,
        total_ms=record.total_ms,
        output_tokens=record.output_tokens,
        policy=record.policy,
        queue_ms=record.queue_ms,
        detail=detail,
    )
