"""`hmas demo`: compares H-MAS with baselines on this machine and writes a report."""

import asyncio
import json
from pathlib import Path

import click

from hmas.cli.output import check_writable, exit_where_broken, hint, say
from hmas.demo.decisions import decision_sentences
from hmas.demo.outcome import OURS, class_rows, class_table, document, headline, text_table, worse_headline, worse_sentences
from hmas.demo.page import page
from hmas.demo.settings import DemoSettings
from hmas.demo.story import run_demo


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
@click.pass_context
def demo(ctx: click.Context, *, seed: int, quick: bool, out: Path) -> None:
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
    """  # noqa: D301 - click reads \b as "do not rewrap"
    settings = DemoSettings(seed=seed, periods=1) if quick else DemoSettings(seed=seed)
    check_writable(out, folder=True)
    result = asyncio.run(run_demo(settings, out / "demo"))
    (out / "demo.json").write_text(json.dumps(document(result), indent=1) + "\n", encoding="utf-8")
    (out / "demo.html").write_text(page(result), encoding="utf-8")
    rows = class_rows(result)
    sentences = [f"  {sentence}" for sentence in decision_sentences(result.run(OURS))]
    decisions = "\n".join([f"What {OURS} decided (each decision is in {out / 'demo.json'}):", *sentences])
    classes = f"Good requests by class:\n{class_table(rows)}"
    end = f"{headline(result)}\n{worse_headline(result, rows)}"
    say("\n\n".join([text_table(result.runs), decisions, classes, "\n".join(worse_sentences(rows)), end]))
    hint(f"report: {out / 'demo.html'}   figures: {out / 'demo.json'}   {result.elapsed_s:.0f} s in all")
    if result.repeated:
        hint(f"made again because the machine stood still under them: {', '.join(result.repeated)}")
    exit_where_broken(ctx, result.broken)
