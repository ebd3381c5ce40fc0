"""`hmas eval prediction`: R² of predictions on request logs that were not learnt from."""

from pathlib import Path
from typing import Any

import click

from agents.prediction.evaluation import GOALS, PER_CELL, SPLITS, cross_validate, evaluate_files
from agents.prediction.llm_pilot import read_rows
from agents.prediction.profile_files import SHIPPED, load_profile_model
from hmas.cli.output import hint, json_option, say, say_json, table


@click.command("prediction")
@click.option(
    "--data",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    required=True,
    help="Request logs in LLM-Pilot's format, CSV or gzip. Repeatable.",
)
@click.option(
    "--model", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Folder of a profile model; default: the shipped one."
)
@click.option("--fit", is_flag=True, help="Instead, learn from the files themselves and predict what each split holds out.")
@click.option("--split", "splits", type=click.Choice(SPLITS), multiple=True, help="With --fit: only these splits. Repeatable.")
@click.option(
    "--per-cell", type=click.IntRange(10), default=PER_CELL, show_default=True, help="With --fit: rows of a cell learnt from, at most."
)
@json_option
def eval_prediction(
    *, files: tuple[Path, ...], model: Path | None, fit: bool, splits: tuple[str, ...], per_cell: int, as_json: bool
) -> None:
    """Say how well times are predicted on request logs.

    Nothing is learnt from the files unless --fit is given. "With telemetry" means: a prediction knows what earlier requests of the same
    configuration and load had told when its request was sent, as the agent does live. "Static": only lengths, load, hardware and model.

    R² is over single requests, and over the means of cells (a configuration under a load). "Fed" leaves out starved cells, in which almost
    no request ended within the run. Decode time is `itl_mean_ms`, prefill `ttft_ms`; a request's throughput is its output tokens over its
    latency, a cell's that of all its users; latency per token is latency over output tokens.

    \b
    Examples:
      hmas eval prediction --data llm_pilot_requests.csv.gz
      hmas eval prediction --fit --split load --split gpu --data llm_pilot_requests.csv.gz --json
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if splits and not fit:
        raise click.UsageError("--split says what --fit holds out; allowed: both together")
    if fit:
        found = cross_validate(read_rows(files), splits=splits or SPLITS, per_cell=per_cell, on_progress=hint)
    else:
        trained, card = load_profile_model(model or SHIPPED)
        found = {"model": str(model) if model else "shipped", "trained_on": card.data_sha256, **evaluate_files(files, trained)}
    if as_json:
        say_json(found)
        return
    parts = {name: value for name, value in found.items() if isinstance(value, dict) and _is_scored(value)}
    for name, value in parts.items():
        say(f"{_title(name)}\n{_table(value if fit else {'': value})}\n")


def _is_scored(value: dict[str, Any]) -> bool:
    inner = next(iter(value.values()), None)
    return isinstance(inner, dict) and ("r2" in inner or any("r2" in one for one in inner.values() if isinstance(one, dict)))


def _title(name: str) -> str:
    return {
        "telemetry": "With telemetry",
        "static": "Static",
        "rows": "Held out: rows",
        "load": "Held out: each load",
        "load between": "Held out: each load between two measured ones",
        "gpu": "Held out: each type of GPU",
    }.get(name, name)


def _table(scored: dict[str, Any]) -> str:
    head = ["who", "quantity", "goal", "R2", "R2 fed", "R2 log", "R2 tokens", "median error", "R2 cells", "R2 cells fed"]
    if set(scored) == {""}:
        head = head[1:]
    columns = ("r2", "r2_not_starved", "r2_log", "r2_token_weighted", "median_error", "r2_cells", "r2_cells_not_starved")
    rows = []
    for who, by_quantity in scored.items():
        for quantity, figures in by_quantity.items():
            values = [f"{figures[name]:.4f}" for name in columns]
            rows.append([*([who] if who else []), quantity, GOALS[quantity], *values])
    return table(head, rows)
