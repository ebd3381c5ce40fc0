"""One request's trace as a document: the answer to `GET /admin/requests/{id}`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import to_builtins

from hmas.controller.control.resolve import Setting
from hmas.controller.core.objectives import whole_due_ms
from hmas.controller.core.types import OutcomeKind, Slo
from hmas.controller.observability.observer import Completion, Estimates
from hmas.controller.observability.request_trace import DispatchAttempt, QueueSample, RequestTrace, RequestTraces
from hmas.controller.scheduling.dispatch import FENCE
from hmas.controller.scheduling.policies.registry import GUARD, POLICIES, make_policy
from hmas.controller.scheduling.policy_base.declaration import OUTPUT_LENGTH, SERVICE_TIME
from hmas.controller.scheduling.queue.model_queue import GUARD as TPOT_GUARD

SAMPLES_SHOWN = 20
FULL, DOWN = "all instances at their limit", "no healthy instance"
"""Reasons that concern all requests for a model; those of a single one are in `hmas.controller.scheduling.dispatch` and `tenant_share`."""


def trace_report(trace: RequestTrace, traces: RequestTraces, *, position: int | None, bound_to: str, now_s: float) -> dict[str, Any]:
    """The whole trace; its times are milliseconds after the arrival.

    Args:
        trace: The request's trace.
        traces: The traces, with the records that concern all requests.
        position: How many requests would go before it now, None if unknown.
        bound_to: The instance in whose queue it waits, empty if in none of a single one.
        now_s: The current time, the end of the report for a request that has not ended.
    """
    request, completion, attempts = trace.request, trace.completion, trace.attempts
    end_s = now_s if completion is None else completion.sent_s
    waits = completion is None and len(attempts) <= len(trace.failures)
    queue_until_s = attempts[-1].queue.at_s if attempts and not waits else end_s
    waited_for = _waited_for(trace, attempts[-1].queue if attempts else trace.left or traces.queue(request.model, now_s))
    return {
        "id": request.id,
        "client_id": trace.client_request_id if trace.client_request_id != request.id else None,
        "earlier_with_this_client_id": trace.previous or None,
        "state": "ended" if completion is not None else "waiting" if waits else "running",
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
        "estimates": [{"after_ms": _after_ms(trace, at_s), "total_ms": one.total_ms, **_figures(one)} for at_s, one in trace.estimates],
        "queue": {
            "position": position,
            "bound_to": bound_to or None,
            "history": _history(trace, traces, queue_until_s),
            "waited_ms": _waited_ms(trace, queue_until_s),
            "waited_for": waited_for,
            "forecasts": held_by_forecasts(trace, waited_for, queue_until_s),
            "too_costly": too_costly(trace, traces, queue_until_s),
        },
        "policies": _policies(trace, traces, queue_until_s),
        "attempts": [_attempt(trace, one, trace.failures[n] if n < len(trace.failures) else None) for n, one in enumerate(attempts)],
        "actual": None if completion is None else _actual(completion),
        "outcome": None if completion is None else _outcome(completion, stream=request.stream),
    }


def _figures(estimates: Estimates) -> dict[str, Any]:
    found: dict[str, Any] = to_builtins(estimates)
    del found["alone"]  # not kept: what counted of it is with the attempt
    return found


def _after_ms(trace: RequestTrace, at_s: float) -> float:
    return 1000.0 * max(0.0, at_s - trace.request.arrival_s)


def _waited_ms(trace: RequestTrace, until_s: float) -> float:
    """How long it was in the queue until `until_s`. The time at an instance that failed it is none of that."""
    failed_s = sum(at_s - one.queue.at_s for one, (at_s, _) in zip(trace.attempts, trace.failures, strict=False))
    return _after_ms(trace, until_s - failed_s)


def _slo(trace: RequestTrace) -> dict[str, Any]:
    """The declared targets, and those that applied: a target that the client did not declare is inferred from its task."""
    # The scheduler may have raised targets that were not declared.
    declared, last = trace.declared, trace.estimates[-1][1] if trace.entry is None else trace.entry.estimates
    return {
        "declared": {"ttft_ms": declared.ttft_ms, "tpot_ms": declared.tpot_ms},
        "active": to_builtins(last.slo),
        "task_type": last.task_type.value,
    }


def _history(trace: RequestTrace, traces: RequestTraces, until_s: float) -> list[dict[str, Any]]:
    """The queue at its arrival, meanwhile and at each dispatch. `dispatched`: requests since its arrival, also those that came later."""
    between = _between(trace, traces, until_s)
    samples = [trace.arrival, *between[:: max(1, -(-len(between) // SAMPLES_SHOWN))], *(one.queue for one in trace.attempts)]
    return [
        {
            "after_ms": _after_ms(trace, one.at_s),
            "policy": one.policy,
            "waiting": one.waiting,
            "dispatched": max(0, one.dispatched - trace.arrival.dispatched),
        }
        for one in sorted(samples, key=lambda one: one.at_s)
    ]


def _waited_for(trace: RequestTrace, last: QueueSample) -> dict[str, int]:
    """How often each reason held it back, until it was dispatched, was dropped, or now."""
    counts = dict(trace.entry.held or {}) if trace.entry is not None else {}
    counts |= {FULL: last.full - trace.arrival.full, DOWN: last.down - trace.arrival.down}
    return {reason: count for reason, count in counts.items() if count > 0}


FORECASTS: Mapping[str, str] = MappingProxyType({FENCE: "output_tokens_upper", TPOT_GUARD: "ttft_ms"})
"""The forecast about the request itself that each reason to wait is based on: its length at most, the time of its prefill."""
ORDER = "its place in the order"
WAITED_MS = 100.0
"""A shorter wait is not explained by the order of the queue."""


def held_by_forecasts(trace: RequestTrace, waited_for: Mapping[str, int], until_s: float) -> list[dict[str, Any]]:
    """The forecasts that made the request wait, each with its source and, once it is known, the measured value.

    Of several forecasts of a figure the one that counted for most of the wait is shown. A longer wait is put down to the forecast length,
    too, if the active policy orders by it.
    """
    figures = {reason: FORECASTS[reason] for reason in waited_for if reason in FORECASTS}
    policy = POLICIES.get(trace.attempts[-1].queue.policy if trace.attempts else trace.arrival.policy)
    if policy is not None and {OUTPUT_LENGTH, SERVICE_TIME} & {*policy.signals} and _waited_ms(trace, until_s) >= WAITED_MS:
        figures[ORDER] = "output_tokens"
    found = []
    for reason, figure in figures.items():
        value, source = _longest_held(trace, figure, until_s)
        found.append({"reason": reason, "figure": figure, "forecast": value, "source": source, "measured": _measured(trace, figure)})
    return found


def too_costly(trace: RequestTrace, traces: RequestTraces, until_s: float) -> dict[str, Any] | None:
    """In how many of the samples the policy put the request behind others because of its cost, and cost and threshold in the last of them.

    None if it did not, or if the wait was too short for a sample.
    """
    entry, samples = trace.entry, _between(trace, traces, until_s)
    if entry is None or not samples:
        return None
    directives = next((one for at_s, one in reversed(traces.policies) if at_s <= until_s), None)
    if directives is None or directives.policy.value != samples[-1].policy:
        return None
    cost = make_policy(directives.policy.value, directives.parameters).cost(entry)
    above = [one.cost_threshold for one in samples if one.cost_threshold and cost > one.cost_threshold]
    return {"cost": cost, "threshold": above[-1], "samples": len(above), "of": len(samples)} if above else None


def _between(trace: RequestTrace, traces: RequestTraces, until_s: float) -> list[QueueSample]:
    return [one for one in traces.samples if trace.request.arrival_s < one.at_s < until_s]


def _longest_held(trace: RequestTrace, figure: str, until_s: float) -> tuple[float, str]:
    """The value of an estimate that was the current one for the longest part of the wait, and the source that first gave it."""
    spans: dict[float, float] = {}
    sources: dict[float, str] = {}
    for place, (at_s, estimates) in enumerate(trace.estimates):
        next_s = trace.estimates[place + 1][0] if place + 1 < len(trace.estimates) else until_s
        value = getattr(estimates, figure)
        spans[value] = spans.get(value, 0.0) + max(0.0, min(next_s, until_s) - at_s)
        sources.setdefault(value, estimates.source)
    longest = max(spans, key=lambda value: spans[value])
    return longest, sources[longest]


def _measured(trace: RequestTrace, figure: str) -> float | None:
    """What the request turned out to be; None if it is not known."""
    completion = trace.completion
    if completion is None or completion.outcome is not OutcomeKind.COMPLETED:
        return None
    if figure == "ttft_ms":
        return completion.ttft_ms - max(0.0, completion.queue_ms) if completion.ttft_ms >= 0.0 else None
    return float(completion.output_tokens)


def _policies(trace: RequestTrace, traces: RequestTraces, until_s: float) -> list[dict[str, Any]]:
    """The policy that was active at its arrival, and every change until its dispatch (or until now)."""
    before = [one for one in traces.policies if one[0] <= trace.request.arrival_s][-1:]
    during = [one for one in traces.policies if trace.request.arrival_s < one[0] <= until_s]
    return [
        {
            "after_ms": _after_ms(trace, at_s),
            "policy": directives.policy.value,
            "parameters": dict(directives.parameters),
            **_origin(directives.policy),
        }
        for at_s, directives in [*before, *during]
    ]


def _attempt(trace: RequestTrace, one: DispatchAttempt, failure: tuple[float, str] | None) -> dict[str, Any]:
    directive, policy = one.directives.instances.get(one.instance), one.directives.policy
    knobs = {} if directive is None else {"n_run": to_builtins(directive.n_run), "token_budget": to_builtins(directive.token_budget)}
    # A share that is set explicitly applies to all instances alike, and then the factors of instances do not count.
    if directive is not None and GUARD not in one.parameters:
        knobs["guard"] = to_builtins(directive.guard)
    return {
        "after_ms": _after_ms(trace, one.queue.at_s),
        "instance": one.instance,
        "reason": one.reason,
        "relieved": one.relieved or None,
        "scores": [{"scorer": name, "score": score, "weight": weight} for name, score, weight in one.scores],
        "alone_ms": one.alone_ms,
        "policy": {"name": one.queue.policy, "parameters": one.parameters, **_origin(policy)},
        "bypass": policy.source == "bypass",
        "knobs": knobs,
        "in_flight": one.in_flight,
        "failed": None if failure is None else failure[1],
        "failed_after_ms": None if failure is None else _after_ms(trace, failure[0]),
    }


def _origin(setting: Setting) -> dict[str, Any]:
    return {"source": setting.source, "reason": setting.reason, "decision_id": setting.decision_id}


def _actual(completion: Completion) -> dict[str, Any]:
    return {
        "queue_ms": _known(completion.queue_ms),
        "ttft_ms": _known(completion.ttft_ms),
        "tpot_ms": _known(completion.tpot_ms),
        "total_ms": completion.total_ms,
        "output_tokens": completion.output_tokens,
        "cached_tokens": completion.cached_tokens,
    }


def _outcome(completion: Completion, *, stream: bool) -> dict[str, Any]:
    whole = not stream and completion.outcome is OutcomeKind.COMPLETED and completion.ttft_ms < 0.0
    slo = Slo(ttft_ms=completion.ttft_slo_ms, tpot_ms=completion.tpot_slo_ms)
    return {
        "kind": completion.outcome.value,
        "status": completion.status,
        "reason": completion.reason,
        "slo_met": completion.slo_met,
        # An answer in one piece shows neither TTFT nor TPOT: it is in time if it is whole when its last token was due.
        "whole_due_ms": whole_due_ms(completion.output_tokens / completion.sequences, slo) if whole else None,
        "instance": completion.instance or None,
    }


def _known(value: float) -> float | None:
    return value if value >= 0.0 else None


def unknown(request_id: str, kept: int, kept_s: float) -> str:
    """The message for an unknown request, or if no traces are kept."""
    if not kept:
        return "this gateway keeps no traces of requests: gateway.explain_kept is 0"
    return (
        f"request {request_id[:80]!r} is unknown or no longer kept: requests are kept while they are in progress and {kept_s:g} s after "
        f"their end, the last {kept} of them (gateway.explain_s, gateway.explain_kept)"
    )
