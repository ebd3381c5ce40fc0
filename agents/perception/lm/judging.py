"""Calibrates a model on its validation rows and evaluates it on its test rows. Pure: scores in, figures out."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lm.answers import bin_of, reading_of, softened
from hmas.agents.perception.lm.details import LmDetails
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.metrics import report, score, summary, temperature_of
from hmas.controller.core.lengths import LEVELS

Logits = Callable[[Sequence[PromptView]], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Logits of labels and of length bins for some prompts: `Scorer.score`."""


def calibrated(logits: Logits, rows: Sequence[Row], views: Sequence[PromptView], details: LmDetails) -> LmDetails:
    """Returns the details with the best temperatures on the validation rows, as `views` of them were sent."""
    labels, lengths = logits(views)
    known = [index for index, row in enumerate(rows) if row.output_tokens]
    bins = np.array([bin_of(rows[index].output_tokens) for index in known], dtype=np.int64)
    return msgspec.structs.replace(
        details,
        task_temperature=temperature_of(labels, np.array([row.label for row in rows])),
        length_temperature=temperature_of(lengths[known], bins),
    )


def judged(logits: Logits, rows: Sequence[Row], trained_on: Sequence[Row], details: LmDetails) -> dict[str, Any]:
    """Returns figures by name: `task`, and `length` if the test and the training rows both contain real answers' lengths.

    Beside them stand those of guessing: `majority_accuracy` of the most frequent task of the training, and
    `pinball_of_training_quantiles` of its lengths.
    """
    if not rows:
        return {}
    labels, lengths = logits([row.view() for row in rows])
    truth = np.array([row.label for row in rows])
    found = report(softened(labels, details.task_temperature), truth, [row.source for row in rows])
    majority = Counter(row.label for row in trained_on).most_common(1)[0][0]
    figures = {"task": summary(found) | {"majority_accuracy": round(float((truth == majority).mean()), 4)}}
    known = [index for index, row in enumerate(rows) if row.output_tokens]
    lengths_trained = [row.output_tokens for row in trained_on if row.output_tokens]
    if known and lengths_trained:
        told = [
            reading_of(labels[i], lengths[i], task_temperature=details.task_temperature, length_temperature=details.length_temperature)
            for i in known
        ]
        logs = np.log(np.array([float(rows[index].output_tokens) for index in known]))
        prior = np.broadcast_to(np.quantile(np.log(np.asarray(lengths_trained, dtype=float)), LEVELS), (len(known), len(LEVELS)))
        stated = msgspec.to_builtins(score(np.array([reading.log_lengths for reading in told]), logs))
        figures["length"] = stated | {"pinball_of_training_quantiles": score(prior, logs).pinball}
    return figures
