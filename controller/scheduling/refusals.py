"""Builds the result of a request that has ended or is refused."""

import msgspec

from hmas.controller.core.messages import Completion
from hmas.controller.core.notices import session_digest
from hmas.controller.core.objectives import slo_met, whole_due_ms
from hmas.controller.core.types import Estimates, OutcomeKind, Request
from hmas.controller.scheduling.admission.quotas import OverQuota, OverWaiting
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.kv_fence import least_sequence_tokens
from hmas.controller.scheduling.instances.running import Running
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.results import Ended, Refusal


def ended_waiting(entry: QueueEntry, kind: OutcomeKind, policy: str, now_s: float) -> Ended:
    """The result of a request that was never dispatched, or was waiting for its second try."""
    total_ms = 1000.0 * (now_s - entry.request.arrival_s)
    return Ended(entry=entry, kind=kind, total_ms=total_ms, predicted=entry.estimates, policy=policy)


def ended_refused(request: Request, estimates: Estimates, refusal: Refusal, policy: str, now_s: float) -> Ended:
    """The result of a request that was not admitted to the queue."""
    ended = ended_waiting(QueueEntry(request=request, estimates=estimates, seq=-1), refusal.kind, policy, now_s)
    return msgspec.structs.replace(ended, status=refusal.status)


def ended_running(run: Running, kind: OutcomeKind, now_s: float, output_tokens: int | None) -> Ended:
    """The result of a request that was in flight. `output_tokens`: the engine's own count, None to use the scheduler's count."""
    request, slo = run.entry.request, run.entry.estimates.slo
    tokens = run.tokens if output_tokens is None else output_tokens
    paid_tokens = tokens
    if not (tokens or request.stream) and kind in (OutcomeKind.CANCELLED, OutcomeKind.TIMED_OUT):
        # Nothing is heard of a whole answer that breaks off, and the engine has worked for it all the same.
        paid_tokens = round(run.sequences * max(0.0, min(run.length, run.instance.pace.foresight.steps - run.from_step)))
    elif output_tokens is None and not request.stream and kind is OutcomeKind.COMPLETED:
        # A response that its engine goes on with in the background, or an engine that reports no usage.
        paid_tokens = round(run.sequences * run.length)
    # Of several answers only the sum is known: the mean stands for each.
    each = tokens / run.sequences
    total_ms = 1000.0 * (now_s - request.arrival_s)
    ttft_ms = service_ttft_ms = tpot_ms = -1.0
    first_s = run.first_s
    if first_s is None and request.stream and kind is OutcomeKind.COMPLETED:
        # A stream without text, such as an answer that ends at once: its end is all that its client waits for.
        first_s = now_s
    if first_s is not None:
        ttft_ms = 1000.0 * (first_s - request.arrival_s)
        service_ttft_ms = 1000.0 * (first_s - run.dispatched_s)
        if each >= 2.0 and run.first_s is not None:
            tpot_ms = 1000.0 * (run.last_s - run.first_s) / (each - 1.0)
    met = slo_met(ttft_ms, tpot_ms, slo) if request.stream else tokens > 0 and total_ms <= whole_due_ms(each, slo)
    return Ended(
        entry=run.entry,
        kind=kind,
        instance=run.instance.name,
        queue_ms=1000.0 * (run.dispatched_s - request.arrival_s),
        ttft_ms=ttft_ms,
        service_ttft_ms=service_ttft_ms,
        tpot_ms=tpot_ms,
        total_ms=total_ms,
        output_tokens=tokens,
        paid_tokens=paid_tokens,
        slo_met=kind is OutcomeKind.COMPLETED and met,
        running_at_dispatch=run.running,
        kv_usage_at_dispatch=run.kv_usage,
        predicted=run.predicted,
        policy=run.policy,
    )


def charged_tokens(ended: Ended) -> int:
    """What the quota of its tenant pays for a request that was in flight: nothing if an engine refused it, or failed before it answered."""
    if ended.kind in (OutcomeKind.REJECTED, OutcomeKind.FAILED) and ended.ttft_ms < 0.0 and not ended.output_tokens:
        return 0
    return ended.entry.request.prompt_tokens + ended.paid_tokens


def completion_of(ended: Ended, now_s: float) -> Completion:
    """The telemetry of one ended request, as far as the scheduler knows it."""
    request, believed, latest = ended.entry.request, ended.predicted, ended.entry.estimates
    return Completion(
        request_id=request.id,
        sent_s=now_s,
        tenant=request.tenant,
        model=request.model,
        outcome=ended.kind,
        arrival_s=request.arrival_s,
        policy=ended.policy,
        instance=ended.instance,
        task_type=latest.task_type,
        prompt_tokens=request.prompt_tokens,
        output_tokens=ended.output_tokens,
        queue_ms=ended.queue_ms,
        ttft_ms=ended.ttft_ms,
        service_ttft_ms=ended.service_ttft_ms,
        tpot_ms=ended.tpot_ms,
        total_ms=ended.total_ms,
        ttft_slo_ms=latest.slo.ttft_ms,
        tpot_slo_ms=latest.slo.tpot_ms,
        predicted_output_tokens=believed.output_tokens,
        predicted_ttft_ms=believed.ttft_ms,
        predicted_tpot_ms=believed.tpot_ms,
        running=ended.running_at_dispatch,
        kv_usage=ended.kv_usage_at_dispatch,
        slo_met=ended.slo_met,
        max_output_tokens=request.max_output_tokens or 0,
        sequences=request.sequences,
        stream=request.stream,
        status=ended.status,
        session=session_digest(request.session),
        ttft_declared=request.declares_ttft,
    )


def _rejected(status: int, code: str, message: str, retry_after_s: float = 0.0) -> Refusal:
    return Refusal(kind=OutcomeKind.REJECTED, status=status, code=code, message=message, retry_after_s=retry_after_s)


def _shed(entry: QueueEntry, now_s: float, retry_after_s: float, *, status: int, code: str, why: str) -> Refusal:
    message = f"dropped after {now_s - entry.request.arrival_s:.1f} s in the queue: {why}"
    return Refusal(kind=OutcomeKind.SHED, status=status, code=code, message=message, retry_after_s=retry_after_s)


def queue_full(queued: int, limit: int, retry_after_s: float) -> Refusal:
    """429: too many requests wait already."""
    return _rejected(429, "queue_full", f"{queued} requests are waiting and the limit is {limit}; try again later", retry_after_s)


def over_quota(tenant: str, over: OverQuota) -> Refusal:
    """429: the tenant has used up its quota per minute. The wait lasts until its bucket holds enough, however long that is."""
    message = (
        f"tenant {tenant!r} has used up its quota of {over.limit} {over.what} per minute; "
        f"it will hold enough for this request in {over.wait_s:.1f} s"
    )
    return _rejected(429, "tenant_quota", message, over.wait_s)


def tenant_queue_full(request: Request, over: OverWaiting, retry_after_s: float) -> Refusal:
    """429: as much of the tenant waits as its limits allow."""
    message = (
        f"{over.held} {over.what} of tenant {request.tenant!r} wait already and this request has {over.asked}; "
        f"its limit {over.limit_name} is {over.limit}"
    )
    return _rejected(429, "tenant_quota", message, retry_after_s)


def too_large(request: Request, instances: tuple[Instance, ...]) -> Refusal:
    """400: the KV tokens that one sequence of the request certainly needs exceed every instance's KV cache."""
    largest = max(instance.fence.capacity_tokens for instance in instances)
    prompt_tokens = request.prompt_tokens // request.prompts
    output_tokens = least_sequence_tokens(request) - prompt_tokens
    asked = f" and asks for at least {output_tokens} more" if output_tokens > 1 else ""
    message = f"the prompt has about {prompt_tokens} tokens{asked}; with its output it must fit into {largest} tokens of KV cache"
    return _rejected(400, "context_length_exceeded", message)


def outranked(entry: QueueEntry, now_s: float, retry_after_s: float) -> Refusal:
    """429: the queue is full and another request ranks higher."""
    why = "it is full, and another request goes before this one by priority or importance, or because this one is overdue"
    return _shed(entry, now_s, retry_after_s, status=429, code="outranked", why=why)


def shed(entry: QueueEntry, now_s: float, retry_after_s: float) -> Refusal:
    """504: the TTFT target is out of reach."""
    why = f"the first token can no longer come within {entry.estimates.slo.ttft_ms:.0f} ms"
    return _shed(entry, now_s, retry_after_s, status=504, code="slo_unattainable", why=why)


def waited_out(entry: QueueEntry, now_s: float, retry_after_s: float) -> Refusal:
    """503: the request has been overdue for so long that an answer is of no use any more."""
    why = f"engines are overloaded, and the first token was due in {entry.estimates.slo.ttft_ms:.0f} ms"
    return _shed(entry, now_s, retry_after_s, status=503, code="overloaded", why=why)


def timed_out(entry: QueueEntry, now_s: float, retry_after_s: float) -> Refusal:
    """504: the request's own deadline has passed."""
    return Refusal(
        kind=OutcomeKind.TIMED_OUT,
        status=504,
        code="deadline_exceeded",
        message=f"the deadline passed after {now_s - entry.request.arrival_s:.1f} s in the queue",
        retry_after_s=retry_after_s,
    )
