"""`hmas-lab live`: H-MAS on a real vLLM against the engine's default, the plain baselines, and fixed policies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import exit_where_broken, json_option, say, say_json, table
from hmas_lab.live.settings import PACE, live_settings, read_fixed
from hmas_lab.live.study import contest
from hmas_lab.live.tables import arms_table, body, controls_table, goals_table
from hmas_lab.onvllm.cli import engine_options, page_option, run_contest
from hmas_lab.page import LIVE, write_page
from hmas_lab.result_files import write_result


@click.command()
@engine_options(seconds=48.0, load=0.9)
@click.option("--fixed", default="", help="Fixed policies with commas between, or `all`. Default: one of each kind.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Texts, tenants and order of the runs.")
@page_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/live"), show_default=True, help="Results.")
@json_option
@click.pass_context
def live(ctx: click.Context, /, *, page: Path | None, out: Path, as_json: bool, **options: Any) -> None:
    """Compare H-MAS with the engine's default, FCFS with the best window, that with shedding, and fixed policies.

    Bursty arrivals from a real trace; capacity, targets and the baselines' windows are measured on the engine in the same session. Every
    block makes all runs on the same arrivals, in an order drawn for it; runs under which the clock stood still for 0.3 s are made again.
    Nothing else should run on the machine meanwhile.

    Exit code 1 when a request was lost or anything else broke.

    \b
    Examples:
      hmas-lab live --vllm-python build/vllm/bin/python --model build/tiny-model
      hmas-lab live --page docs/results-live.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out, {LIVE: body}, command='hmas-lab live'))}")
        return
    if options["vllm_python"] is None or options["model"] is None:
        raise click.UsageError("give --vllm-python and --model, or --page")
    document = _run(out, options)
    if as_json:
        say_json(document)
    else:
        for found in (goals_table(document), arms_table(document), controls_table(document)):
            say(f"{found.title}\n{table(found.head, found.rows)}\n")
    exit_where_broken(ctx, document["broken"])


def _run(out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    settings = live_settings(
        read_fixed(options["fixed"]), seconds=options["seconds"], blocks=options["blocks"], load=options["load"], seed=options["seed"]
    )

    def keep(document: dict[str, Any]) -> None:
        write_result(out / f"{LIVE}.json", document)

    return run_contest(contest(settings), options, out / "runs", on_block=keep, config={"agents": PACE})
