"""`hmas knobs`: concurrency, token budget, prefill pieces and the strictness of the TPOT guard, per instance."""

from typing import Any

import click

from hmas.cli.admin import FOREVER, author_name, author_option, reason_option, takes_client
from hmas.cli.output import duration_words, json_option, say, say_json, table
from hmas.cli.values import Duration
from hmas.controller.admin.client import AdminClient


@click.group()
def knobs() -> None:
    """Show, set and release concurrency, token budget and prefill pieces."""


@knobs.command("show")
@json_option
@takes_client
def show(client: AdminClient, *, as_json: bool) -> None:
    """Show the active knobs, set by which source, and where each takes effect.

    \b
    Example:
      hmas knobs show
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.knobs()
    if as_json:
        say_json(document)
    else:
        say(_knob_table(document))


@knobs.command("set")
@click.argument("instance")
@click.option("--n-run", type=click.IntRange(1, 4096), help="Requests in flight.")
@click.option("--token-budget", type=click.IntRange(1, 1_048_576), help="Tokens per engine step.")
@click.option(
    "--long-prefill-tokens",
    type=click.IntRange(0, 1_048_576),
    help="Longer prompts are computed in pieces of this many tokens; 0 for none.",
)
@click.option("--for", "for_s", type=Duration(), help=f"How long, such as 90s, 10m, 2h; {FOREVER} by default.")
@reason_option
@author_option
@json_option
@takes_client
def set_knobs(
    client: AdminClient,
    *,
    instance: str,
    n_run: int | None,
    token_budget: int | None,
    long_prefill_tokens: int | None,
    for_s: float | None,
    reason: str,
    author: str | None,
    as_json: bool,
) -> None:
    """Force knobs of INSTANCE, which the agents then cannot change; '*' for all instances that have no forced knobs of their own.

    \b
    Example:
      hmas knobs set gpu-0 --n-run 8 --for 10m --reason "memory trouble"
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if n_run is None and token_budget is None and long_prefill_tokens is None:
        raise click.UsageError("give --n-run, --token-budget or --long-prefill-tokens")
    document = client.force_knobs(
        instance,
        n_run=n_run,
        token_budget=token_budget,
        long_prefill_tokens=long_prefill_tokens,
        for_s=for_s,
        author=author_name(author),
        reason=reason,
    )
    if as_json:
        say_json(document)
        return
    say(f"{_knob_table(document)}\nheld {f'for {duration_words(for_s)}' if for_s else FOREVER}; `hmas knobs release {instance}` ends it")


@knobs.command("release")
@click.argument("instance")
@json_option
@click.pass_context
@takes_client
def release(client: AdminClient, ctx: click.Context, *, instance: str, as_json: bool) -> None:
    """Return the knobs forced for INSTANCE (or '*') to the agents. Exit code 1 if there were none.

    \b
    Example:
      hmas knobs release gpu-0
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = client.release_knobs(instance)
    if as_json:
        say_json(document)
    elif document["released"]:
        say(_knob_table(document))
    else:
        say(f"no controls were held for {instance!r} by `hmas knobs set`; see `hmas override list`")
    ctx.exit(0 if document["released"] else 1)


def _knob_table(document: dict[str, Any]) -> str:
    rows = []
    for item in document["instances"]:
        for name in ("n_run", "token_budget", "long_prefill_tokens", "guard"):
            if (knob := item.get(name)) is None:
                continue
            rows.append((item["name"], name, knob["value"], item["ceiling"].get(name), knob["source"], knob["acts"], knob["reason"]))
    return table(["instance", "knob", "value", "ceiling", "by", "acts on", "why"], rows)
