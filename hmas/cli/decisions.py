"""`hmas decisions`: meta's decisions with reasons, expected results and outcomes."""

from typing import Any

import click
from click.core import ParameterSource

from hmas.cli.admin import takes_client
from hmas.cli.output import clock_words, example, json_option, show, table
from hmas.controller.admin.client import AdminClient


@click.group(
    invoke_without_command=True, epilog=example("hmas decisions", "hmas decisions --changes --limit 5", "hmas decisions explain 41")
)
@click.option("--limit", type=click.IntRange(1, 512), default=20, show_default=True, help="How many of the newest to show.")
@click.option("--changes", is_flag=True, help="Only those that changed something.")
@json_option
@takes_client
@click.pass_context
def decisions(ctx: click.Context, /, client: AdminClient, *, limit: int, changes: bool, as_json: bool) -> None:
    """Print meta's newest decisions, oldest first.

    Every evaluation is a decision, even if it changes nothing. `expected` and `good` are shares of requests that meet both targets: as
    predicted by the twin, and as measured after the decision, of the requests that `hmas views` calls settled. `regret` is how much larger
    the share would have been under the best candidate, by replay.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options_before(ctx)
        return
    show(client.decisions(limit, changes=changes), lambda found: listing(found, changes=changes), as_json=as_json)


@decisions.command(epilog=example("hmas decisions explain meta-19c1f2-41"))
@click.argument("decision_id")
@json_option
@takes_client
def explain(client: AdminClient, *, decision_id: str, as_json: bool) -> None:
    """Print all details of decision DECISION_ID, which may be shortened to its end."""
    show(client.decision(decision_id), page, as_json=as_json)


SHARES = "good: share of the requests settled in the decision's span (ended, or past their TTFT target in the queue) that met both targets"


def listing(found: list[dict[str, Any]], *, changes: bool) -> str:
    """The decisions as a table, each with its whole reason."""
    if not found:
        return f"meta has not {'changed' if changes else 'decided'} anything yet"
    rows = table(("when", "id", "in force", "set by", "expected", "good", "regret", "reason"), [_row(one) for one in found])
    return f"{rows}\n\n{SHARES}"


def _refuse_options_before(ctx: click.Context) -> None:
    """Refuses options before a subcommand: it would not get them, and could silently ask another gateway."""
    for option in ctx.command.params:
        if ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} stands before {ctx.invoked_subcommand}; allowed: after it")


def page(document: dict[str, Any]) -> str:
    """A decision as text."""
    in_force = _in_force(document)
    change = f"{document['before']} -> {in_force}" if document["changed"] and document["before"] != in_force else f"{in_force}, unchanged"
    lines = [
        f"decision  {document['decision_id']}, {clock_words(document['sent_s'])}",
        f"in force  {change}",
        f"by        {document['source']}, confidence {document['confidence']:.2f}",
        f"why       {document['reason']}",
    ]
    if document["evidence"]:
        lines += [
            "",
            "figures that it is based on:",
            table(("figure", "value"), [(name, f"{value:.4g}") for name, value in document["evidence"].items()]),
        ]
    if document["candidates"]:
        rows = [(one["name"], _share(one["good"]), _gain(one)) for one in document["candidates"]]
        lines += ["", "expected of each, by replay of recent traffic:", table(("candidate", "good", "points over the active policy"), rows)]
    return "\n".join([*lines, "", _outcome(document)])


def _outcome(document: dict[str, Any]) -> str:
    outcome = document["outcome"]
    if outcome is None:
        return "no outcome yet: its window is still open, or another decision replaced it"
    expected = f", expected {_share(outcome['expected'])}" if outcome["expected"] >= 0 else ""
    if not outcome["requests"]:
        return f"outcome: no request ended in its window{expected}"
    text = f"outcome: {_share(outcome['good'])} of those settled good ({outcome['requests']} ended){expected}"
    if outcome["regret"] is None:
        return text
    best = f"{outcome['best']} would have had {_share(outcome['best_good'])}, what was chosen {_share(outcome['chosen_good'])}"
    return f"{text}\nin hindsight, by replay: {best}; regret {100 * outcome['regret']:.1f} points"


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    outcome = one["outcome"] or {}
    expected = outcome.get("expected", -1.0)
    regret = outcome.get("regret")
    return (
        clock_words(one["sent_s"]),
        one["decision_id"],
        ("* " if one["changed"] else "") + _in_force(one),
        one["source"],
        _share(expected) if expected >= 0 else "",
        (_share(outcome["good"]) if outcome["requests"] else "none ended") if outcome else "",
        f"{100 * regret:.1f}" if regret is not None else "",
        one["reason"],
    )


def _gain(one: dict[str, Any]) -> str:
    """A candidate's gain over the active policy; an error of 1 means that too little was replayed to know one."""
    gain, error = 100 * one["gain"], 100 * one["error"]
    return f"{gain:+.1f}, too few replays" if error >= 100.0 else f"{gain:+.1f} ± {error:.1f}"


def _in_force(one: dict[str, Any]) -> str:
    return str(one["in_force"]) + (" (bypass)" if one["bypass"] else "")


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
