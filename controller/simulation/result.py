"""The result of a simulation: records of requests and totals of engines."""

import msgspec

from hmas.controller.core.types import OutcomeKind, Request, Slo
from hmas.controller.scheduling.results import Counts, Ended, Refusal


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request's outcome; conventions as in `hmas.controller.core.messages.Completion` (-1 for a time that did not occur).

    Attributes:
        outcome: None if the request was still live when the simulation stopped.
        slo: Its targets at its end.
        stream: Whether it asked for a stream. `slo_met` of one that did not is by its end alone (`objectives.whole_due_ms`).
    """

    request_id: str
    tenant: str
    model: str
    arrival_s: float
    prompt_tokens: int
    outcome: OutcomeKind | None
    instance: str = ""
    queue_ms: float = -1.0
    ttft_ms: float = -1.0
    service_ttft_ms: float = -1.0
    tpot_ms: float = -1.0
    total_ms: float = -1.0
    output_tokens: int = 0
    slo: Slo | None = None
    slo_met: bool = False
    stream: bool = True
    policy: str = ""
    reason: str = ""


class EngineTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one engine: steps, the time spent in them, tokens, preemptions, and the most KV blocks held at once."""

    steps: int
    busy_s: float
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    kv_blocks_peak: int


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The records of all requests up to the virtual time `end_s`, in the order of arrival, with totals by instance and checked counts."""

    records: list[RequestRecord]
    counts: Counts
    engines: dict[str, EngineTotals]
    end_s: float


def record_of(ended: Ended, reason: str = "") -> RequestRecord:
    """The record of a request that the scheduler has ended."""
    request = ended.entry.request
    return RequestRecord(
        request_id=request.id,
        tenant=request.tenant,
        model=request.model,
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt_tokens,
        outcome=ended.kind,
        instance=ended.instance,
        queue_ms=ended.queue_ms,
        ttft_ms=ended.ttft_ms,
        service_ttft_ms=ended.service_ttft_ms,
        tpot_ms=ended.tpot_ms,
        total_ms=ended.total_ms,
        output_tokens=ended.output_tokens,
        slo=ended.entry.estimates.slo,
        slo_met=ended.slo_met,
        stream=request.stream,
        policy=ended.policy,
        reason=reason,
    )


def record_of_unserved(request: Request, refusal: Refusal | None = None) -> RequestRecord:
    """The record of a request that was refused, or (without a refusal) was still live when the simulation stopped."""
    return RequestRecord(
        request_id=request.id,
        tenant=request.tenant,
        model=request.model,
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt_tokens,
        outcome=None if refusal is None else refusal.kind,
        slo=request.declared_slo,
        reason="" if refusal is None else refusal.message,
    )
