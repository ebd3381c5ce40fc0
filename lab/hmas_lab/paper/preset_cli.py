"""`hmas-lab paper-preset`: the paper's own system beside the default configuration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.core.errors import ConfigError
from hmas.planning.backends import on_cores
from hmas_lab.page import write_page
from hmas_lab.paper.preset import OURS, PAPER, PARTS, WORKLOADS, PresetSettings, compared
from hmas_lab.result_files import write_result
from hmas_lab.simulated_rows import read_names

NAME, COMMAND = "paper-preset", "make lab-paper-preset"
USUAL = PresetSettings()


@click.command("paper-preset")
@click.option("--fleet", default=USUAL.fleet, show_default=True, help="Engines, as `hmas simulate` takes them.")
@click.option("--workloads", default="", help=f"Some of {', '.join(WORKLOADS)}; empty for all.")
@click.option("--seeds", type=click.IntRange(1, 100), default=USUAL.seeds, show_default=True, help="Workloads of each kind.")
@click.option("--span", type=click.FloatRange(30, 86_400), default=USUAL.span_s, show_default=True, help="Seconds of arrivals.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Write the results in --out into this page; run nothing.")
@json_option
def paper_preset(*, workloads: str, span: float, workers: int, out: Path, page: Path | None, as_json: bool, **options: Any) -> None:
    """Compare preset `paper` with the default configuration in simulation, and switch each part over in turn.

    \b
    Examples:
      hmas-lab paper-preset
      hmas-lab paper-preset --workloads burst --seeds 5
      hmas-lab paper-preset --page docs/paper.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        write_page(page, out, {NAME: markdown}, command=COMMAND)
        return
    chosen = {**options, "span_s": span, "workloads": read_names("workloads", workloads, tuple(WORKLOADS))}
    try:
        settings = msgspec.convert(chosen, PresetSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error
    document = compared(settings, on_cores(workers), hint)
    write_result(out / f"{NAME}.json", document)
    hint(f"written to {out / NAME}.json")
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{title}\n{table(head, rows)}" for title, head, rows in tables(document)))


def tables(document: Mapping[str, Any]) -> list[tuple[str, list[str], list[tuple[str, ...]]]]:
    """Both ends with all figures, then the parts: title, head and rows of each."""
    found: list[tuple[str, list[str], list[tuple[str, ...]]]] = []
    head = ["workload", "system", "good", "goodput/s", "ESG/s", "TTFT met", "TPOT met", "TTFT p95, s", "TPOT p95, ms", "changes"]
    ends = [(workload, arm, arms[arm]) for workload, arms in document["summary"].items() for arm in (OURS, PAPER)]
    found.append(("Both systems, mean over the seeds:", head, [(workload, arm, *_figures(one)) for workload, arm, one in ends]))
    by = document["summary"]
    rows = [(part, *(_points(arms, arm, end) for arms in by.values() for arm, end in _pairs(part))) for part in PARTS]
    heads = [f"{workload}, {side}" for workload in by for side in ("default with the paper's", "paper with ours")]
    found.append(("Each part switched over, change of the share of good requests in points:", ["part", *heads], rows))
    return found


def _pairs(part: str) -> Sequence[tuple[str, str]]:
    return ((f"{OURS}, {part} of the paper", OURS), (f"{PAPER}, {part} of ours", PAPER))


def _points(arms: Mapping[str, Mapping[str, float]], arm: str, end: str) -> str:
    return f"{100.0 * (arms[arm]['good'] - arms[end]['good']):+.1f}"


def _figures(one: Mapping[str, float]) -> tuple[str, ...]:
    shares = (f"{one['ttft_compliance']:.1%}", f"{one['tpot_compliance']:.1%}")
    rates = (f"{one['good']:.1%}", f"{one['goodput_rps']:.2f}", f"{one['esg_rate']:.0f}")
    return (*rates, *shares, f"{one['ttft_s_p95']:.1f}", f"{one['tpot_ms_p95']:.0f}", f"{one['switches']:g}")


def markdown(document: Mapping[str, Any]) -> str:
    """The tables for a page."""
    parts = []
    for title, head, rows in tables(document):
        lines = [" | ".join(cells) for cells in (head, ["---"] * len(head), *rows)]
        parts.append(f"{title}\n\n" + "\n".join(f"| {line} |" for line in lines))
    return "\n\n".join(parts)
