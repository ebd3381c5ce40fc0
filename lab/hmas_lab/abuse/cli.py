"""`hmas-lab abuse`: whether hostile clients harm a steady one."""

import asyncio
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import EXIT_FAILED, complain, json_option, say, say_json, table
from hmas.controller.runtime.clock import SystemClock
from hmas_lab.abuse.study import AbuseSettings, abuse_study
from hmas_lab.result_files import write_result


@click.command()
@click.option("--rounds", type=click.IntRange(2, 200), default=8, show_default=True, help="Pairs of slices: alone, and beside attacks.")
@click.option("--slice", "slice_s", type=click.FloatRange(2, 120), default=8.0, show_default=True, help="Seconds of a slice.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("build/bench/abuse.json"), show_default=True)
@json_option
@click.pass_context
def abuse(ctx: click.Context, /, *, rounds: int, slice_s: float, out: Path, as_json: bool) -> None:
    """Send hostile requests beside a steady client's, through the product as it comes, on embedded engines.

    The hostile clients send huge lists, one-byte chunks and ambiguous requests, leave in the middle, and read nothing. The steady client's
    p99 must stay within 20 %, all its requests must end, and the gateway's memory must come back.

    Exit code 1 when a goal is missed.

    \b
    Examples:
      hmas-lab abuse
      hmas-lab abuse --rounds 4
    """  # noqa: D301 - click reads \b as "do not rewrap"
    document = asyncio.run(abuse_study(AbuseSettings(rounds=rounds, slice_s=slice_s), SystemClock()))
    write_result(out, document)
    if as_json:
        say_json(document)
    else:
        _print(document["summary"])
    missed = [goal["goal"] for goal in document["summary"]["goals"] if not goal["met"]]
    if missed:
        complain(f"missed: {'; '.join(missed)}")
        ctx.exit(EXIT_FAILED)


def _print(summary: dict[str, Any]) -> None:
    say("The steady client")
    head = ("slices", "answers", "TTFT p50 ms", "p99", "whole answer p50 ms", "p99")
    rows = [
        (arm, str(row["good"]), row["ttft_ms"]["p50"], row["ttft_ms"]["p99"], row["total_ms"]["p50"], row["total_ms"]["p99"])
        for arm, row in summary["rows"].items()
    ]
    say(table(head, [tuple(str(value) for value in row) for row in rows]))
    ratio, noise = summary["ratios"]["total_ms"], summary["noise"]["total_ms"]
    say(f"\np99 of whole answers over alone: {ratio} (every second slice alone over the rest: {noise})")
    say(f"memory of the gateway: {summary['rss_mb']['before']} MB before, {summary['rss_mb']['after']} MB after\n")
    say("What the hostile clients were answered")
    say(table(("kind", "answers"), [(name, str(count)) for name, count in summary["attacks"].items()]))
