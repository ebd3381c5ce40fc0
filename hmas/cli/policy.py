"""`hmas policy`: which queueing policy rules, and forcing another."""

from typing import Any

import click

from controller.admin.client import AdminClient
from hmas.cli.admin import FOREVER, author_name, author_option, reason_option, takes_client
from hmas.cli.output import duration_words, json_option, say, say_json, table
from hmas.cli.values import Duration, Pair


@click.group()
def policy() -> None:
    """List, show, force and release the queueing policy."""


@policy.command("list")
@json_option
@takes_client
def list_policies(client: AdminClient, *, as_json: bool) -> None:
    """The policies there are, what each is for, and the hints it takes.

    \b
    Example:
      hmas policy list
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.policy()
    if as_json:
        say_json(document["available"])
        return
    rows = [
        ("*" if item["name"] == document["name"] else " ", item["name"], item["summary"], _hint_ranges(item))
        for item in document["available"]
    ]
    say(table(["", "policy", "for", "hints (default, range)"], rows))


@policy.command("show")
@json_option
@takes_client
def show(client: AdminClient, *, as_json: bool) -> None:
    """The policy in force, on whose word, why and since when.

    \b
    Example:
      hmas policy show
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.policy()
    if as_json:
        say_json(document)
    else:
        say(policy_line(document))


@policy.command("force")
@click.argument("name")
@click.option("--for", "for_s", type=Duration(), help=f"How long, such as 90s, 10m, 2h; {FOREVER} by default.")
@click.option("--hint", "hints", multiple=True, type=Pair(), help="A parameter of the policy; may be given several times.")
@reason_option
@author_option
@json_option
@takes_client
def force(
    client: AdminClient,
    *,
    name: str,
    for_s: float | None,
    hints: tuple[tuple[str, float], ...],
    reason: str,
    author: str | None,
    as_json: bool,
) -> None:
    """Hold policy NAME against the agents.

    \b
    Example:
      hmas policy force edf --for 10m --reason "deadline traffic tonight"
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.force_policy(name, hints=dict(hints), for_s=for_s, author=author_name(author), reason=reason)
    if as_json:
        say_json(document)
        return
    say(f"{policy_line(document)}\nheld {f'for {duration_words(for_s)}' if for_s else FOREVER}; `hmas policy release` ends it")


@policy.command("release")
@json_option
@click.pass_context
@takes_client
def release(client: AdminClient, ctx: click.Context, *, as_json: bool) -> None:
    """Give the policy back to the agents. Exit code 1 when it was not forced by `policy force`.

    \b
    Example:
      hmas policy release
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.release_policy()
    if as_json:
        say_json(document)
    else:
        say(policy_line(document) if document["released"] else "the policy was not held by `hmas policy force`; see `hmas override list`")
    ctx.exit(0 if document["released"] else 1)


def policy_line(document: dict[str, Any]) -> str:
    """The policy in force in one line."""
    hints = " ".join(f"{name}={value:g}" for name, value in sorted(document["hints"].items()))
    text = f"{document['name']}{f' ({hints})' if hints else ''}, by {document['source']}, for {duration_words(document['for_s'])}"
    return text + (f": {document['reason']}" if document["reason"] else "")


def _hint_ranges(item: dict[str, Any]) -> str:
    ranges = item.get("hint_ranges", {})
    return ", ".join(
        f"{name}={value:g}" + (f" ({ranges[name][0]:g} to {ranges[name][1]:g})" if name in ranges else "")
        for name, value in item["hints"].items()
    )
