"""`hmas engines`: the instances behind the gateway."""

from typing import Any

import click

from hmas.cli.admin import ends_words, holds, show_released, takes_client
from hmas.cli.engine_plugin import plugin
from hmas.cli.output import duration_words, example, json_option, say, say_json, show, table
from hmas.controller.admin.client import AdminClient


@click.group()
def engines() -> None:
    """List engines, drain and undrain them; get the plugins for their live control."""


engines.add_command(plugin)


@engines.command("list", epilog=example("hmas engines list"))
@json_option
@takes_client
def list_engines(client: AdminClient, *, as_json: bool) -> None:
    """List every engine with its kind, its state and its load."""
    show(client.engines(), engine_table, as_json=as_json)


@engines.command("drain", epilog=example('hmas engines drain gpu-1 --reason "driver update"'))
@click.argument("name")
@holds
@json_option
@takes_client
def drain(client: AdminClient, *, name: str, hold: dict[str, Any], as_json: bool) -> None:
    """Stop sending new requests to engine NAME; its running requests continue."""
    document = client.drain_engine(name, **hold)
    if as_json:
        say_json(document)
        return
    left = next((item["in_flight"] for item in document if item["name"] == name), 0)
    say(engine_table(document))
    say(f"{name} drains, {left} requests still run there; {ends_words(hold, 'engines', 'undrain', name)}")


@engines.command("undrain", epilog=example("hmas engines undrain gpu-1"))
@click.argument("name")
@json_option
@takes_client
def undrain(client: AdminClient, *, name: str, as_json: bool) -> None:
    """Let engine NAME receive requests again. Exit code 1 if it was not drained by `engines drain`, or another override drains it, too."""
    otherwise = f"{name} was not drained by `hmas engines drain`; see `hmas override list`"
    document = client.undrain_engine(name)
    setting = ("engines", name, "drain")
    show_released(client, document, setting, lambda found: engine_table(found["engines"]), otherwise, as_json=as_json)


def engine_table(document: list[dict[str, Any]]) -> str:
    """A table with one engine per line."""
    head = ["engine", "kind", "state", "in flight", "n_run", "budget", "KV used", "KV fenced", "address", "detail"]
    rows: list[tuple[Any, ...]] = [
        (
            item["name"],
            f"{item['kind']} {item['version']}".strip(),
            _state(item),
            item["in_flight"],
            item["n_run"]["value"],
            item["token_budget"]["value"],
            _share(item["kv_usage"]),
            _share(item["kv_committed"]),
            item["url"],
            item["detail"] or item["control"],
        )
        for item in document
    ]
    further: list[tuple[str, list[str]]] = []
    if any(item["queued"] for item in document):
        further.append(("waiting for it", [str(item["queued"]) for item in document]))
    if any(item["cost_per_hour"] for item in document):
        further.append(("cost of 1,000 good", [_cost(item) for item in document]))
    events = [item["kv_events"] for item in document]
    if any(events):
        further.append(("KV events", ["" if one is None else kv_event_words(one) for one in events]))
    for name, column in further:
        head.append(name)
        rows = [(*row, words) for row, words in zip(rows, column, strict=True)]
    return table(head, rows)


def kv_event_words(one: dict[str, Any]) -> str:
    """The state of an engine's KV events, in a few words."""
    age = "none yet" if one["age_s"] is None else f"newest {duration_words(one['age_s'])} ago"
    return f"{one['state']}, {one['blocks']} blocks, {age}"


def _state(item: dict[str, Any]) -> str:
    if not item["healthy"] and (item["circuit"] == "closed" or not item["answers"]):
        return "has not answered yet" if item["down_for_s"] is None else f"down for {duration_words(item['down_for_s'])}"
    if item["circuit"] != "closed":
        return "up, one request tries it" if item["circuit"] == "half-open" else f"circuit {item['circuit']}"
    return "draining" if item["draining"] else "up"


def _cost(item: dict[str, Any]) -> str:
    if not item["cost_per_hour"]:
        return ""
    cost = item["cost_per_1000_good"]
    return "none served" if cost is None else f"{cost:.3g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
