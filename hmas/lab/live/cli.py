"""`hmas lab live`: H-MAS on a real vLLM against the engine's default, the plain baselines, and fixed policies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import EXIT_FAILED, complain, duration_words, hint, json_option, say, say_json, table
from hmas.demo.field_cli import default_trace
from hmas.demo.vllm_engine import VllmServer
from hmas.lab.live.settings import PACE, live_settings, read_fixed
from hmas.lab.live.study import STAGES, LiveComparison
from hmas.lab.live.tables import arms_table, body, goals_table
from hmas.lab.page import LIVE, write_page
from hmas.lab.result_files import write_result
from hmas.lab.shared_vllm import compare_on_vllm, seconds_of
from hmas.lab.traces import read_trace

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--vllm-python", type=click.Path(path_type=Path), help="Interpreter of the environment that holds vLLM.")
@click.option("--model", type=click.Path(path_type=Path), help="Model directory (scripts/build_tiny_model.py).")
@click.option("--trace", type=FILE, help="Trace with times and lengths; default: Azure's under HMAS_DATA_DIR, else drawn.")
@click.option("--seconds", type=click.FloatRange(4, 600), default=48.0, show_default=True, help="Scored seconds of one run.")
@click.option("--blocks", type=click.IntRange(1, 20), default=5, show_default=True, help="Repetitions of all runs.")
@click.option("--load", type=click.FloatRange(0.1, 2.0), default=0.9, show_default=True, help="Mean rate over measured capacity.")
@click.option("--fixed", default="", help="Fixed policies with commas between, or `all`. Default: one of each kind.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Texts, tenants and order of the runs.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
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
      hmas lab live --vllm-python build/vllm/bin/python --model build/tiny-model
      hmas lab live --page docs/results-live.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out, {LIVE: body}, command='hmas lab live'))}")
        return
    if options["vllm_python"] is None or options["model"] is None:
        raise click.UsageError("give --vllm-python and --model, or --page")
    document = _run(out, options)
    if as_json:
        say_json(document)
    else:
        for found in (goals_table(document), arms_table(document)):
            say(f"{found.title}\n{table(found.head, found.rows)}\n")
    for text in document["broken"]:
        complain(f"broken: {text}")
    if document["broken"]:
        ctx.exit(EXIT_FAILED)


def _run(out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    settings = live_settings(
        read_fixed(options["fixed"]), seconds=options["seconds"], blocks=options["blocks"], load=options["load"], seed=options["seed"]
    )
    rows = read_trace(options["trace"]) if options["trace"] else default_trace()
    phases = seconds_of(settings.field, STAGES, treatments=2, runs=len(settings.names))
    hint(f"about {duration_words(sum(length for _, length in phases))}: {len(settings.names)} runs a block")
    out.mkdir(parents=True, exist_ok=True)
    server = VllmServer(python=options["vllm_python"], model=options["model"])

    def keep(document: dict[str, Any]) -> None:
        write_result(out / f"{LIVE}.json", document)

    return compare_on_vllm(
        lambda runs, load, reporter: LiveComparison(settings, runs, load, say=reporter.say, stage=reporter.phase),
        settings.field,
        server,
        rows,
        out / "runs",
        phases=phases,
        on_block=keep,
        config={"agents": PACE},
    )
