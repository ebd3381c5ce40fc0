"""`hmas explain`: prints the trace of one request."""

from typing import Any

import click

from hmas.cli.admin import takes_client
from hmas.cli.output import clock_words, example, json_option, show, table
from hmas.cli.policy import parameter_words
from hmas.cli.status import in_time
from hmas.controller.admin.client import AdminClient


@click.command(epilog=example("hmas explain 4f3c9a"))
@click.argument("request_id")
@json_option
@takes_client
def explain(client: AdminClient, *, request_id: str, as_json: bool) -> None:
    """Print the trace of request REQUEST_ID: its outcome and the reasons. The id is the answer's x-request-id, or the client's own."""
    show(client.request(request_id), page, as_json=as_json)


def page(document: dict[str, Any]) -> str:
    """The trace as text."""
    queue, limit = document["queue"], document["max_output_tokens"]
    tokens = f"{document['prompt_tokens']} prompt tokens" + (f", {limit} output tokens at most" if limit is not None else "")
    origin = f"tenant {document['tenant']}, model {document['model']}, priority {document['priority']}"
    lines = [
        f"request   {document['id']}" + (f", client id {document['client_id']}" if document["client_id"] else ""),
        f"from      {origin}, arrived {clock_words(document['arrival_s'])}, {tokens}",
        f"state     {_state(document)}",
        f"targets   {_target(document['slo'], 'TTFT', 'ttft_ms')}, {_target(document['slo'], 'TPOT', 'tpot_ms')}",
        f"waited    {_waited(document)}",
        *(_forecast(one) for one in queue["forecasts"]),
    ]
    lines += [f"sent      {_sent(one)}" for one in document["attempts"]]
    if document["tenant_now"]:
        lines.append(f"tenant    {_tenant(document['tenant_now'])}")
    if document["earlier_with_this_client_id"]:
        lines.append(f"note      an earlier request had the same client id: {document['earlier_with_this_client_id']}")
    places = [(_ms(one["after_ms"]), one["policy"], one["waiting"], one["dispatched"]) for one in queue["history"]]
    lines += ["", "predicted and measured:", _predicted_and_measured(document)]
    lines += ["", "the queue:", table(["after", "policy", "requests waiting", "dispatched since it arrived"], places)]
    if len(document["policies"]) > 1:
        policies = [(_ms(one["after_ms"]), one["policy"], one["source"], one["reason"]) for one in document["policies"]]
        lines += ["", "policies in that time:", table(["after", "policy", "set by", "reason"], policies)]
    return "\n".join(lines)


def _tenant(tenant: dict[str, Any]) -> str:
    """What the request's tenant got in the last minute, and what it has waiting now."""
    shares = f"{tenant['service_share']:.0%} of the service, {tenant['weight_share']:.0%} by its weight of {tenant['weight']:g}"
    waits = f" ({tenant['waits_for']})" if tenant["waits_for"] else ""
    return f"{tenant['name']} in the last minute: {in_time(tenant)} in time, {shares}; {tenant['waiting']} waiting now{waits}"


AT_ONCE_MS = 20.0
"""A shorter wait is none."""
FIGURES = {
    "output_tokens": "output tokens",
    "output_tokens_upper": "output tokens at most",
    "ttft_ms": "ms from dispatch to the first token",
}


def _waited(document: dict[str, Any]) -> str:
    """How long it was in the queue, what held it back (the number of scheduling attempts), and how many others went meanwhile."""
    queue = document["queue"]
    waits = sorted(queue["waited_for"].items(), key=lambda item: -item[1])
    if queue["waited_ms"] < AT_ONCE_MS and not waits:
        return "not at all" if document["attempts"] else "not at all: it was not queued"
    parts = [_ms(queue["waited_ms"]), *(f"{reason} ({count} attempt{'s' * (count != 1)})" for reason, count in waits)]
    if queue["too_costly"]:
        costly = queue["too_costly"]
        room = f"the {costly['threshold']:.0f} that the overload left room for"
        often = f"{costly['samples']} of {costly['of']} looks, one a second"
        parts.append(f"put behind others: its cost over its tenant's weight, {costly['cost']:.0f} tokens, was above {room} ({often})")
    # The attempts before the last one are dispatches of its own.
    others = queue["history"][-1]["dispatched"] - max(0, len(document["attempts"]) - 1)
    if others > 0:
        parts.append(f"{others} others were dispatched meanwhile, in the order of {queue['history'][-1]['policy']}")
    return "; ".join(parts)


def _forecast(one: dict[str, Any]) -> str:
    """A forecast that made the request wait, next to what was measured; a wrong one is marked."""
    measured, forecast = one["measured"], one["forecast"]
    text = f"{one['reason']}: {forecast:.0f} {FIGURES[one['figure']]}, forecast by {one['source']}"
    if measured is None:
        return f"forecast  {text}; not measured"
    ratio = forecast / measured if measured > 0.0 else 1.0
    if 1.0 / WRONG < ratio < WRONG:
        return f"forecast  {text}; measured {measured:.0f}"
    return f"FORECAST  {text}; measured {measured:.0f}: IT WAS {ratio:.1f} TIMES THE TRUTH"


WRONG = 1.5
"""Factor from which a forecast is called wrong."""


def _state(document: dict[str, Any]) -> str:
    outcome, position = document["outcome"], document["queue"]["position"]
    if outcome is None:
        before = f", {position} ahead of it now" if position is not None and document["state"] == "waiting" else ""
        if document["queue"]["bound_to"]:
            before = f", in the queue of {document['queue']['bound_to']}{before}"
        return f"{document['state']} for {_ms(document['age_ms'])} since it arrived{before}"
    met = "met its targets" if outcome["slo_met"] else "did not meet its targets"
    if outcome["whole_due_ms"] is not None:
        met += f" (not streamed: the whole answer was due after {_ms(outcome['whole_due_ms'])}, TTFT + TPOT x (tokens - 1))"
    reason = f": {outcome['reason']}" if outcome["reason"] else ""
    return f"{outcome['kind']} with status {outcome['status']} after {_ms(document['age_ms'])}, {met}{reason}"


def _target(slo: dict[str, Any], label: str, name: str) -> str:
    source = "declared" if slo["declared"][name] is not None else f"not declared; from its task: {slo['task_type']}"
    return f"{label} {slo['active'][name]:.0f} ms ({source})"


def _sent(one: dict[str, Any]) -> str:
    policy = one["policy"]
    parameters = parameter_words(policy["parameters"], ", ")
    parts = [
        f"to {one['instance']} after {_ms(one['after_ms'])}: {one['reason']}",
        f"policy {policy['name']}{f', {parameters}' if parameters else ''} ({_origin(policy)})",
        *(f"{name} {knob['value']} ({_origin(knob)})" for name, knob in one["knobs"].items()),
        f"{one['in_flight']} in flight there, this one included",
    ]
    if one["scores"]:
        scores = ", ".join(f"{part['scorer']} {part['score']:.2f} x {part['weight']:g}" for part in one["scores"])
        alone = "" if one["alone_ms"] is None else f"; predicted {_ms(one['alone_ms'])} there without load"
        parts.insert(1, f"scored {scores}{alone}")
    if one["relieved"]:
        parts.append(f"DISPATCHED DESPITE A HOLD ({one['relieved']}): the engine had room")
    if one["failed"]:
        parts.append(f"FAILED after {_ms(one['failed_after_ms'])}: {one['failed']}")
    return "\n          ".join(parts)


def _origin(setting: dict[str, Any]) -> str:
    return f"{setting['source']}: {setting['reason']}" if setting["reason"] else str(setting["source"])


def _predicted_and_measured(document: dict[str, Any]) -> str:
    rows: list[tuple[object, ...]] = [
        (
            _ms(one["after_ms"]),
            one["source"],
            one["task_type"],
            _length(one),
            f"{one['ttft_ms']:.0f}",
            f"{one['tpot_ms']:.1f}",
        )
        for one in document["estimates"]
    ]
    actual = document["actual"]
    if actual is not None:
        ttft_ms, tpot_ms = actual["ttft_ms"], actual["tpot_ms"]
        unknown = "" if document["stream"] or not document["attempts"] else "not streamed"
        service_ms = unknown if ttft_ms is None else f"{ttft_ms - (actual['queue_ms'] or 0.0):.0f}"
        decode_ms = unknown if tpot_ms is None else f"{tpot_ms:.1f}"
        rows.append((_ms(document["age_ms"]), "measured", "", str(actual["output_tokens"]), service_ms, decode_ms))
    return table(["after", "source", "task", "output tokens", "TTFT from dispatch, ms", "TPOT, ms"], rows)


def _length(one: dict[str, Any]) -> str:
    """A forecast of length with its bound. One that has not proven right does not raise the bound, which then may be below it."""
    to = "to" if one["output_tokens"] <= one["output_tokens_upper"] else "unproven, booked to"
    return f"{one['output_tokens']:.0f} ({to} {one['output_tokens_upper']:.0f})"


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value < 10_000.0 else f"{value / 1000.0:.1f} s"
