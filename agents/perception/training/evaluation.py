"""Judges readers on typed prompts: the shipped model on unseen files, and, where torch and scikit-learn are, splits and baselines.

What `hmas eval perception` and `make eval-agents` report of task types comes from here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmas.agents.perception.reading import TASKS, PromptView, Reader
from hmas.agents.perception.training.data import Row, read_rows
from hmas.agents.perception.training.exchanges import Exchanges
from hmas.agents.perception.training.metrics import Numbers, expected_calibration_error, reliability, report
from hmas.agents.perception.training.parts import parts_of
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.client_bodies import EXCHANGES, Shape

BATCH = 256
SHAPE_ROWS = 1000
UNKNOWN_BELOW = AgentsConfig().perception_min_confidence
"""Confidence below which a request goes without a type, unless configured otherwise."""


def evaluate_reader(reader: Reader, rows: Sequence[Row], *, features_only: bool = False) -> dict[str, Any]:
    """The report (`hmas.agents.perception.training.metrics`) of a reader on labelled rows.

    Args:
        reader: Any reader.
        rows: The rows, licensed for training or not.
        features_only: Whether prompts stay in the gateway, so that only sizes and flags are seen.
    """
    return report(
        _probabilities(reader, rows, features_only=features_only), np.array([row.label for row in rows]), [row.source for row in rows]
    )


def evaluate_shapes(reader: Reader, rows: Sequence[Row], *, most: int = SHAPE_ROWS, seed: int = 1) -> dict[str, dict[str, Any]]:
    """How well a reader tells the tasks of the same rows when clients send them in each shape, by shape.

    System prompts and openers of answers are those that no model was trained on; what was said before are others of the rows.

    Args:
        reader: Any reader.
        rows: Labelled rows.
        most: Rows drawn at random where there are more.
        seed: Of that and of what comes along.

    Returns:
        By shape: `n`, `accuracy` (an unsure answer counts by its likeliest type), `ece`, `unknown` (share whose confidence is below
        `UNKNOWN_BELOW`, which go without a type), `right_if_known`.
    """
    rng = np.random.default_rng(seed)
    chosen = [rows[int(index)] for index in np.sort(rng.permutation(len(rows))[:most])]
    exchanges = Exchanges([row.prompt for row in rows], holdout=True)
    labels = np.array([row.label for row in chosen])
    found = {}
    for shape in Shape:
        views = [row.view(shape, rng=rng, exchanges=exchanges.draw(EXCHANGES.get(shape, 1), rng), holdout=True) for row in chosen]
        probabilities = _read(reader, views)
        confidence, right = probabilities.max(axis=1), (probabilities.argmax(axis=1) == labels) & (probabilities.max(axis=1) > 0)
        known = confidence >= UNKNOWN_BELOW
        found[shape.value] = {
            "n": len(chosen),
            "accuracy": float(right.mean()),
            "ece": expected_calibration_error(reliability(confidence, right)),
            "unknown": float(1.0 - known.mean()),
            "right_if_known": float(right[known].mean()) if known.any() else 0.0,
        }
    return found


def evaluate_files(
    reader: Reader, paths: Sequence[Path], *, features_only: bool = False, shapes: bool = False, held_out: bool = False
) -> dict[str, Any]:
    """The same for files of typed prompts.

    Args:
        reader: Any reader.
        paths: The files.
        features_only: As above.
        shapes: Whether what `evaluate_shapes` finds is to stand under that name.
        held_out: Only the rows that a training on these files leaves out for judging, none of which is a twin of one that it learns from.

    Raises:
        ModelError: A file that cannot be used.
    """
    rows = read_rows(paths)
    if held_out:
        rows = parts_of(rows).test
    found = evaluate_reader(reader, rows, features_only=features_only)
    return {**found, "shapes": evaluate_shapes(reader, rows)} if shapes else found


def _probabilities(reader: Reader, rows: Sequence[Row], *, features_only: bool) -> Numbers:
    return _read(reader, [row.view(features_only=features_only) for row in rows])


def _read(reader: Reader, views: Sequence[PromptView]) -> Numbers:
    found: list[tuple[float, ...]] = []
    for start in range(0, len(views), BATCH):
        found += [reading.probabilities or (0.0,) * len(TASKS) for reading in reader.read(views[start : start + BATCH])]
    return np.array(found, dtype=np.float64)
