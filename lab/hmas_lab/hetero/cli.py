"""`hmas-lab heteroserve`: HeteroServe's evaluation with the product's routers."""

from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.planning.backends import on_cores
from hmas_lab.hetero.arms import ARMS
from hmas_lab.hetero.page import KIND, tables, write_page
from hmas_lab.hetero.study import QUICK, Settings, kept_rows, run
from hmas_lab.result_files import write_result
from hmas_lab.simulated_rows import read_names

DEFAULT = Settings()
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUT = Path("build/lab")


@click.command()
@click.option("--seeds", type=click.IntRange(1, 100), default=DEFAULT.seeds, show_default=True, help="Workloads at each place.")
@click.option("--requests", type=click.IntRange(8, 1_000_000), default=DEFAULT.requests, show_default=True, help="Per run on 8 devices.")
@click.option("--arms", default="", help="Only these, with commas between; the names are those of the page. Default: all.")
@click.option("--quick", is_flag=True, help="A look in a minute: one seed, short runs, few places.")
@click.option("--most", type=click.IntRange(0), default=0, help="At most so many new runs; the next call goes on. Default: all.")
@click.option("--workers", type=click.IntRange(0, 256), default=1, show_default=True, help="Processes; 0 for one per core.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=OUT, show_default=True, help="Results.")
@json_option
def heteroserve(*, page: Path | None, out: Path, as_json: bool, quick: bool, most: int, workers: int, arms: str, **options: Any) -> None:
    """Simulate HeteroServe's cluster (2 H100, 4 A100, 2 L40S, a 13B model, TTFT within 500 ms) with the product's scheduler and routers.

    Its dispatchers as published stand beside the product's. Rows are kept in OUT/heteroserve.rows.jsonl as they come: a run that is broken
    off goes on where it was, as long as the sources are the same. Goals that are missed are shown, and are no error.

    \b
    Examples:
      hmas-lab heteroserve
      hmas-lab heteroserve --quick --out /tmp/look
      hmas-lab heteroserve --page docs/results-heteroserve.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out))}")
        return
    chosen = read_names("--arms", arms, tuple(ARMS))
    settings = msgspec.structs.replace(QUICK, arms=chosen) if quick else Settings(arms=chosen, **options)
    document = run(settings, on_cores(workers), kept_rows(out / f"{KIND}.rows.jsonl"), hint, most)
    write_result(out / f"{KIND}.json", document)
    hint(f"written to {out}: {KIND}.json" + (f"; {document['missing']} runs are missing" if document["missing"] else ""))
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{one.title}\n{table(one.head, one.rows)}" for one in tables(document) if one.rows))
