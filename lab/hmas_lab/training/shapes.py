"""How well a reader tells the tasks of the same prompts when clients send them in each shape of request."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hmas.agents.perception.reading import TASKS, Reader
from hmas.agents.perception.training.clients import Exchanges
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.evaluation import probabilities_of
from hmas.agents.perception.training.metrics import expected_calibration_error, reliability
from hmas.controller.core.client_bodies import EXCHANGES, Shape
from hmas.controller.core.types import TaskType
from hmas_lab.training.targets import UNKNOWN_BELOW, errors_of

SHAPE_ROWS = 1000


def evaluate_shapes(reader: Reader, rows: Sequence[Row], *, most: int = SHAPE_ROWS, seed: int = 1) -> dict[str, dict[str, Any]]:
    """Evaluates a reader by shape.

    System prompts and openers of answers are those that no model was trained on; what was said before are others of the rows.

    Args:
        reader: Any reader.
        rows: Labelled rows.
        most: Rows drawn at random where there are more.
        seed: Of that and of what comes along.

    Returns:
        By shape: `n`, `accuracy` (an unsure answer counts by its likeliest type), `ece`, `unknown` (share whose confidence is below
        `UNKNOWN_BELOW`, which go without a type), `right_if_known`, and of the assigned targets `ttft_mae_ms` and `tpot_mae_ms`.
    """
    rng = np.random.default_rng(seed)
    chosen = [rows[int(index)] for index in np.sort(rng.permutation(len(rows))[:most])]
    exchanges = Exchanges([row.prompt for row in rows], holdout=True)
    labels = np.array([row.label for row in chosen])
    found = {}
    for shape in Shape:
        views = [row.view(shape, rng=rng, exchanges=exchanges.draw(EXCHANGES.get(shape, 1), rng), holdout=True) for row in chosen]
        probabilities = probabilities_of(reader, views)
        confidence, right = probabilities.max(axis=1), (probabilities.argmax(axis=1) == labels) & (probabilities.max(axis=1) > 0)
        known = confidence >= UNKNOWN_BELOW
        said = [TASKS[place] if sure else TaskType.UNKNOWN for place, sure in zip(probabilities.argmax(axis=1), known, strict=True)]
        errors = errors_of(chosen, views, said)
        found[shape.value] = {
            "n": len(chosen),
            "accuracy": float(right.mean()),
            "ece": expected_calibration_error(reliability(confidence, right)),
            "unknown": float(1.0 - known.mean()),
            "right_if_known": float(right[known].mean()) if known.any() else 0.0,
            "ttft_mae_ms": errors.ttft_mae_ms,
            "tpot_mae_ms": errors.tpot_mae_ms,
        }
    return found
