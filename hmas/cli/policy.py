"""`hmas policy`: shows the queueing policy, and forces another."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hmas.cli.admin import ends_words, holds, not_taken_over, show_held, show_released, takes_client
from hmas.cli.output import EXIT_FAILED, complain, duration_words, example, json_option, pair_words, say, say_json, table
from hmas.cli.output import show as show_result
from hmas.cli.values import Pair
from hmas.controller.admin.client import AdminClient
from hmas.controller.control.overrides import cli_id


@click.group()
def policy() -> None:
    """List, show, force and release the queueing policy; check one of your own."""


@policy.command("list", epilog=example("hmas policy list"))
@json_option
@takes_client
def list_policies(client: AdminClient, *, as_json: bool) -> None:
    """List all policies: what each is for, what bounds waiting under it, and which signals it uses.

    The active policy has a star. `hmas policy show NAME` shows all of one policy, with parameters, costs and source.
    """
    document = client.policy()
    if as_json:
        say_json(document["available"])
        return
    rows = [
        ("*" if item["name"] == document["name"] else " ", item["name"], item["summary"], pair_words(item["parameters"]))
        for item in document["available"]
    ]
    say(table(["", "policy", "for", "parameters (default)"], rows))
    say("\n" + table(["policy", "bound on waiting"], [(item["name"], item["starvation"]) for item in document["available"]]))
    say("\n" + table(["signal", "as of", "without it", "policies"], _signals(document["available"])))
    for plugin in document["refused"]:
        complain(refused_line(plugin))


@policy.command("show", epilog=example("hmas policy show", "hmas policy show mlfq"))
@click.argument("name", required=False)
@json_option
@click.pass_context
@takes_client
def show(client: AdminClient, ctx: click.Context, *, name: str | None, as_json: bool) -> None:
    """Show the active policy, set by which source, why and since when; or all about policy NAME."""
    document = client.policy()
    if name is None:
        show_result(document, policy_line, as_json=as_json)
        return
    available = {item["name"]: item for item in document["available"]}
    if name not in available:
        complain(f"policy {name!r} is unknown; allowed: {', '.join(available)}")
        ctx.exit(EXIT_FAILED)
    show_result(available[name], policy_page, as_json=as_json)


@policy.command("check", epilog=example("hmas policy check my_policies.shortest_prompt:ShortestPrompt"))
@click.argument("policy_class", metavar="MODULE:CLASS")
@click.option("--parameter", "parameters", multiple=True, type=Pair(), help="A parameter of the policy; may be given several times.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the scripts that it is put through.")
@click.pass_context
def check(ctx: click.Context, *, policy_class: str, parameters: tuple[tuple[str, float], ...], seed: int) -> None:
    """Run the checks that every built-in policy passes on a policy class of your own. Needs no gateway.

    Exit code 1 if a check fails.
    """
    from hmas.testing.conformance import try_out  # noqa: PLC0415  it brings numpy, which no other command here needs

    show_results(ctx, try_out(loaded_class(policy_class), dict(parameters), seed=seed))


def loaded_class(text: str) -> Any:
    """The class that `MODULE:CLASS` names, also of a module in the current folder."""
    module, _, name = text.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError, SyntaxError) as error:
        allowed = "MODULE:CLASS of a module that can be imported"
        raise click.UsageError(f"{text!r} cannot be loaded: {error}; allowed: {allowed}") from error


def show_results(ctx: click.Context, results: Sequence[Any]) -> None:
    """Prints the results of checks (`hmas.testing.conformance.Result`); exit code 1 if one failed."""
    say(table(["", "check", "what"], [("FAIL" if one.trouble else "OK", one.check, one.trouble or one.meaning) for one in results]))
    ctx.exit(EXIT_FAILED if any(one.trouble for one in results) else 0)


@policy.command("force", epilog=example('hmas policy force edf --for 10m --reason "deadline traffic tonight"'))
@click.argument("name")
@click.option("--parameter", "parameters", multiple=True, type=Pair(), help="A parameter of the policy; may be given several times.")
@holds
@json_option
@takes_client
def force(client: AdminClient, *, name: str, parameters: tuple[tuple[str, float], ...], hold: dict[str, Any], as_json: bool) -> None:
    """Force policy NAME, which the agents then cannot change. Exit code 1 if another override wins, or it cannot take over the queue."""
    document = client.force_policy(name, parameters=dict(parameters), **hold)
    ends = ends_words(hold, "policy", "release")
    fault = not_taken_over(document, name, dict(parameters))
    show_held(client, document, lambda found: f"{policy_line(found)}\n{ends}", cli_id("policy"), as_json=as_json, fault=fault)


@policy.command("release", epilog=example("hmas policy release"))
@json_option
@takes_client
def release(client: AdminClient, *, as_json: bool) -> None:
    """Return the policy to the agents. Exit code 1 if it was not forced by `policy force`."""
    otherwise = "the policy was not held by `hmas policy force`; see `hmas override list`"
    show_released(client, client.release_policy(), ("policy",), policy_line, otherwise, as_json=as_json)


def policy_line(document: dict[str, Any]) -> str:
    """The active policy in one line."""
    parameters = parameter_words(document["parameters"], " ")
    more = f" ({parameters})" if parameters else ""
    if document["cost_threshold_now"]:
        more += f", requests above a cost of {document['cost_threshold_now']:.0f} tokens now wait behind all others"
    text = f"{document['name']}{more}, by {document['source']}, for {duration_words(document['for_s'])}"
    changed, reason = document["changed_because"], document["reason"]
    if document["source"] == "meta" and changed and changed != reason:
        return f"{text}: {changed}\n          newest reason to keep it: {reason.removeprefix('keep: ')}"
    return text + (f": {reason}" if reason else "")


def parameter_words(parameters: dict[str, float], between: str) -> str:
    """Active parameters as text; not the cost at which the threshold started, which says nothing about where it stands."""
    return between.join(f"{name}={value:g}" for name, value in sorted(parameters.items()) if name != "cost_threshold")


def policy_page(item: dict[str, Any]) -> str:
    """All details of one policy."""
    facts = [("for", item["summary"]), ("starvation", item["starvation"]), ("cost", item["complexity"]), ("source", item["source"])]
    if item["from"]:
        facts.append(("plugin", item["from"]))
    signals = [(one["name"], one["freshness"], one["fallback"]) for one in item["signals"]]
    parts = [table([item["name"], ""], facts), table(["signal", "as of", "without it"], signals)]
    ranges, common = item["parameter_ranges"], item.get("common_parameters", {})
    rows = [(name, f"{value:g}", f"{ranges[name][0]:g} to {ranges[name][1]:g}") for name, value in item["parameters"].items()]
    rows += [(name, "as configured", f"{low:g} to {high:g}") for name, (low, high) in common.items()]
    if rows:
        parts.append(table(["parameter", "default", "range"], rows))
    return "\n\n".join(parts)


def refused_line(plugin: dict[str, str]) -> str:
    """A plugin that was refused, in one line."""
    return f"plugin {plugin['entry_point']} of {plugin['distribution'] or 'an unknown distribution'} is skipped: {plugin['reason']}"


def _signals(available: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Every signal once, in the order of the first policy that uses it, with all policies that use it."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for item in available:
        for one in item["signals"]:
            users.setdefault((one["name"], one["freshness"], one["fallback"]), []).append(item["name"])
    return [(*signal, ", ".join(names)) for signal, names in users.items()]
