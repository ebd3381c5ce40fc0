"""`hmas-lab traces`: what the traces are like that requests are replayed from."""

from pathlib import Path

import click

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas_lab.result_files import write_result
from hmas_lab.traces.page import KIND, tables, write_page
from hmas_lab.traces.plots import draw_all
from hmas_lab.traces.sources import by_task, named, recorded, weeks
from hmas_lab.traces.study import study

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--data", type=FOLDER, envvar="HMAS_DATA_DIR", help="Folder of the public data; default: HMAS_DATA_DIR.")
@click.option("--workload", "workloads", multiple=True, help="Such a workload instead, as `hmas simulate` takes it; repeatable.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@json_option
def traces(*, data: Path | None, workloads: tuple[str, ...], page: Path | None, out: Path, as_json: bool) -> None:
    """Tell bursts, drift of the mix, lengths and slow changes of the recorded traces, and the targets of requests by task type.

    \b
    Examples:
      hmas-lab traces
      hmas-lab traces --workload burst:rate=40 --workload poisson:rate=40 --out /tmp/look
      hmas-lab traces --page docs/traces.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out))}")
        return
    if workloads:
        document = study(named(workloads), {}, {})
    elif data is not None:
        document = study(recorded(data), weeks(data), by_task(data))
    else:
        raise click.UsageError("the traces are public data that this project lacks: give --data DIR, set HMAS_DATA_DIR, or name --workload")
    write_result(out / f"{KIND}.json", document)
    drawn = draw_all(out, document)
    hint(f"written to {out}: {KIND}.json, {', '.join(f'{name}.svg' for name in drawn)}")
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{one.title}\n{table(one.head, one.rows)}" for one in tables(document)))
