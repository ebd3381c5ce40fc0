"""One request's trace as a document: the answer to `GET /admin/requests/{id}`."""

from typing import Any

from hmas.controller.control.resolve import Setting
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import Estimates
from hmas.controller.observability.request_trace import DispatchAttempt, RequestTrace, RequestTraces, Sample
from hmas.controller.scheduling.policies.registry import GUARD

SAMPLES_TOLD = 20
FULL, DOWN = "all instances at their limit", "no healthy instance"
"""Reasons that concern the whole group; those of a single request are in `hmas.controller.scheduling.dispatch` and `tenant_share`."""


def trace_report(trace: RequestTrace, traces: RequestTraces, *, position: int | None, now_s: float) -> dict[str, Any]:
    """The whole trace; its times are milliseconds after the arrival.

    Args:
        trace: The request's trace.
        traces: The traces, with the records that concern all requests.
        position: How many requests would go before it now, None if unknown.
        now_s: The current time, the end of the report for a request that has not ended.
    """
    request, completion = trace.request, trace.completion
    end_s = now_s if completion is None else completion.sent_s
    return {
        "id": request.id,
        "client_id": trace.client_request_id if trace.client_request_id != request.id else None,
        "earlier_with_this_client_id": trace.previous or None,
        "state": _state(trace),
        "tenant": request.tenant,
        "model": request.model,
        "session": request.session or None,
        "stream": request.stream,
        "priority": request.priority,
        "arrival_s": request.arrival_s,
        "age_ms": 1000.0 * (end_s - request.arrival_s),
        "prompt_tokens": request.prompt_tokens,
        "max_output_tokens": request.max_output_tokens,
        "slo": _slo(trace),
        "beliefs": [{"after_ms": _after(trace, at_s), **_belief(estimates)} for at_s, estimates in trace.beliefs],
        "queue": _queue(trace, traces, position, end_s),
        "policies": _policies(trace, traces, end_s),
        "tries": [_try(trace, one, place) for place, one in enumerate(trace.tries)],
        "actual": None if completion is None else _actual(completion),
        "outcome": None if completion is None else _outcome(completion),
    }


def _state(trace: RequestTrace) -> str:
    if trace.completion is not None:
        return "ended"
    return "running" if len(trace.tries) > len(trace.failures) else "waiting"


def _after(trace: RequestTrace, at_s: float) -> float:
    return 1000.0 * max(0.0, at_s - trace.request.arrival_s)


def _slo(trace: RequestTrace) -> dict[str, Any]:
    """The declared targets, and those that applied: a target that the client did not declare is inferred from its task."""
    declared, believed = trace.declared, trace.beliefs[-1][1]
    return {
        "declared": {"ttft_ms": declared.ttft_ms, "tpot_ms": declared.tpot_ms},
        "in_force": {"ttft_ms": believed.slo.ttft_ms, "tpot_ms": believed.slo.tpot_ms},
        "task_type": believed.task_type.value,
    }


def _belief(estimates: Estimates) -> dict[str, Any]:
    return {
        "source": estimates.source,
        "task_type": estimates.task_type.value,
        "importance": estimates.importance,
        "output_tokens": estimates.output_tokens,
        "output_tokens_upper": estimates.output_tokens_upper,
        "ttft_ms": estimates.ttft_ms,
        "tpot_ms": estimates.tpot_ms,
        "total_ms": estimates.total_ms,
        "ttft_slo_ms": estimates.slo.ttft_ms,
        "tpot_slo_ms": estimates.slo.tpot_ms,
    }


def _queue(trace: RequestTrace, traces: RequestTraces, position: int | None, end_s: float) -> dict[str, Any]:
    """Its positions in the queue. `gone`: requests dispatched since its arrival, including those that came after it."""
    came, last = trace.came, trace.tries[-1] if trace.tries else None
    until_s = end_s if last is None or _state(trace) == "waiting" else last.at_s
    places = [{"after_ms": 0.0, "policy": trace.policy, "waiting": came.waiting, "gone": 0}]
    between = [s for s in traces.samples if trace.request.arrival_s < s.at_s < until_s]
    places += [_place(trace, sample) for sample in between[:: max(1, -(-len(between) // SAMPLES_TOLD))]]
    places += [
        {
            "after_ms": _after(trace, one.at_s),
            "policy": one.policy,
            "waiting": one.glance.waiting,
            "gone": one.glance.dispatched - came.dispatched,
        }
        for one in trace.tries
    ]
    waited_for = dict(trace.entry.held or {}) if trace.entry is not None else {}
    if last is not None or trace.completion is None:
        seen = traces.glance(trace.request.model) if last is None else last.glance
        waited_for |= {FULL: seen.full - came.full, DOWN: seen.down - came.down}
    return {
        "position": position,
        "history": sorted(places, key=lambda place: place["after_ms"]),
        "waited_for": {reason: count for reason, count in waited_for.items() if count > 0},
    }


def _place(trace: RequestTrace, sample: Sample) -> dict[str, Any]:
    return {
        "after_ms": _after(trace, sample.at_s),
        "policy": sample.policy,
        "waiting": sample.waiting,
        "gone": max(0, sample.dispatched - trace.came.dispatched),
    }


def _policies(trace: RequestTrace, traces: RequestTraces, end_s: float) -> list[dict[str, Any]]:
    """The policy that was active at its arrival, and every change until its dispatch (or until now)."""
    until_s = trace.tries[-1].at_s if trace.tries and _state(trace) != "waiting" else end_s
    arrival_s = trace.request.arrival_s
    before = [turn for turn in traces.turns if turn.at_s <= arrival_s][-1:]
    turns = [*before, *(turn for turn in traces.turns if arrival_s < turn.at_s <= until_s)]
    found: list[dict[str, Any]] = []
    for turn in turns:
        wanted = turn.directives.policy
        entry = {
            "after_ms": _after(trace, turn.at_s),
            "policy": wanted.value,
            "parameters": dict(turn.directives.parameters),
            "source": wanted.source,
            "reason": wanted.reason,
        }
        if not found or {**entry, "after_ms": 0} != {**found[-1], "after_ms": 0}:
            found.append(entry)
    return found


def _try(trace: RequestTrace, one: DispatchAttempt, place: int) -> dict[str, Any]:
    directive = one.directives.instances.get(one.instance)
    knobs = {} if directive is None else {"n_run": _setting(directive.n_run), "token_budget": _setting(directive.token_budget)}
    # A share that is set explicitly applies to all instances alike, and then the factors of instances do not count.
    if directive is not None and GUARD not in one.parameters:
        knobs["guard"] = _setting(directive.guard)
    return {
        "after_ms": _after(trace, one.at_s),
        "instance": one.instance,
        "reason": one.reason,
        "in_spite_of": one.relieved or None,
        "policy": {"name": one.policy, "parameters": one.parameters, **_origin(one.directives.policy)},
        "bypass": one.directives.policy.source == "bypass",
        "knobs": knobs,
        "in_flight": one.in_flight,
        "failed": trace.failures[place] if place < len(trace.failures) else None,
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {"value": setting.value, **_origin(setting)}


def _origin(setting: Setting) -> dict[str, Any]:
    return {"source": setting.source, "reason": setting.reason}


def _actual(completion: Completion) -> dict[str, Any]:
    return {
        "queue_ms": _known(completion.queue_ms),
        "ttft_ms": _known(completion.ttft_ms),
        "tpot_ms": _known(completion.tpot_ms),
        "total_ms": completion.total_ms,
        "output_tokens": completion.output_tokens,
        "cached_tokens": completion.cached_tokens,
    }


def _outcome(completion: Completion) -> dict[str, Any]:
    return {
        "kind": completion.outcome.value,
        "status": completion.status,
        "reason": completion.reason,
        "slo_met": completion.slo_met,
        "instance": completion.instance or None,
    }


def _known(value: float) -> float | None:
    return value if value >= 0.0 else None


def unknown(request_id: str, kept: int, kept_s: float) -> str:
    """The message for an unknown request, or if no traces are kept."""
    if not kept:
        return "this gateway keeps no stories of requests: gateway.explain_kept is 0"
    return (
        f"request {request_id[:80]!r} is not known, or not any more: requests are known while they are under way and {kept_s:g} s after "
        f"their end, the last {kept} of them (gateway.explain_s, gateway.explain_kept)"
    )
