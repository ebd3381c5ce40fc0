"""`hmas explain`: prints the trace of one request."""

from collections.abc import Iterable
from typing import Any

import click

from hmas.cli.admin import takes_client
from hmas.cli.output import clock_words, example, json_option, show, table
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
    lines = [
        f"request   {document['id']}" + (f", client id {document['client_id']}" if document["client_id"] else ""),
        f"from      {_origin(document)}",
        f"state     {_state(document)}",
        f"targets   {_targets(document['slo'])}",
        f"waited    {_waited(document)}",
    ]
    lines += [f"sent      {_sent(one)}" for one in document["tries"]]
    if document["earlier_with_this_client_id"]:
        lines.append(f"note      an earlier request had the same client id: {document['earlier_with_this_client_id']}")
    lines += ["", "predicted and measured:", _estimates(document), "", "in the queue:", _places(document["queue"]["history"])]
    if len(document["policies"]) > 1:
        lines += ["", "policies meanwhile:", _policies(document["policies"])]
    return "\n".join(lines)


def _origin(document: dict[str, Any]) -> str:
    who = f"tenant {document['tenant']}, model {document['model']}, priority {document['priority']}"
    return f"{who}, arrived {clock_words(document['arrival_s'])}, {_tokens(document)}"


def _tokens(document: dict[str, Any]) -> str:
    cap = document["max_output_tokens"]
    return f"{document['prompt_tokens']} prompt tokens" + (f", {cap} output tokens at most" if cap is not None else "")


def _state(document: dict[str, Any]) -> str:
    outcome = document["outcome"]
    if outcome is None:
        position = document["queue"]["position"]
        before = f", {position} ahead of it now" if position is not None and document["state"] == "waiting" else ""
        return f"{document['state']} for {_ms(document['age_ms'])} since its arrival{before}"
    met = "met its targets" if outcome["slo_met"] else "did not meet its targets"
    reason = f": {outcome['reason']}" if outcome["reason"] else ""
    return f"{outcome['kind']} with status {outcome['status']} after {_ms(document['age_ms'])}, {met}{reason}"


def _targets(slo: dict[str, Any]) -> str:
    def one(name: str, label: str) -> str:
        told = "declared" if slo["declared"][name] is not None else f"by task type {slo['task_type']}"
        return f"{label} {slo['in_force'][name]:.0f} ms ({told})"

    return f"{one('ttft_ms', 'TTFT')}, {one('tpot_ms', 'TPOT')}"


def _waited(document: dict[str, Any]) -> str:
    waited_for = document["queue"]["waited_for"]
    if not waited_for:
        return "no wait recorded: it was dispatched at once or queued behind others"
    return "; ".join(f"{reason} ({count} times)" for reason, count in sorted(waited_for.items(), key=lambda item: -item[1]))


def _sent(one: dict[str, Any]) -> str:
    policy = one["policy"]
    parameters = " ".join(f"{name}={value:g}" for name, value in sorted(policy["parameters"].items()))
    parts = [
        f"to {one['instance']} after {_ms(one['after_ms'])}: {one['reason']}",
        f"policy {policy['name']}{f' ({parameters})' if parameters else ''} by {_word(policy)}",
        *(f"{name} {knob['value']} by {_word(knob)}" for name, knob in one["knobs"].items()),
        f"{one['in_flight']} in flight there, this one included",
    ]
    if one["in_spite_of"]:
        parts.append(f"DISPATCHED DESPITE A HOLD by {one['in_spite_of']}: the engine reported room")
    if one["failed"]:
        parts.append(f"FAILED: {one['failed']}")
    return "\n          ".join(parts)


def _word(setting: dict[str, Any]) -> str:
    return f"{setting['source']}: {setting['reason']}" if setting["reason"] else str(setting["source"])


def _estimates(document: dict[str, Any]) -> str:
    rows: list[tuple[object, ...]] = [
        (
            _ms(one["after_ms"]),
            one["source"],
            one["task_type"],
            f"{one['output_tokens']:.0f} (to {one['output_tokens_upper']:.0f})",
            f"{one['ttft_ms']:.0f}",
            f"{one['tpot_ms']:.1f}",
        )
        for one in document["beliefs"]
    ]
    actual = document["actual"]
    if actual is not None:
        queue_ms, ttft_ms, tpot_ms = actual["queue_ms"], actual["ttft_ms"], actual["tpot_ms"]
        service_ms = None if ttft_ms is None else ttft_ms - (queue_ms or 0.0)
        rows.append(
            (
                _ms(document["age_ms"]),
                "measured",
                "",
                str(actual["output_tokens"]),
                "" if service_ms is None else f"{service_ms:.0f}",
                "" if tpot_ms is None else f"{tpot_ms:.1f}",
            )
        )
    return table(["after", "set by", "task", "output tokens", "TTFT once sent, ms", "TPOT, ms"], rows)


def _places(history: Iterable[dict[str, Any]]) -> str:
    rows = [(_ms(place["after_ms"]), place["policy"], place["waiting"], place["gone"]) for place in history]
    return table(["after", "policy", "waiting in all", "dispatched since its arrival"], rows)


def _policies(policies: Iterable[dict[str, Any]]) -> str:
    return table(
        ["after", "policy", "set by", "reason"], [(_ms(one["after_ms"]), one["policy"], one["source"], one["reason"]) for one in policies]
    )


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value < 10_000.0 else f"{value / 1000.0:.1f} s"
