"""Predicts a request's times on hardware known by its data sheet: a fitted formula, corrected by measurements, then by CatBoost.

Three layers, each a correction of the one before, in logarithms:

1. formula: times that follow from data sheets (`hardware.Setup`), with coefficients of at least 0 fitted to measured configurations;
2. curve: where the configuration itself was measured, its deviation from the formula, monotone cubic in log(users) between loads;
3. CatBoost: the request (lengths, arrival time), the cell, and the latest telemetry, if it is known.

If the configuration was never measured, or only at lower or only at higher loads, telemetry moves the formula to its own level as soon as
there is any. For a configuration that was never measured the trees do not see which it is: formula errors of a handful of GPUs would teach
them nothing that holds for another.

The trees learn each row three times: with its cell known, with its load left out of the curve, and as if its configuration were new. Some
rows have no telemetry, so that the trees also answer without it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator  # type: ignore[import-untyped]  # it ships no types
from scipy.optimize import nnls  # type: ignore[import-untyped]  # as above

from hmas.agents.model_store.ranges import RangeCounter, ranges_of
from hmas.agents.prediction.hardware import Setup, setup_of
from hmas.agents.prediction.prior import Formula, terms
from hmas_lab.llm_pilot.rows import Rows, groups
from hmas_lab.llm_pilot.state import OF_ITL, OF_TTFT, STATE, Column

Target = Literal["ttft", "itl", "per_token"]
Regime = Literal["known", "new"]
REGIMES: tuple[Regime, ...] = ("known", "new")
TARGETS: tuple[Target, ...] = ("ttft", "itl", "per_token")
"""Time to first token after the stream opened, mean time between tokens, latency per output token; milliseconds."""

NUMERIC = (
    "log_users",
    "log_prompt",
    "log_output",
    "log_start",
    "log_read",
    "log_token",
    "log_pressure",
    "exchange",
    "split",
    "known",
    "log_base_ttft",
    "log_base_itl",
    "log_prompt_share",
)
_TELLING = ("log_read", "log_token", "exchange", "log_base_ttft", "log_base_itl")
"""Columns that identify a configuration."""
COLUMNS = (*NUMERIC, *STATE)
CATEGORIES = ("gpu", "model")
UNKNOWN = "unknown"
CONTEXT_TOKENS = 136.0
"""Mean tokens of a request in LLM-Pilot's workload: a user's share of the KV cache."""
PARAMETERS: Mapping[str, Any] = MappingProxyType(
    {
        "loss_function": "RMSE",
        "learning_rate": 0.08,
        "l2_leaf_reg": 10,
        "border_count": 64,
        "one_hot_max_size": 16,
        "max_ctr_complexity": 1,
        "thread_count": 1,
        "verbose": 0,
        "allow_writing_files": False,
    }
)
SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {"known": MappingProxyType({"iterations": 300, "depth": 6}), "new": MappingProxyType({"iterations": 100, "depth": 5})}
)
"""Sizes of the trees for measured configurations and for new ones, of which there is less to learn."""
WEIGHT = 0.5
"""Exponent of the base in a row's weight: logarithms favour small requests, milliseconds large ones."""
LOAD_NEW = 0.5
"""Value of the column `known` if the configuration was measured, but not at this load."""
WITHHELD = 0.4
"""Share of the rows learnt without telemetry."""
MOVED_AFTER = 1.0
"""Requests after which telemetry has moved the formula half of the way: the first answers to end are short, and from a run's start."""
MOVED_LIMIT = 2.0
"""Telemetry moves the formula by a factor of e^2 at most."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Geometric means of the measurements, one entry per cell."""

    configuration: NDArray[np.str_]
    gpu: NDArray[np.str_]
    users: Column
    setups: tuple[Setup, ...]
    measured: Mapping[str, Column]


class ProfileModel:
    """The fitted model.

    Args:
        formula: Layers 1 and 2.
        trees: CatBoost models by target, for `known` and for `new` configurations.
        ranges: Clips `COLUMNS` to their training ranges and counts values outside; None if the ranges are not known.
    """

    def __init__(self, formula: Formula, trees: Mapping[tuple[Regime, Target], Any], ranges: RangeCounter | None = None) -> None:
        self.formula = formula
        self.trees = dict(trees)
        self.ranges = ranges

    def known(self, rows: Rows) -> Column:
        """Returns 1 if the cell was measured, `LOAD_NEW` if its configuration was measured only at other loads, else 0."""
        return _known(self.formula, rows)

    def predict(self, rows: Rows, *, live: bool = True) -> dict[Target, Column]:
        """Returns each target for each row in milliseconds; with `live` False, without telemetry.

        Raises:
            ModelError: A GPU or model is unknown.
        """
        setups = setups_of(rows)
        known = self.known(rows)
        base = bases(self.formula, rows, setups)
        if live:
            moved = _moved(base, rows)
            base = {name: np.where(_beyond(self.formula, rows), moved[name], base[name]) for name in base}
        numbers, names = _columns(rows, setups, base, known, heard=np.full(len(rows), live))
        if self.ranges is not None:
            self.ranges.count(numbers[:, None])
            numbers = self.ranges.within(numbers)
        answer: dict[Target, Column] = {target: np.empty(len(rows)) for target in TARGETS}
        for regime, chosen in (("known", np.flatnonzero(known > 0.0)), ("new", np.flatnonzero(known == 0.0))):
            if not len(chosen):
                continue
            pool = _as_pool(numbers[chosen], names[chosen])
            for target in TARGETS:
                said = np.asarray(self.trees[regime, target].predict(pool, thread_count=1), dtype=np.float64)
                answer[target][chosen] = base[target][chosen] * np.exp(said)
        return answer


def fit(rows: Rows, *, seed: int = 1, per_cell: int = 0) -> ProfileModel:
    """Fits all layers.

    Args:
        rows: Measured requests.
        seed: Seed of everything random.
        per_cell: Most rows of a cell that the trees see; 0 for all.
    """
    # Imported here: the library is larger than the rest of the process, and importing this module must not load it.
    import catboost  # noqa: PLC0415

    formula = fit_formula(cells_of(rows))
    if per_cell:
        rows = rows.take(_thinned(rows, per_cell, seed))
    setups = setups_of(rows)
    heard = np.random.default_rng(seed).random(len(rows)) > WITHHELD
    own = bases(formula, rows, setups)
    measured = [(own, np.ones(len(rows)))]
    if len(np.unique(rows.users)) > 1:
        left = _without(rows, setups, by="load")
        told = _moved(left, rows)
        beyond = heard & _at_ends(rows)
        measured.append(({name: np.where(beyond, told[name], values) for name, values in left.items()}, np.full(len(rows), LOAD_NEW)))
    # Without telemetry nothing is known of the formula's error on other hardware: such rows teach only how requests differ.
    elsewhere = _moved(_without(rows, setups, by="gpu"), rows)
    foreign = [({name: np.where(heard, elsewhere[name], values) for name, values in own.items()}, np.zeros(len(rows)))]
    trees: dict[tuple[Regime, Target], Any] = {}
    seen: list[NDArray[np.float32]] = []
    copies: tuple[tuple[Regime, list[tuple[dict[str, Column], Column]]], ...] = (("known", measured), ("new", foreign))
    for regime, bases_of in copies:
        parts = [_columns(rows, setups, base, known, heard=heard) for base, known in bases_of]
        seen += [number for number, _ in parts]
        for target in TARGETS:
            actual = {"ttft": rows.ttft_ms, "itl": rows.itl_ms, "per_token": rows.per_token_ms}[target]
            kept = np.flatnonzero(~np.isnan(actual))
            base = np.concatenate([one[target][kept] for one, _ in bases_of])
            pool = _as_pool(
                np.concatenate([number[kept] for number, _ in parts]),
                np.concatenate([name[kept] for _, name in parts]),
                np.log(np.tile(actual[kept], len(parts)) / base),
                (base / base.mean()) ** WEIGHT,
            )
            trees[regime, target] = catboost.CatBoost({**PARAMETERS, **SIZES[regime], "random_seed": seed})
            trees[regime, target].fit(pool)
    return ProfileModel(formula, trees, RangeCounter(ranges_of(COLUMNS, np.concatenate(seen).tolist())))


def setups_of(rows: Rows) -> tuple[Setup, ...]:
    """Returns the setup of each row.

    Raises:
        ModelError: A GPU or model is unknown.
    """
    found: dict[tuple[str, int, str], Setup] = {}
    answer = []
    for key in zip(rows.gpu.tolist(), rows.n_gpus.astype(int).tolist(), rows.model.tolist(), strict=True):
        if key not in found:
            found[key] = setup_of(*key)
        answer.append(found[key])
    return tuple(answer)


def cells_of(rows: Rows) -> Cells:
    """Returns the cells of the rows; a cell without a request of two tokens has no `itl` and is left out."""
    names, gpus, users, chosen = [], [], [], []
    measured: dict[str, list[float]] = {"ttft": [], "itl": []}
    configurations = rows.configurations()
    for _, index in groups(rows.cells()):
        itl = rows.itl_ms[index]
        if np.isnan(itl).all():
            continue
        at = int(index[0])
        chosen.append(at)
        names.append(str(configurations[at]))
        gpus.append(str(rows.gpu[at]))
        users.append(float(rows.users[at]))
        measured["ttft"].append(float(np.exp(np.mean(np.log(rows.ttft_ms[index])))))
        measured["itl"].append(float(np.exp(np.nanmean(np.log(itl)))))
    setups = setups_of(rows.take(np.array(chosen, dtype=np.int64)))
    return Cells(np.array(names), np.array(gpus), np.array(users), setups, {name: np.array(values) for name, values in measured.items()})


def fit_formula(cells: Cells, *, curves: bool = True) -> Formula:
    """Fits layer 1 by least squares of relative errors with coefficients of 0 or more, then layer 2 to the residuals."""
    made_of = terms(cells.setups, cells.users)
    coefficients: dict[str, list[float]] = {}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for target, measured in cells.measured.items():
        solved, _ = nnls(made_of / measured[:, None], np.ones(len(measured)))
        # Six digits, so that the stored coefficients are those of the training.
        coefficients[target] = [_short(value) for value in solved]
        left = np.log(measured / np.maximum(made_of @ np.array(coefficients[target]), 1e-3))
        found[target] = {}
        if curves:
            for name, index in groups(cells.configuration):
                ordered = index[np.argsort(cells.users[index])]
                found[target][name] = [(_short(math.log(cells.users[at])), _short(left[at])) for at in ordered]
    return Formula(coefficients, found)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def bases(formula: Formula, rows: Rows, setups: Sequence[Setup]) -> dict[str, Column]:
    """Returns the results of layers 1 and 2 for each row in milliseconds."""
    made_of = terms(setups, rows.users)
    configurations = rows.configurations()
    answer: dict[str, Column] = {}
    for target in ("ttft", "itl"):
        log = np.log(np.maximum(made_of @ np.array(formula.coefficients[target]), 1e-3))
        for name, index in groups(configurations):
            curve = formula.curves[target].get(name)
            if curve:
                log[index] += _along(curve, np.log(rows.users[index]))
        answer[target] = np.exp(log)
    return _with_per_token(answer, rows)


def _with_per_token(answer: dict[str, Column], rows: Rows) -> dict[str, Column]:
    answer["per_token"] = (answer["ttft"] + answer["itl"] * (rows.output - 1.0)) / rows.output
    return answer


def _moved(base: Mapping[str, Column], rows: Rows) -> dict[str, Column]:
    """Moves the bases to telemetry's level, further with more data; if telemetry covers only one of the two times, both move by it."""
    levels = {}
    for name, count in (("ttft", "told"), ("itl", "decoded")):
        heard = np.expm1(rows.state[:, STATE.index(count)])
        levels[name] = (rows.state[:, STATE.index(f"recent_{name}")] - np.log(base[name])) * heard / (heard + MOVED_AFTER)
    moved = {}
    for name, other in (("ttft", "itl"), ("itl", "ttft")):
        level = np.where(np.isnan(levels[name]), levels[other], levels[name])
        moved[name] = base[name] * np.exp(np.nan_to_num(np.clip(level, -MOVED_LIMIT, MOVED_LIMIT)))
    return _with_per_token(moved, rows)


def _known(formula: Formula, rows: Rows) -> Column:
    """Returns 1 if the cell was measured, `LOAD_NEW` if only its configuration was, else 0."""
    known = np.zeros(len(rows))
    configurations = rows.configurations()
    for _, index in groups(rows.cells()):
        curve = formula.curves["itl"].get(str(configurations[index[0]]))
        if curve:
            load = math.log(rows.users[index[0]])
            known[index] = 1.0 if any(abs(at - load) < 1e-4 for at, _ in curve) else LOAD_NEW
    return known


def _at_ends(rows: Rows) -> NDArray[np.bool_]:
    """Marks rows at the lowest or highest load of their configuration: without it, no load is as low or as high."""
    found = np.zeros(len(rows), dtype=bool)
    for _, index in groups(rows.configurations()):
        loads = rows.users[index]
        found[index] = (loads == loads.min()) | (loads == loads.max())
    return found


def _beyond(formula: Formula, rows: Rows) -> NDArray[np.bool_]:
    """Marks rows where no measured load is as low, or none as high: there the formula extrapolates, and telemetry is better."""
    beyond = np.ones(len(rows), dtype=bool)
    for name, index in groups(rows.configurations()):
        curve = formula.curves["itl"].get(name)
        if curve:
            loads = np.log(rows.users[index])
            beyond[index] = (loads < curve[0][0] - 1e-4) | (loads > curve[-1][0] + 1e-4)
    return beyond


def _along(curve: Sequence[tuple[float, float]], at: Column) -> Column:
    """Returns the curve at loads between the measured ones; beyond them it is flat, and only the formula determines how times grow."""
    if len(curve) == 1:
        return np.full(len(at), curve[0][1])
    loads = np.array([load for load, _ in curve])
    return np.asarray(PchipInterpolator(loads, [left for _, left in curve])(np.clip(at, loads[0], loads[-1])), dtype=np.float64)


def _without(rows: Rows, setups: Sequence[Setup], *, by: Literal["load", "gpu"]) -> dict[str, Column]:
    """Returns the bases of each row as if its own load, or its own GPU, had never been measured."""
    cells = cells_of(rows)
    answer: dict[str, Column] = {name: np.full(len(rows), math.nan) for name in TARGETS}
    keys = rows.users.astype(int).astype(str) if by == "load" else rows.gpu
    of_cells = cells.users.astype(int).astype(str) if by == "load" else cells.gpu
    for value in np.unique(keys):
        kept = np.flatnonzero(of_cells != value)
        left = Cells(
            cells.configuration[kept],
            cells.gpu[kept],
            cells.users[kept],
            tuple(cells.setups[int(at)] for at in kept),
            {name: measured[kept] for name, measured in cells.measured.items()},
        )
        if not len(kept):
            left = cells
        chosen = np.flatnonzero(keys == value)
        said = bases(fit_formula(left), rows.take(chosen), [setups[int(at)] for at in chosen])
        for name, values in said.items():
            answer[name][chosen] = values
    return answer


def _columns(
    rows: Rows, setups: Sequence[Setup], base: Mapping[str, Column], known: Column, *, heard: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.object_]]:
    pressure = [users * CONTEXT_TOKENS / max(1.0, one.room_tokens) for users, one in zip(rows.users, setups, strict=True)]
    columns = [
        np.log(rows.users),
        np.log(rows.prompt),
        np.log(rows.output),
        np.log1p(rows.start_ms),
        np.log([one.read_ms for one in setups]),
        np.log([one.token_ms for one in setups]),
        np.log(pressure),
        np.array([one.exchange_ms for one in setups]),
        np.array([float(one.split) for one in setups]),
        known,
        np.log(base["ttft"]),
        np.log(base["itl"]),
        np.log(rows.prompt * np.array([one.token_ms for one in setups]) / base["ttft"]),
    ]
    new = known == 0.0
    for name in _TELLING:
        columns[NUMERIC.index(name)] = np.where(new, math.nan, columns[NUMERIC.index(name)])
    state = rows.state.copy()
    # Relative to the formula, so that the trees see what telemetry adds to it.
    for target, heard_of in (("ttft", OF_TTFT), ("itl", OF_ITL)):
        state[:, [STATE.index(name) for name in heard_of]] -= np.log(base[target])[:, None]
    state[~heard] = math.nan
    columns += list(state.T)
    names = np.empty((len(rows), len(CATEGORIES)), dtype=object)
    for column, values in enumerate((rows.gpu, rows.model)):
        names[:, column] = np.where(new, UNKNOWN.encode(), np.char.encode(values, "utf-8"))
    return np.column_stack(columns).astype(np.float32), names


def _as_pool(numbers: NDArray[np.float32], names: NDArray[np.object_], labels: Column | None = None, weights: Column | None = None) -> Any:
    import catboost  # noqa: PLC0415

    features = catboost.FeaturesData(
        num_feature_data=np.ascontiguousarray(numbers),
        num_feature_names=list(COLUMNS),
        cat_feature_data=names,
        cat_feature_names=list(CATEGORIES),
    )
    return catboost.Pool(features, labels, weight=weights)


def _thinned(rows: Rows, per_cell: int, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    chosen = [index if len(index) <= per_cell else rng.choice(index, per_cell, replace=False) for _, index in groups(rows.cells())]
    return np.sort(np.concatenate(chosen))
