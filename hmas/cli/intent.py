"""`hmas intent`: an operator's intention in words, made into an override by a language model, checked, shown and confirmed."""

import os
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from hmas.agents.meta.selectors.llm_answer import AnswerError
from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint, configured_endpoint
from hmas.cli.admin import (
    admin_url_option,
    author_option,
    complain_of_winners,
    config_option,
    connect,
    login_name,
    read_for_client,
    winners_over,
)
from hmas.cli.output import EXIT_FAILED, duration_words, example, hint, json_option, say, say_json, table
from hmas.cli.override import override_list
from hmas.cli.values import Duration
from hmas.controller.config.override_format import document_of
from hmas.controller.core.errors import AdminError, AdminUnreachable, OverrideError
from hmas.controller.runtime.clock import SystemClock
from hmas.intents.answer import question
from hmas.intents.plan import WORDS_MOST, Plan, plan, site_of

ENDPOINT = tuple(("agents", f"meta_llm_{name}") for name in ("url", "model", "key_env"))


@click.command(epilog=example('hmas intent "release day: team-a comes first until six, batch may wait"'))
@click.argument("words")
@click.option("--base-url", help="OpenAI-compatible server to ask; agents.meta_llm_url by default.")
@click.option("--model", default=None, help="Name of the model there; agents.meta_llm_model, or the server's own, by default.")
@click.option("--key-env", default="", help="With --base-url: environment variable that holds the key towards it.")
@click.option("--timeout", "timeout_s", type=Duration(), default="60s", show_default=True, help="Time for question and answer.")
@click.option("--for", "for_s", type=Duration(), help="How long it is in force, in place of the time in the words.")
@click.option("--id", "override_id", help="Id of the override; intent- and the time by default.")
@click.option("--dry-run", is_flag=True, help="Show what would be set, and change nothing.")
@click.option("--yes", is_flag=True, help="Apply without asking.")
@author_option
@json_option
@config_option
@admin_url_option
@click.pass_context
def intent(ctx: click.Context, /, *, words: str, override_id: str | None, as_json: bool, dry_run: bool, yes: bool, **options: Any) -> None:
    """Say in WORDS which tenants come first, what they may use, and until when.

    A language model turns the words into tenants' weights and limits with an expiry. The answer is checked against the words and against
    the gateway, shown beside what is in force, and applied as an override once you confirm. An answer that does not hold is refused with
    the reason, and nothing changes (docs/intents.md).
    """
    words = " ".join(words.split())
    if not 0 < len(words) <= WORDS_MOST or not words.isprintable():
        raise click.UsageError(f"WORDS has {len(words)} characters; allowed: 1 to {WORDS_MOST} printable ones")
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json shows no table to confirm; give --yes or --dry-run with it")
    client = connect(options["admin_url"], options["config_file"])
    now_s = SystemClock().now_s()
    site = site_of(client.status(), words, now_s)
    endpoint, model = _endpoint(options)
    asked = question(words, site.tenants, site.models, now_s, None, model=model)
    try:
        made = plan(
            endpoint.ask(asked),
            words,
            site,
            override_id=override_id or f"intent-{datetime.fromtimestamp(now_s, UTC):%Y%m%dT%H%M%SZ}",
            author=options["author"] or login_name(),
            lasts_s=options["for_s"],
        )
        document = document_of(made.override)
        client.validate_override(made.override.id, document)
    except AdminUnreachable:
        raise
    except (AnswerError, OverrideError, AdminError) as error:
        raise AnswerError(f"refused, nothing is changed: {error}") from error
    if not as_json:
        say(_shown(made, now_s))
    applied, won_by = None, {}
    if not dry_run and (yes or click.confirm("Apply?", default=False, err=True)):
        meanwhile = site_of(client.status(), words, now_s).tenants
        if any(meanwhile.get(one.tenant, {}).get(one.setting) != one.before for one in made.changes):
            raise AnswerError("refused, nothing is changed: what is shown as `now` has changed meanwhile; say it again")
        applied = client.put_override(made.override.id, document)
        won_by = winners_over(made.override.id, applied)
    if as_json:
        told = {"id": made.override.id, "changes": msgspec.to_builtins(made.changes), "document": document}
        say_json({**told, "applied": applied is not None, "won_by": won_by})
    elif applied is not None:
        say(f"\n{override_list(applied)}\n`hmas override clear {made.override.id}` ends it")
    else:
        hint("nothing is changed")
    complain_of_winners(won_by)
    ctx.exit(0 if dry_run or (applied is not None and not won_by) else EXIT_FAILED)


def _endpoint(options: dict[str, Any]) -> tuple[ChatEndpoint, str]:
    """The server to ask, and the model there. The configured key goes to the configured server alone."""
    if not (url := options["base_url"]):
        agents = read_for_client(options["config_file"], ENDPOINT, "--base-url").agents
        chosen = options["model"]
        return configured_endpoint(agents, os.environ, timeout_s=options["timeout_s"]), agents.meta_llm_model if chosen is None else chosen
    key = os.environ.get(options["key_env"], "") if options["key_env"] else ""
    return ChatEndpoint(url, key, timeout_s=options["timeout_s"], setting="--base-url"), options["model"] or ""


def _shown(made: Plan, now_s: float) -> str:
    expires_s = made.override.expires_s
    assert expires_s is not None, "an intention always ends"
    until = datetime.fromtimestamp(expires_s).astimezone()
    rows = [
        (change.tenant, change.setting, _words(change.setting, change.before), _words(change.setting, change.after))
        for change in made.changes
    ]
    ends = f"until {until:%A %Y-%m-%d %H:%M %Z}, in {duration_words(expires_s - now_s)}"
    return f"{table(['tenant', 'setting', 'now', 'then'], rows)}\n{ends}"


def _words(setting: str, value: float) -> str:
    if setting != "weight" and value == (1.0 if setting == "concurrency_share" else 0):
        return "no limit"
    return f"{value:.12g}"
