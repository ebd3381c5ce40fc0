"""Calibrates a model on its validation rows and evaluates it on its test rows. Pure: scores in, figures out."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lm.answers import reading_of, softened
from hmas.agents.perception.lm.bins import bin_of
from hmas.agents.perception.lm.calibration import fitted_temperature
from hmas.agents.perception.lm.details import LmDetails
from hmas.agents.perception.lm.evaluation import length_figures, task_figures
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.data import Row

Score = Callable[[Sequence[PromptView]], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Logits of labels and of length bins for some prompts: `Scorer.score`."""


def calibrated(score: Score, rows: Sequence[Row], details: LmDetails) -> LmDetails:
    """Returns the details with the best temperatures on the validation rows."""
    labels, lengths = score([row.view() for row in rows])
    known = [index for index, row in enumerate(rows) if row.output_tokens]
    bins = np.array([bin_of(rows[index].output_tokens) for index in known], dtype=np.int64)
    return msgspec.structs.replace(
        details,
        task_temperature=fitted_temperature(labels, np.array([row.label for row in rows])),
        length_temperature=fitted_temperature(lengths[known], bins),
    )


def judged(score: Score, rows: Sequence[Row], trained_on: Sequence[Row], details: LmDetails) -> dict[str, Any]:
    """Returns figures by name: `task`, and `length` if the test and the training rows both contain real answers' lengths."""
    if not rows:
        return {}
    labels, lengths = score([row.view() for row in rows])
    truth = np.array([row.label for row in rows])
    figures = {"task": task_figures(softened(labels, details.task_temperature), truth, [row.label for row in trained_on])}
    known = [index for index, row in enumerate(rows) if row.output_tokens]
    lengths_trained = [row.output_tokens for row in trained_on if row.output_tokens]
    if known and lengths_trained:
        told = [
            reading_of(labels[i], lengths[i], task_temperature=details.task_temperature, length_temperature=details.length_temperature)
            for i in known
        ]
        quantiles = np.array([reading.log_lengths for reading in told])
        figures["length"] = length_figures(quantiles, np.array([float(rows[index].output_tokens) for index in known]), lengths_trained)
    return figures
