"""`hmas knobs`: concurrency, token budget and the strictness of the TPOT guard, per instance."""

from typing import Any

import click

from hmas.cli.admin import ends_words, holds, show_held, show_released, takes_client
from hmas.cli.output import example, json_option, table
from hmas.cli.output import show as show_result
from hmas.controller.admin.client import AdminClient
from hmas.controller.control.overrides import cli_id


@click.group()
def knobs() -> None:
    """Show, set and release concurrency and token budget."""


@knobs.command("show", epilog=example("hmas knobs show"))
@json_option
@takes_client
def show(client: AdminClient, *, as_json: bool) -> None:
    """Show the active knobs, set by which source, and where each takes effect."""
    show_result(client.knobs(), _knob_table, as_json=as_json)


@knobs.command("set", epilog=example('hmas knobs set gpu-0 --n-run 8 --for 10m --reason "memory trouble"'))
@click.argument("instance")
@click.option("--n-run", type=click.IntRange(1, 4096), help="Requests in flight.")
@click.option("--token-budget", type=click.IntRange(1, 1_048_576), help="Tokens per engine step.")
@holds
@json_option
@takes_client
def set_knobs(
    client: AdminClient,
    *,
    instance: str,
    n_run: int | None,
    token_budget: int | None,
    hold: dict[str, Any],
    as_json: bool,
) -> None:
    """Force knobs of INSTANCE ('*': of all without forced ones of their own) against the agents. One that is held and not named stays.

    Exit code 1 if another override wins.
    """
    if n_run is None and token_budget is None:
        raise click.UsageError("give --n-run or --token-budget")
    document = client.force_knobs(instance, n_run=n_run, token_budget=token_budget, **hold)
    ends = ends_words(hold, "knobs", "release", instance)
    show_held(client, document, lambda found: f"{_knob_table(found)}\n{ends}", cli_id("knobs", instance), as_json=as_json)


@knobs.command("release", epilog=example("hmas knobs release gpu-0"))
@click.argument("instance")
@json_option
@takes_client
def release(client: AdminClient, *, instance: str, as_json: bool) -> None:
    """Return the knobs forced for INSTANCE (or '*') to the agents. Exit code 1 if there were none."""
    otherwise = f"no controls were held for {instance!r} by `hmas knobs set`; see `hmas override list`"
    show_released(client, client.release_knobs(instance), ("knobs", instance), _knob_table, otherwise, as_json=as_json)


def _knob_table(document: dict[str, Any]) -> str:
    rows = []
    for item in document["instances"]:
        for name in ("n_run", "token_budget", "guard"):
            if (knob := item.get(name)) is None:
                continue
            rows.append((item["name"], name, knob["value"], item["ceiling"].get(name), knob["source"], knob["acts"], knob["reason"]))
    return table(["instance", "knob", "value", "ceiling", "set by", "acts on", "reason"], rows)
