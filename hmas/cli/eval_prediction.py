"""`hmas eval prediction`: R² of predictions on request logs that were not used for training."""

import math
from pathlib import Path
from typing import Any

import click

from hmas.agents.prediction.offline.evaluation import GOALS, PER_CELL, QUANTITIES, SPLITS, cross_validate, evaluate_files
from hmas.agents.prediction.offline.llm_pilot import read_rows
from hmas.agents.prediction.offline.predictability import ORACLES
from hmas.agents.prediction.offline.profile_files import SHIPPED, load_profile_model
from hmas.cli.output import hint, json_option, say, say_json, table

SPLIT_TITLES = {
    "rows": "Held out: rows",
    "load": "Held out: each load",
    "load between": "Held out: each load between two measured ones",
    "gpu": "Held out: each type of GPU",
}
LEGEND = "\n".join(
    [
        "requests, cells: R2 over single requests, and over the means of cells (a model on some GPUs under a number of users).",
        "fed: without cells in which almost no request ended within the run; met: whether the figure before it reaches the goal.",
        "goal: H-MAS Table 5.",
        *(f"{name}: an oracle that {words}." for name, words in ORACLES.items()),
        "with a twin: share of the requests of which another has the same tokens in and out in the same cell.",
    ]
)


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
    """Evaluate predictions of times on request logs.

    Nothing is learnt from the files unless --fit is given. "With telemetry": a prediction uses the telemetry of earlier requests of the
    same configuration and load that was available when its request was sent, as the agent does live. "Static": only lengths, load,
    hardware and model.

    R² is over single requests, and over the means of cells (a configuration under a load). "Fed" leaves out starved cells, in which almost
    no request ended within the run. Decode time is `itl_mean_ms`, prefill `ttft_ms`; a request's throughput is its output tokens over its
    latency, a cell's that of all its users; latency per token is latency over output tokens.

    The report also has the limit of what can be predicted for single requests: R² of oracles that use the evaluated file itself. No
    prediction from cell and request alone can exceed the oracle that knows the average time of requests with the same tokens in the same
    cell. Only a prediction that also uses the moment, by telemetry or by the time since the run began, can exceed it. --json also has the
    oracles by GPU, load and length.

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
        say_json(_plain(found))
        return
    if fit:
        _say_splits(found)
    else:
        _say_files(found)


def _say_files(found: dict[str, Any]) -> None:
    measured, near = found["measured"], found["near"]
    say(
        f"{found['rows']} requests in {found['cells']} cells: {measured} that were fitted to, "
        f"{near} at other loads of configurations that were\n"
    )
    if found["outside"]:
        said = ", ".join(f"{name} {count}" for name, count in sorted(found["outside"].items()))
        say(f"Requests with inputs outside of what it was trained on, cut to that: {said}\n")
    for name in ("telemetry", "static"):
        say(f"{_title(name)}\n{_table({'': found[name]}) if found[name] else 'fewer than two requests: no R2'}\n")
    say(f"What can be foretold of single requests, R2\n{_oracles({'': found['foretellable']})}\n")
    for name, words in (("by_load", "users"), ("by_gpu", "GPU")):
        rows = [[key, *(_figure(values.get(quantity)) for quantity in QUANTITIES)] for key, values in found[name].items()]
        say(f"R2 over requests with telemetry\n{table([words, *QUANTITIES], rows)}\n")
    say(LEGEND)


def _say_splits(found: dict[str, Any]) -> None:
    say(f"{found['requests']} requests in {found['cells']} cells\n")
    for name in SPLIT_TITLES:
        if name in found and isinstance(found[name], dict):
            say(f"{_title(name)}\n{_table(found[name])}\n")
    known = {"all": found["foretellable"]}
    if "foretellable between" in found:
        known["load between"] = found["foretellable between"]
    say(f"What can be foretold of single requests, R2\n{_oracles(known)}\n")
    say(LEGEND)


def _title(name: str) -> str:
    return {"telemetry": "With telemetry", "static": "Static", **SPLIT_TITLES}[name]


def _table(scored: dict[str, Any]) -> str:
    head = ["who", "quantity", "goal", "requests", "fed", "met", "cells", "cells fed", "met", "of logs", "by tokens", "median error"]
    rows = []
    for who, by_quantity in scored.items():
        for quantity, figures in by_quantity.items():
            requests, cells = figures["r2_not_starved"], figures["r2_cells_not_starved"]
            values = [
                _figure(figures["r2"]),
                _figure(requests),
                requests >= GOALS[quantity],
                _figure(figures["r2_cells"]),
                _figure(cells),
                cells >= GOALS[quantity],
                *(_figure(figures[name]) for name in ("r2_log", "r2_token_weighted", "median_error")),
            ]
            rows.append([who, quantity, GOALS[quantity], *values])
    return _without_who(head, rows)


def _oracles(known: dict[str, Any]) -> str:
    head = ["requests of", "quantity", "goal", *ORACLES, "with a twin"]
    rows = [
        [over, quantity, GOALS[quantity], *(_figure(figures[name]) for name in (*ORACLES, "twins"))]
        for over, by_quantity in known.items()
        for quantity, figures in by_quantity.items()
    ]
    return _without_who(head, rows)


def _without_who(head: list[str], rows: list[list[Any]]) -> str:
    """The table, without its first column if that is empty."""
    start = 0 if any(row[0] for row in rows) else 1
    return table(head[start:], [row[start:] for row in rows])


def _figure(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4f}"


def _plain(value: Any) -> Any:
    """Replaces NaN, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
