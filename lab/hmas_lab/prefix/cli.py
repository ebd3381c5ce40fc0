"""`hmas-lab prefix`: prefix caches of a fleet under the product's routers and those of other gateways."""

from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.planning.backends import on_cores
from hmas_lab.prefix.arms import ARMS
from hmas_lab.prefix.load import WORKLOADS
from hmas_lab.prefix.page import KIND, tables, write_page
from hmas_lab.prefix.study import QUICK, Settings, kept_rows, run
from hmas_lab.result_files import write_result
from hmas_lab.simulated_rows import read_names

DEFAULT = Settings()
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--seeds", type=click.IntRange(1, 100), default=DEFAULT.seeds, show_default=True, help="Runs at each place.")
@click.option("--requests", type=click.IntRange(100, 1_000_000), default=DEFAULT.requests, show_default=True, help="Per run.")
@click.option("--arms", default="", help="Only these, with commas between; the names are those of the page. Default: all.")
@click.option("--workloads", default="", help=f"Only these of {', '.join(WORKLOADS)}. Default: all.")
@click.option("--quick", is_flag=True, help="A look in a minute: one seed, short runs, one load.")
@click.option("--workers", type=click.IntRange(0, 256), default=1, show_default=True, help="Processes; 0 for one per core.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@json_option
def prefix(*, page: Path | None, out: Path, as_json: bool, quick: bool, workers: int, arms: str, workloads: str, **options: Any) -> None:
    """Simulate eight instances with prefix caches, whose requests share beginnings, under the product's routers and those of others.

    Mooncake's trace takes part if HMAS_DATA_DIR names the public data. Rows are kept in OUT/prefix.rows.jsonl as they come: a run that is
    broken off goes on where it was, as long as the sources are the same. Goals that are missed are shown, and are no error.

    \b
    Examples:
      hmas-lab prefix
      hmas-lab prefix --quick --out /tmp/look
      hmas-lab prefix --page docs/results-prefix.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out))}")
        return
    chosen: dict[str, Any] = {"arms": read_names("--arms", arms, tuple(ARMS)), "workloads": read_names("--workloads", workloads, WORKLOADS)}
    settings = msgspec.structs.replace(QUICK, **chosen) if quick else Settings(**chosen, **options)
    document = run(settings, on_cores(workers), kept_rows(out / f"{KIND}.rows.jsonl"), hint)
    write_result(out / f"{KIND}.json", document)
    hint(f"written to {out}: {KIND}.json" + (f"; without {', '.join(document['missing'])}: no data" if document["missing"] else ""))
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{one.title}\n{table(one.head, one.rows)}" for one in tables(document) if one.rows))
