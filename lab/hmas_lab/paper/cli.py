"""`hmas-lab paper`: H-MAS's evaluation in the calibrated simulator."""

from pathlib import Path
from typing import Any, get_args

import click

from hmas.cli.output import exit_where_broken, hint, json_option, say, say_json, table
from hmas.planning.backends import on_cores
from hmas_lab.paper.arms import PRODUCT
from hmas_lab.paper.page import KIND, write_page, write_shapes
from hmas_lab.paper.plots import draw_all, draw_shapes
from hmas_lab.paper.rows import OldRows, kept_rows
from hmas_lab.paper.settings import PaperSettings, quick, read_arms, read_models, read_scenarios
from hmas_lab.paper.study import PaperStudy
from hmas_lab.paper.tables import goals_table, hindsight_table
from hmas_lab.result_files import write_result

DEFAULT = PaperSettings()
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
OUT = Path("build/lab")


@click.command()
@click.option("--models", default="", help="Only these, with commas between. Default: all.")
@click.option("--scenarios", default="", help="Only these, with commas between. Default: all.")
@click.option("--arms", default="", help="Only these, with commas between. Default: all.")
@click.option("--seeds", type=click.IntRange(2, 100), default=DEFAULT.seeds, show_default=True, help="Workloads per scenario.")
@click.option("--piece", type=click.FloatRange(0.01, 1), default=DEFAULT.piece, show_default=True, help="Share of the fleet.")
@click.option("--span", type=click.FloatRange(0.05, 10), default=DEFAULT.span, show_default=True, help="Factor on all lengths.")
@click.option("--quick", "shortened", is_flag=True, help="A look in minutes: two seeds, a fifth of the lengths, five fixed policies.")
@click.option("--data", type=FOLDER, envvar="HMAS_DATA_DIR", help="Folder of the public data, for replays; default: HMAS_DATA_DIR.")
@click.option("--workers", type=click.IntRange(0, 256), default=0, show_default=True, help="Processes; 0 for one per core.")
@click.option(
    "--old-rows", type=click.Choice(get_args(OldRows)), default="none", show_default=True, help="Rows of other sources that count."
)
@click.option("--again", default="", help="Arms whose rows are made again in any case.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
@click.option("--shapes", is_flag=True, help="With --page: only radars and courses of ESG, into their own section.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=OUT, show_default=True, help="Results.")
@json_option
@click.pass_context
def paper(ctx: click.Context, /, *, page: Path | None, shapes: bool, out: Path, as_json: bool, **options: Any) -> None:
    """Run H-MAS's evaluation in virtual time: its scenarios, baselines and ablations on eight A100.

    Rows are kept in OUT/hmas.rows.jsonl as they come. A run that is broken off goes on where it was, as long as the sources are the same;
    --old-rows static also takes over rows without agents that other sources made.

    Exit code 1 when a run broke. Goals that are missed are shown, and are no error.

    \b
    Examples:
      hmas-lab paper
      hmas-lab paper --models qwen3-8b --scenarios phases,burst --seeds 8
      hmas-lab paper --quick
      hmas-lab paper --page docs/results-hmas.md
      hmas-lab paper --page docs/results-hmas.md --shapes
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        written = write_shapes(page, out) if shapes else write_page(page, out)
        say(f"{page}: written from {out}: {', '.join(written)}")
        return
    if shapes:
        raise click.UsageError("--shapes says what to write into a page; give --page with it")
    document = _run(out, options)
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{one.title}\n{table(one.head, one.rows)}" for one in (goals_table(document), hindsight_table(document))))
    exit_where_broken(ctx, document["broken"])


def _run(out: Path, options: dict[str, Any]) -> dict[str, Any]:
    settings = PaperSettings(
        models=read_models(options["models"]),
        scenarios=read_scenarios(options["scenarios"]),
        arms=read_arms(options["arms"]),
        seeds=options["seeds"],
        piece=options["piece"],
        span=options["span"],
        data=str(options["data"] or ""),
    )
    settings = quick(settings) if options["shortened"] else settings
    if PRODUCT not in settings.arms:
        hint(f"without the arm {PRODUCT} there are no goals to judge")
    if settings.left_out():
        hint(f"left out without HMAS_DATA_DIR: {', '.join(settings.left_out())}")
    kept = kept_rows(
        out / f"{KIND}.rows.jsonl", old=options["old_rows"], again=set(read_arms(options["again"])) if options["again"] else ()
    )
    document = PaperStudy(settings, on_cores(options["workers"]), hint, kept).run()
    write_result(out / f"{KIND}.json", document)
    drawn = draw_all(out, document) + draw_shapes(out, document)
    hint(f"written to {out}: {KIND}.json{''.join(f', {name}.svg' for name in drawn)}")
    return document
