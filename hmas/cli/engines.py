"""`hmas engines`: the instances behind the gateway."""

from typing import Any

import click

from hmas.cli.admin import FOREVER, author_name, author_option, reason_option, takes_client
from hmas.cli.engine_plugin import plugin
from hmas.cli.output import duration_words, json_option, say, say_json, table
from hmas.cli.values import Duration
from hmas.controller.admin.client import AdminClient


@click.group()
def engines() -> None:
    """List engines, drain and undrain them; get the plugins for their live control."""


engines.add_command(plugin)


@engines.command("list")
@json_option
@takes_client
def list_engines(client: AdminClient, *, as_json: bool) -> None:
    """List every engine with its kind, its state and its load.

    \b
    Example:
      hmas engines list
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.engines()
    if as_json:
        say_json(document)
    else:
        say(engine_table(document))


@engines.command("drain")
@click.argument("name")
@click.option("--for", "for_s", type=Duration(), help=f"How long, such as 90s, 10m, 2h; {FOREVER} by default.")
@reason_option
@author_option
@json_option
@takes_client
def drain(client: AdminClient, *, name: str, for_s: float | None, reason: str, author: str | None, as_json: bool) -> None:
    """Stop sending new requests to engine NAME; its running requests continue.

    \b
    Example:
      hmas engines drain gpu-1 --reason "driver update"
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.drain_engine(name, for_s=for_s, author=author_name(author), reason=reason)
    if as_json:
        say_json(document)
        return
    left = next((item["in_flight"] for item in document if item["name"] == name), 0)
    held = f"for {duration_words(for_s)}" if for_s else FOREVER
    say(f"{engine_table(document)}\n{name} drains {held}, {left} requests still run there; `hmas engines undrain {name}` ends it")


@engines.command("undrain")
@click.argument("name")
@json_option
@click.pass_context
@takes_client
def undrain(client: AdminClient, ctx: click.Context, *, name: str, as_json: bool) -> None:
    """Let engine NAME receive requests again. Exit code 1 if it was not drained by `engines drain`.

    \b
    Example:
      hmas engines undrain gpu-1
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.undrain_engine(name)
    if as_json:
        say_json(document)
    elif document["released"]:
        say(engine_table(document["engines"]))
    else:
        say(f"{name} was not drained by `hmas engines drain`; see `hmas override list`")
    ctx.exit(0 if document["released"] else 1)


def engine_table(document: list[dict[str, Any]]) -> str:
    """A table with one engine per line."""
    head = ["engine", "kind", "state", "in flight", "n_run", "budget", "KV used", "KV fenced", "address", "detail"]
    rows = [
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
    return table(head, rows)


def _state(item: dict[str, Any]) -> str:
    if item["circuit"] != "closed":
        return f"circuit {item['circuit']}"
    if not item["healthy"]:
        return f"down for {duration_words(item['down_for_s'])}"
    return "draining" if item["draining"] else "up"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
