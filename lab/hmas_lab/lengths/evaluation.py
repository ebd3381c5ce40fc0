"""Judges output-length forecasts on real outputs of many models, beside plain baselines on the same rows in the same order. Pure.

Three regimes:

- `cold`: nothing is learnt; what is shipped must do. Baselines that need traffic say one thing about everything.
- `new prompts`: rows arrive shuffled and teach, but a forecast is only ever judged on prompts of which no answer was seen, by any model:
  the prompts fall into folds, and each fold is judged while the others teach.
- `as it comes`: every row is foretold, then learnt. Prompts come back with other models, as they do in evaluations, retries and
  templated traffic; what is learnt of a prompt counts.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lengths.base import LengthBase, Told
from hmas.agents.perception.lengths.model import Forecast, LengthModel
from hmas.agents.perception.reading import PromptView, Reading
from hmas.agents.perception.training.answers import LengthRow, view_of
from hmas.agents.perception.training.evaluation import TENANT
from hmas.agents.perception.training.metrics import Score, score
from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.types import TaskType
from hmas_lab.lengths.baselines import Baseline, ModelMean, MovingHistogram, RulesAndStatistics
from hmas_lab.lengths.predictability import account
from hmas_lab.lengths.tfidf import TfIdfRidge
from hmas_lab.training.answers import group_of

Floats = NDArray[np.float64]

PAPER_MAPE = 0.124
"""Of H-MAS Table 5, on data that the paper does not describe."""
LEAST_ROWS = 50
"""Rows below which a group is not judged on its own."""
REGIMES = ("cold", "new prompts", "as it comes")
FOLDS = 3
WINDOWS = (0, 50, 100, 200, 500, 1000)
"""Answers learnt, between which it is told how far a model has settled that began with nothing."""
ORDERS = 40
"""Random orders over which this is taken: fifty answers of one order tell coverage to within seven points only."""
OURS = "length model"


class Perceived(msgspec.Struct, frozen=True):
    """What perception makes of a prompt: its view, the reading, and the task type that everyone is told."""

    view: PromptView
    reading: Reading
    task: TaskType


class RememberingBase(LengthBase):
    """Works out each prompt once: here every prompt comes back hundreds of times, and only the learning differs."""

    def __init__(self, base: LengthBase) -> None:
        vars(self).update(vars(base))
        self._told: dict[tuple[str, int], Told] = {}

    def tell_of(self, view: PromptView) -> Told:
        """As `LengthBase.tell_of`."""
        key = view.excerpt, view.prompt_chars
        if key not in self._told:
            self._told[key] = super().tell_of(view)
        return self._told[key]


class Learner:
    """The length model as a `Baseline`.

    Args:
        readings: What perception makes of each prompt.
        base: As in `LengthModel`.
    """

    def __init__(self, readings: Mapping[str, Perceived], base: LengthBase | None) -> None:
        self._readings = readings
        self._model = LengthModel(base)
        self._last: tuple[LengthRow, Forecast] | None = None

    def tell(self, row: LengthRow, view: PromptView, task: TaskType) -> Floats:
        """As `Baseline.tell`."""
        forecast = self._model.forecast(view, self._readings[row.prompt].reading, task=task, tenant=TENANT, model=row.model)
        self._last = row, forecast
        return np.array(forecast.log_quantiles)

    def learn(self, row: LengthRow, view: PromptView, task: TaskType) -> None:
        """As `Baseline.learn`."""
        if self._last is None or self._last[0] is not row:
            self.tell(row, view, task)
        if self._last is not None:
            self._model.learn(self._last[1], row.tokens)


def contenders(
    readings: Mapping[str, Perceived], base: LengthBase | None, trained: Sequence[LengthRow] = ()
) -> dict[str, Callable[[], Baseline]]:
    """Ours and the baselines, each made anew for every run.

    Args:
        readings: What perception makes of each prompt.
        base: As in `LengthModel`.
        trained: Rows that the text regressions begin with, as ours begins with what it was trained on; they are judged without these, too.
    """
    once = RememberingBase(base) if base is not None else None
    made: dict[str, Callable[[], Baseline]] = {
        OURS: lambda: Learner(readings, once),
        "rules and statistics": RulesAndStatistics,
        "moving histogram by prompt length (AIBrix)": MovingHistogram,
        "model's mean": ModelMean,
        "TF-IDF and ridge": lambda: TfIdfRidge(models=False),
        "TF-IDF, ridge and model's mean": lambda: TfIdfRidge(models=True),
    }
    if trained:
        made["TF-IDF and ridge, trained before"] = TfIdfRidge(models=False, trained=trained).fresh
        made["TF-IDF, ridge and model's mean, trained before"] = TfIdfRidge(models=True, trained=trained).fresh
    return made


def foretell(
    rows: Sequence[LengthRow],
    readings: Mapping[str, Perceived],
    make: Callable[[], Baseline],
    regime: str,
    *,
    seed: int,
    folds: int = FOLDS,
) -> Floats:
    """Stated log quantiles of every row, shape (rows, levels), in the rows' order."""
    order = np.random.default_rng(seed).permutation(len(rows))
    stated: Floats = np.zeros((len(rows), len(LEVELS)))
    fold_of = [zlib.crc32(row.prompt.encode()) % folds for row in rows]
    for fold in range(folds if regime == "new prompts" else 1):
        contender = make()
        for place in order:
            row = rows[place]
            seen = readings[row.prompt]
            teaches = regime == "as it comes" or (regime == "new prompts" and fold_of[place] != fold)
            if regime != "new prompts" or not teaches:
                stated[place] = contender.tell(row, seen.view, seen.task)
            if teaches:
                contender.learn(row, seen.view, seen.task)
    return stated


def settling(rows: Sequence[LengthRow], readings: Mapping[str, Perceived], base: LengthBase | None, *, seed: int) -> dict[str, Score]:
    """How good the length model is after so many answers (`WINDOWS`) of such traffic, each foretold and then learnt.

    Args:
        rows: Answers of models to prompts.
        readings: From `perceived`.
        base: As in `LengthModel`.
        seed: Of the orders of arrival.
    """
    once = RememberingBase(base) if base is not None else None
    stated: dict[str, list[Floats]] = {}
    came: dict[str, list[float]] = {}
    for order in range(ORDERS):
        learner = Learner(readings, once)
        places = np.random.default_rng([seed, order]).permutation(len(rows))[: WINDOWS[-1]]
        for answers, place in enumerate(places):
            row = rows[place]
            seen = readings[row.prompt]
            begin, end = next((begin, end) for begin, end in pairwise(WINDOWS) if answers < end)
            stated.setdefault(f"{begin} to {end}", []).append(learner.tell(row, seen.view, seen.task))
            came.setdefault(f"{begin} to {end}", []).append(math.log(row.tokens))
            learner.learn(row, seen.view, seen.task)
    return {name: score(np.array(told), np.array(came[name])) for name, told in stated.items()}


def perceived(
    rows: Sequence[LengthRow], read: Callable[[Sequence[PromptView]], Sequence[tuple[Reading, TaskType]]]
) -> dict[str, Perceived]:
    """What perception makes of every distinct prompt.

    Args:
        rows: The rows.
        read: The reader, with the task type that its reading leads to.
    """
    views = {row.prompt: view_of(row) for row in rows}
    found = read(list(views.values()))
    return {prompt: Perceived(view, reading, task) for (prompt, view), (reading, task) in zip(views.items(), found, strict=True)}


def evaluate(
    rows: Sequence[LengthRow],
    readings: Mapping[str, Perceived],
    *,
    base: LengthBase | None,
    regimes: Sequence[str] = REGIMES,
    baselines: bool = True,
    trained: Sequence[LengthRow] = (),
    seed: int = 1,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Judges everything; the same from the same rows and seed.

    Args:
        rows: Answers of models to prompts.
        readings: From `perceived`.
        base: As in `LengthModel`.
        regimes: Which of `REGIMES`.
        baselines: Whether the baselines are judged too.
        trained: As in `contenders`.
        seed: Of the order of arrival.
        report: Told of every step.

    Returns:
        A JSON-ready account: `regimes` by name and contender, each `overall` and `by_collection`; ours also `by_dataset` and `by_task`;
        `settling` by answers learnt; `predictability` of everything and by collection; the levels; the rows that baselines began with; and
        the paper's MAPE.
    """
    lengths = np.log(np.array([row.tokens for row in rows], np.float64))
    collections = np.array([group_of(row.dataset) for row in rows])
    datasets = np.array([row.dataset for row in rows])
    tasks = np.array([str(readings[row.prompt].task.value if row.task is TaskType.UNKNOWN else row.task.value) for row in rows])
    result: dict[str, Any] = {}
    makers = contenders(readings, base, trained if baselines else ())
    for regime in regimes:
        result[regime] = {}
        for name, make in makers.items():
            if name != OURS and not baselines:
                continue
            stated = foretell(rows, readings, make, regime, seed=seed)
            entry: dict[str, Any] = {
                "overall": score(stated, lengths),
                "by_collection": by_group(stated, lengths, collections),
            }
            if name == OURS:
                entry["by_dataset"] = by_group(stated, lengths, datasets)
                entry["by_task"] = by_group(stated, lengths, tasks)
            result[regime][name] = entry
            report(f"{regime}, {name}: {line_of(entry['overall'])}")
    everything = account(rows)
    parts = {
        name: account([row for row, collection in zip(rows, collections, strict=True) if collection == name])
        for name in sorted(set(collections.tolist()))
    }
    document = {
        "rows": len(rows),
        "trained_rows": len(trained),
        "levels": LEVELS,
        "paper_mape": PAPER_MAPE,
        "regimes": result,
        "settling": settling(rows, readings, base, seed=seed),
        "predictability": {"everything": everything, "by_collection": {name: part for name, part in parts.items() if part is not None}},
    }
    built: dict[str, Any] = msgspec.to_builtins(document)
    return built


def line_of(figures: Any) -> str:
    """A score in one line."""
    covered = " ".join(f"{100 * share:.1f}" for share in figures.coverage)
    return (
        f"tau {figures.kendall_tau:.3f}, MAE {figures.mae_tokens:.0f} tokens, median APE {100 * figures.median_ape:.0f} %, "
        f"MAPE {100 * figures.mape:.0f} %, pinball {figures.pinball:.4f}, coverage {covered}"
    )


def by_group(quantiles: Floats, lengths: Floats, groups: NDArray[Any]) -> dict[str, Score]:
    """Scores of each group with `LEAST_ROWS` rows or more, largest first."""
    names, counts = np.unique(groups, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    kept = [names[place] for place in order if counts[place] >= LEAST_ROWS]
    return {str(name): score(quantiles[groups == name], lengths[groups == name]) for name in kept}
