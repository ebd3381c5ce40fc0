"""Evaluates predictions on request logs outside the training: R² per request and per configuration, beside plain baselines.

The meaning of the figures (H-MAS Table 5 names four quantities and does not define them; this is the reading here):

- decode time per token: `itl_mean_ms`, the mean time between a request's output tokens;
- throughput: output tokens over latency of a request; of a cell, users x tokens / latency summed (Little's law for closed-loop users);
- mean latency per token: latency over output tokens of a request; of a cell, the mean over its requests;
- prefill: `ttft_ms`, from the opened stream to the first token.

`starved` cells (`Rows.starved`) are cut off: almost none of their requests ended within the run. Figures are given with and without them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmas_lab.llm_pilot.model import ProfileModel, Target, bases, cells_of, fit, fit_formula, setups_of
from hmas_lab.llm_pilot.oracles import foretellable
from hmas_lab.llm_pilot.rows import Rows, groups, read_rows
from hmas_lab.llm_pilot.state import Column

QUANTITIES = ("decode_ms_per_token", "throughput_tokens_per_s", "latency_ms_per_token", "prefill_ms")
GOALS: Mapping[str, float] = MappingProxyType(
    {"decode_ms_per_token": 0.9576, "throughput_tokens_per_s": 0.9418, "latency_ms_per_token": 0.9319, "prefill_ms": 0.7236}
)
"""R² of H-MAS Table 5."""
SPLITS = ("rows", "load", "gpu")
FOLDS = 5
PER_CELL = 200
"""Rows of a cell that models of a cross-validation see: a few hundred contain what the cell can teach."""

Predictions = dict[str, Column]
Predictor = Callable[[Rows], Predictions]
Trainer = Callable[[Rows], Predictor]


def actual(rows: Rows) -> Predictions:
    """Returns the outcomes, by quantity; NaN if a request had too few tokens."""
    return {
        "decode_ms_per_token": rows.itl_ms,
        "throughput_tokens_per_s": rows.tokens_per_s,
        "latency_ms_per_token": rows.per_token_ms,
        "prefill_ms": rows.ttft_ms,
    }


def quantities(told: Mapping[Target, Column]) -> Predictions:
    """Returns a `ProfileModel`'s predictions, by quantity."""
    return {
        "decode_ms_per_token": told["itl"],
        "throughput_tokens_per_s": 1e3 / told["per_token"],
        "latency_ms_per_token": told["per_token"],
        "prefill_ms": told["ttft"],
    }


def evaluate(rows: Rows, predictor: Predictor) -> dict[str, Any]:
    """Returns the scores of one predictor on rows outside its training."""
    return scores(rows, predictor(rows))


def evaluate_files(paths: Sequence[Path], model: ProfileModel) -> dict[str, Any]:
    """Returns the scores of a trained model on files in LLM-Pilot's format, without learning from them.

    With `telemetry`, a prediction uses what earlier requests of the same cell and file had shown when the request was sent; with `static`,
    only lengths, load, hardware and model. `outside` has, by input, the requests outside the training ranges.

    Raises:
        TraceError: A file does not have that format.
        ModelError: A GPU or model in it is unknown.
    """
    rows = read_rows(paths)
    known = model.known(rows)
    of_cells = [float(known[index[0]]) for _, index in groups(rows.cells())]
    told = model.predict(rows, live=True)
    # Copied after one pass over the rows, before later passes count the same rows again.
    outside = dict(model.ranges.out_of_range) if model.ranges is not None else {}
    return {
        "rows": len(rows),
        "cells": len(of_cells),
        "measured": sum(value == 1.0 for value in of_cells),
        "near": sum(0.0 < value < 1.0 for value in of_cells),
        "goals": dict(GOALS),
        "outside": outside,
        "telemetry": scores(rows, quantities(told)),
        "static": scores(rows, quantities(model.predict(rows, live=False))),
        "by_load": {str(int(load)): _short(rows, model, rows.users == load) for load in np.unique(rows.users)},
        "by_gpu": {str(name): _short(rows, model, rows.gpu == name) for name in np.unique(rows.gpu)},
        "foretellable": foretellable(rows, actual(rows)),
    }


def cross_validate(
    rows: Rows,
    *,
    splits: Sequence[str] = SPLITS,
    per_cell: int = PER_CELL,
    seed: int = 1,
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Returns scores on held-out data, by split: by rows (one fifth at a time), by load (each number of users), by GPU (each type).

    Scores cover all held-out predictions together: each row is predicted once, by models that saw neither the row itself nor, by load and
    by GPU, any row of its kind.
    """

    def trained(part: Rows) -> Mapping[str, Predictor]:
        model = fit(part, seed=seed, per_cell=per_cell)
        return {
            "catboost, with telemetry": lambda asked: quantities(model.predict(asked, live=True)),
            "catboost": lambda asked: quantities(model.predict(asked, live=False)),
            **{name: trainer(part) for name, trainer in BASELINES.items()},
        }

    answer: dict[str, Any] = {
        "requests": len(rows),
        "cells": len(np.unique(rows.cells())),
        "goals": dict(GOALS),
        "foretellable": foretellable(rows, actual(rows)),
    }
    for split in splits:
        keys = _keys(rows, split, seed)
        held: dict[str, Predictions] = {}
        for key in np.unique(keys):
            on_progress(f"split by {split}: {key}")
            out = np.flatnonzero(keys == key)
            if len(out) == len(rows):
                continue
            for name, predictor in trained(rows.take(np.flatnonzero(keys != key))).items():
                for quantity, values in predictor(rows.take(out)).items():
                    held.setdefault(name, {}).setdefault(quantity, np.full(len(rows), np.nan))[out] = values
        answer[split] = {name: scores(rows, predictions) for name, predictions in held.items()}
        if split == "load":
            # A load outside all measured ones requires a guess; a measured fleet mostly needs loads between measured ones.
            inside = np.flatnonzero((rows.users > rows.users.min()) & (rows.users < rows.users.max()))
            part = rows.take(inside)
            answer["foretellable between"] = foretellable(part, actual(part))
            answer["load between"] = {
                name: scores(part, {quantity: values[inside] for quantity, values in predictions.items()})
                for name, predictions in held.items()
            }
    return answer


def scores(rows: Rows, predicted: Predictions) -> dict[str, Any]:
    """By quantity: R² over requests and over cells, with and without starved cells, of logarithms, weighted by tokens, and median error."""
    came = actual(rows)
    fed = ~rows.starved()
    answer: dict[str, Any] = {}
    for quantity in QUANTITIES:
        said, true = predicted[quantity], came[quantity]
        kept = np.isfinite(said) & np.isfinite(true)
        if kept.sum() < 2:
            continue
        both = kept & fed
        cell_true, cell_said = _by_cell(rows, quantity, true, said, kept)
        fed_true, fed_said = _by_cell(rows, quantity, true, said, both)
        answer[quantity] = {
            "requests": int(kept.sum()),
            "r2": r2(true[kept], said[kept]),
            "r2_not_starved": r2(true[both], said[both]),
            "r2_log": r2(np.log(true[kept]), np.log(np.maximum(said[kept], 1e-3))),
            "r2_token_weighted": r2(true[both], said[both], rows.output[both]),
            "median_error": float(np.median(np.abs(said[kept] - true[kept]) / true[kept])),
            "cells": len(cell_true),
            "r2_cells": r2(cell_true, cell_said),
            "r2_cells_not_starved": r2(fed_true, fed_said),
        }
    return answer


def r2(true: Column, said: Column, weight: Column | None = None) -> float:
    """Returns the coefficient of determination; NaN if the true values do not vary."""
    weight = np.ones(len(true)) if weight is None else weight
    if not len(true):
        return float("nan")
    spread = float(np.sum(weight * (true - np.average(true, weights=weight)) ** 2))
    return float(1.0 - np.sum(weight * (true - said) ** 2) / spread) if spread > 0 else float("nan")


def engine_means(rows: Rows) -> Predictor:
    """Baseline: the mean of each quantity over the configuration's requests at the load, or at the nearest measured load (in logarithms).

    A configuration that was never measured gets the mean over all at that load.
    """
    came = actual(rows)
    known: dict[str, dict[float, dict[str, float]]] = {}
    anywhere: dict[float, dict[str, float]] = {}
    for load in np.unique(rows.users):
        anywhere[float(load)] = {name: float(np.nanmean(values[rows.users == load])) for name, values in came.items()}
    configurations = rows.configurations()
    for _, index in groups(rows.cells()):
        at = int(index[0])
        mean = {name: _mean(values[index]) for name, values in came.items()}
        known.setdefault(str(configurations[at]), {})[float(rows.users[at])] = mean

    def predict(asked: Rows) -> Predictions:
        answer = {name: np.full(len(asked), np.nan) for name in QUANTITIES}
        names = asked.configurations()
        for _, index in groups(asked.cells()):
            at = int(index[0])
            loads = known.get(str(names[at]), anywhere)
            users = float(asked.users[at])
            nearest = min(loads, key=lambda load: abs(np.log(load / users)))
            for name in QUANTITIES:
                answer[name][index] = loads[nearest][name]
        return answer

    return predict


def linear_regression(rows: Rows) -> Predictor:
    """Baseline: ordinary least squares on lengths, load, data-sheet times, and GPU and model as indicators."""
    gpus, models = np.unique(rows.gpu), np.unique(rows.model)

    def design(part: Rows) -> Column:
        setups = setups_of(part)
        columns = [
            np.ones(len(part)),
            part.users,
            part.prompt,
            part.output,
            1.0 / part.output,
            part.users / part.output,
            part.n_gpus,
            np.array([one.read_ms for one in setups]),
            part.users * np.array([one.token_ms for one in setups]),
            *(1.0 * (part.gpu == name) for name in gpus[1:]),
            *(1.0 * (part.model == name) for name in models[1:]),
        ]
        return np.column_stack(columns)

    left = design(rows)
    weights = {}
    for name, values in actual(rows).items():
        kept = np.isfinite(values)
        weights[name] = np.linalg.lstsq(left[kept], values[kept], rcond=None)[0]
    return lambda asked: {name: design(asked) @ weight for name, weight in weights.items()}


def formula_alone(rows: Rows) -> Predictor:
    """Baseline: the analytic formula, its coefficients fitted to the measured cells, without curves and trees."""
    formula = fit_formula(cells_of(rows), curves=False)

    def predict(asked: Rows) -> Predictions:
        base = bases(formula, asked, setups_of(asked))
        return {
            "decode_ms_per_token": base["itl"],
            "throughput_tokens_per_s": 1e3 / base["per_token"],
            "latency_ms_per_token": base["per_token"],
            "prefill_ms": base["ttft"],
        }

    return predict


BASELINES: Mapping[str, Trainer] = MappingProxyType(
    {"engine means": engine_means, "linear regression": linear_regression, "analytic formula": formula_alone}
)


def _keys(rows: Rows, split: str, seed: int) -> NDArray[Any]:
    if split == "load":
        return rows.users.astype(int)
    if split == "gpu":
        return rows.gpu
    return np.random.default_rng(seed).integers(0, FOLDS, len(rows))


def _by_cell(rows: Rows, quantity: str, true: Column, said: Column, kept: NDArray[np.bool_]) -> tuple[Column, Column]:
    """Returns means over each cell; throughput is that of all its users together, which follows from latencies."""
    index = np.flatnonzero(kept)
    part = rows.take(index)
    pairs = []
    for _, inside in groups(part.cells()):
        at = index[inside]
        if quantity == "throughput_tokens_per_s":
            made = rows.users[at[0]] * rows.output[at].sum()
            pairs.append(tuple(made / (rows.output[at] / np.maximum(rate[at], 1e-3)).sum() for rate in (true, said)))
        else:
            pairs.append((true[at].mean(), said[at].mean()))
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _short(rows: Rows, model: ProfileModel, chosen: NDArray[np.bool_]) -> dict[str, float]:
    part = rows.take(np.flatnonzero(chosen))
    found = scores(part, quantities(model.predict(part)))
    return {quantity: found[quantity]["r2_not_starved"] for quantity in found}


def _mean(values: Column) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else float("nan")


def finite(value: Any) -> Any:
    """The value with NaN, which JSON does not have, replaced by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
