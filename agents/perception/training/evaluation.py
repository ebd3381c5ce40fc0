"""Evaluates readers on labelled prompts and length models on answers: what `hmas eval` reports."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hmas.agents.perception.lengths.base import LengthBase
from hmas.agents.perception.lengths.model import LengthModel
from hmas.agents.perception.model import is_sound
from hmas.agents.perception.reading import TASKS, PromptView, Reader, Reading
from hmas.agents.perception.training.answers import LengthRow, view_of
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.metrics import Numbers, Score, report, score
from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.types import TaskType

BATCH = 256
TENANT = "evaluation"
"""All rows are one tenant's: no forecast may lean on knowing which collection a prompt comes from."""


def evaluate_reader(reader: Reader, rows: Sequence[Row], *, features_only: bool = False) -> dict[str, Any]:
    """The report (`hmas.agents.perception.training.metrics`) of a reader on labelled rows.

    Args:
        reader: Any reader.
        rows: The rows, licensed for training or not.
        features_only: Whether prompts stay in the gateway, so that only sizes and flags are seen.
    """
    found = probabilities_of(reader, [row.view(features_only=features_only) for row in rows])
    return report(found, np.array([row.label for row in rows]), [row.source for row in rows])


def probabilities_of(reader: Reader, views: Sequence[PromptView]) -> Numbers:
    """The reader's probabilities, shape (views, `TASKS`); zeros where it could not read."""
    found: list[tuple[float, ...]] = []
    for start in range(0, len(views), BATCH):
        found += [reading.probabilities or (0.0,) * len(TASKS) for reading in reader.read(views[start : start + BATCH])]
    return np.array(found, dtype=np.float64)


def read_soundly(reader: Reader, views: Sequence[PromptView], least: float) -> list[tuple[Reading, TaskType]]:
    """Readings, empty where they are unsound, each with its task type: `unknown` below the confidence `least`."""
    found: list[tuple[Reading, TaskType]] = []
    for start in range(0, len(views), BATCH):
        for reading in reader.read(views[start : start + BATCH]):
            sound = reading if is_sound(reading) else Reading()
            likeliest = max(sound.probabilities, default=0.0)
            task = TASKS[sound.probabilities.index(likeliest)] if sound.probabilities and likeliest >= least else TaskType.UNKNOWN
            found.append((sound, task))
    return found


def evaluate_lengths(
    reader: Reader, base: LengthBase | None, rows: Sequence[LengthRow], *, least: float, seed: int = 1
) -> dict[str, Score]:
    """Scores the forecasts of output lengths; with less than the `least` confidence a prompt goes without a task type.

    The seed is of the order in which the answers arrive.

    Returns:
        `cold`: nothing is learnt from the rows. `as it comes`: every answer is predicted, then learnt from.
    """
    views = {row.prompt: view_of(row) for row in rows}
    readings = dict(zip(views, read_soundly(reader, list(views.values()), least), strict=True))
    lengths = np.log(np.array([row.tokens for row in rows], np.float64))
    found = {}
    for regime, learns in (("cold", False), ("as it comes", True)):
        model = LengthModel(base)
        stated: Numbers = np.zeros((len(rows), len(LEVELS)))
        for place in np.random.default_rng(seed).permutation(len(rows)):
            row = rows[place]
            reading, task = readings[row.prompt]
            forecast = model.forecast(views[row.prompt], reading, task=task, tenant=TENANT, model=row.model)
            stated[place] = forecast.log_quantiles
            if learns:
                model.learn(forecast, row.tokens)
        found[regime] = score(stated, lengths)
    return found
