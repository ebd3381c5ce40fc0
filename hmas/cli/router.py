"""`hmas router`: shows the router of each model, and forces another."""

import shlex
from collections.abc import Mapping
from typing import Any

import click

from hmas.cli.admin import ends_words, holds, show_held, show_released, takes_client
from hmas.cli.output import EXIT_FAILED, complain, example, json_option, pair_words, say, say_json, table
from hmas.cli.output import show as show_result
from hmas.cli.policy import loaded_class, refused_line, show_results
from hmas.cli.values import Pair
from hmas.controller.admin.client import AdminClient
from hmas.controller.control.overrides import cli_id

model_option = click.option("--model", default="*", show_default=True, help="A model, by the name that requests use; * for all.")


@click.group()
def router() -> None:
    """List, show, force and release the routers of models; check one of your own."""


@router.command("list", epilog=example("hmas router list"))
@json_option
@takes_client
def list_routers(client: AdminClient, *, as_json: bool) -> None:
    """List all routers with the weights of their scorers, and all scorers. The routers in use have a star."""
    document = client.routers()
    if as_json:
        say_json(document)
        return
    used = {one["name"] for one in document["models"]}
    rows = [("*" if one["name"] in used else " ", one["name"], one["summary"], pair_words(one["weights"])) for one in document["available"]]
    say(table(["", "router", "ranks first", "weights"], rows))
    say("\n" + table(["scorer", "scores high"], [(one["name"], one["summary"]) for one in document["scorers"]]))
    for plugin in document["refused"]:
        complain(refused_line(plugin))


@router.command("show", epilog=example("hmas router show", "hmas router show prefix-aware"))
@click.argument("name", required=False)
@json_option
@click.pass_context
@takes_client
def show(client: AdminClient, ctx: click.Context, *, name: str | None, as_json: bool) -> None:
    """Show the router of each model, what set it and why; or all about router or scorer NAME."""
    document = client.routers()
    if name is None:
        say_json({"models": document["models"], "faults": document["faults"], "fault": document["fault"]}) if as_json else say(
            routers_text(document)
        )
        return
    found = {one["name"]: one for one in (*document["scorers"], *document["available"])}
    if name not in found:
        complain(f"router {name!r} is unknown; allowed: {', '.join(one['name'] for one in document['available'])}")
        ctx.exit(EXIT_FAILED)
    one = found[name]
    facts = [("does", one["summary"]), ("weights", pair_words(one.get("weights", {}))), ("plugin", one["from"])]
    show_result(one, lambda _: table([name, ""], [fact for fact in facts if fact[1]]), as_json=as_json)


@router.command("check", epilog=example("hmas router check my_routers.fewest_tokens:FewestTokens"))
@click.argument("router_class", metavar="MODULE:CLASS")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the instances and requests that it is given.")
@click.pass_context
def check(ctx: click.Context, *, router_class: str, seed: int) -> None:
    """Run the checks that every built-in router passes on a router or scorer class of your own. Needs no gateway.

    Exit code 1 if a check fails.
    """
    from hmas.testing.router_conformance import try_router  # noqa: PLC0415  it brings numpy, which no other command here needs

    show_results(ctx, try_router(loaded_class(router_class), seed=seed))


@router.command("force", epilog=example('hmas router force prefix-aware --weight prefix=0.5 --for 10m --reason "long chats today"'))
@click.argument("name")
@click.option("--weight", "weights", multiple=True, type=Pair(), help="Weight of a scorer, 0 leaves it out; may be given several times.")
@model_option
@holds
@json_option
@takes_client
def force(
    client: AdminClient, *, name: str, weights: tuple[tuple[str, float], ...], model: str, hold: dict[str, Any], as_json: bool
) -> None:
    """Force router NAME for all models, or for one. Exit code 1 if another override wins."""
    document = client.force_router(name, model=model, weights=dict(weights), **hold)
    ends = ends_words(hold, "router", "release", *([] if model == "*" else ["--model", model]))
    show_held(client, document, lambda found: f"{routers_text(found)}\n{ends}", cli_id("router", model), as_json=as_json)


@router.command("release", epilog=example("hmas router release"))
@model_option
@json_option
@takes_client
def release(client: AdminClient, *, model: str, as_json: bool) -> None:
    """Return to the configured router. Exit code 1 if it was not forced by `router force` for the same model."""
    otherwise = f"no router was held by `hmas router force --model {shlex.quote(model)}`; see `hmas override list`"
    show_released(client, client.release_router(model), ("routers", model), routers_text, otherwise, as_json=as_json)


def routers_text(document: dict[str, Any]) -> str:
    """The router of each model, and the newest fault."""
    rows = [
        ("all others" if one["model"] == "*" else one["model"], one["name"], pair_words(one["weights"]), one["source"], one["reason"])
        for one in document["models"]
    ]
    text = table(["model", "router", "weights", "set by", "reason"], rows)
    return "\n".join([text, *fault_words(document)])


def router_lines(document: dict[str, Any]) -> list[str]:
    """What chooses the instances of each model, one line each, and the newest fault."""
    lines = []
    for one in document["models"]:
        whose = "" if len(document["models"]) == 1 else " for all other models" if one["model"] == "*" else f" for {one['model']}"
        reason = f": {one['reason']}" if one["reason"] else ""
        lines.append(f"{router_words(one['name'], one['weights'])}{whose}, by {one['source']}{reason}")
    return [*lines, *fault_words(document)]


def fault_words(document: dict[str, Any]) -> list[str]:
    """How many rankings failed and how the newest did, if any."""
    return [f"{document['faults']} rankings failed; the newest: {document['fault']}"] if document["faults"] else []


def router_words(name: str, weights: Mapping[str, float]) -> str:
    """A router and the weights that it was given, as text."""
    return f"{name} ({pair_words(weights)})" if weights else name
