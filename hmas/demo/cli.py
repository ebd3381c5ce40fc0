"""`hmas demo`: compares H-MAS with baselines on this machine and writes a report."""

import json
from pathlib import Path

import click

from hmas.cli.output import exit_where_broken, hint, say
from hmas.demo.classes import class_rows, class_table, classes_document, worse_sentences
from hmas.demo.outcome import OURS, chosen_decisions, decision_line, document, headline, rounds_table, text_table
from hmas.demo.page import page
from hmas.demo.settings import DemoSettings
from hmas.demo.story import run_demo

DECISIONS_SHOWN = 14


@click.command()
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Arrivals, lengths and texts follow from it.")
@click.option("--quick", is_flag=True, help="One burst cycle instead of two: a look, not a result.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build"),
    show_default=True,
    help="Folder for demo.json and demo.html; logs and raw results go to demo/ in it.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=1, show_default=True, help="Repeat with the next seeds and give medians.")
@click.option("--neighbours", is_flag=True, help="Also run the windows next to the baselines' simulated best; the better one counts.")
@click.pass_context
def demo(ctx: click.Context, *, seed: int, quick: bool, out: Path, rounds: int, neighbours: bool) -> None:
    """Compare H-MAS with three baselines on this machine, in under two minutes.

    Starts two embedded engines and replays the same bursty arrivals four times: straight through (the engine's default), first come first
    served with the best static window, the same with shedding, and H-MAS with its five agents. Both windows are tuned on the same
    arrivals. Requests have the bodies of real clients, from two tenants: chats with and without a history, completions, tools, answers that
    are not streamed. Half of them have no max_tokens, and half declare no targets; these are judged by a TTFT of 2 s and a TPOT of 60 ms.
    Progress goes to stderr; the tables, the classes at which H-MAS is worse than the best baseline, and the decisions with their reasons
    go to stdout.

    Exit code 0 if all checks held, 1 if one failed: a lost request, a crashed process, sums that do not balance.

    \b
    Examples:
      hmas demo
      hmas demo --seed 7 --out /tmp/demo
      hmas demo --rounds 5        # ten minutes: for a claim rather than a look
    """  # noqa: D301 - click reads \b as "do not rewrap"
    settings = DemoSettings(seed=seed, periods=1) if quick else DemoSettings(seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    results = run_demo(settings, out / "demo", rounds=rounds, neighbours=neighbours)
    first = results[0]
    rows = class_rows(first)
    found = document(first, results) | classes_document(rows)
    (out / "demo.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / "demo.html").write_text(page(first), encoding="utf-8")
    say(text_table(first.runs))
    say("")
    say(f"Decisions of {OURS} (some of them; all are in {out / 'demo.json'}):")
    for decision in chosen_decisions(first.run(OURS), DECISIONS_SHOWN):
        say("  " + decision_line(decision))
    say("")
    if rounds > 1:
        say(rounds_table(results))
        say("")
    say("Good requests by class:")
    say(class_table(rows))
    say("")
    say("\n".join(worse_sentences(rows)))
    say("")
    say(headline(first))
    hint(f"report: {out / 'demo.html'}   figures: {out / 'demo.json'}   {sum(r.elapsed_s for r in results):.0f} s in all")
    repeated = [name for result in results for name in result.repeated]
    if repeated:
        hint(f"made again because the machine stood still under them: {', '.join(repeated)}")
    exit_where_broken(ctx, [text for result in results for text in result.broken])
