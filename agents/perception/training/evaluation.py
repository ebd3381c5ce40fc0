"""Judges readers on typed prompts: the shipped model on unseen files, and, where torch and scikit-learn are, splits and baselines.

What `hmas eval perception` and `make eval-agents` report of task types comes from here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.perception.reading import TASKS, Reader
from agents.perception.training.data import Row, read_rows
from agents.perception.training.metrics import Numbers, report

BATCH = 256


def evaluate_reader(reader: Reader, rows: Sequence[Row], *, features_only: bool = False) -> dict[str, Any]:
    """The report (`agents.perception.training.metrics`) of a reader on labelled rows.

    Args:
        reader: Any reader.
        rows: The rows, licensed for training or not.
        features_only: Whether prompts stay in the gateway, so that only sizes and flags are seen.
    """
    return report(
        _probabilities(reader, rows, features_only=features_only), np.array([row.label for row in rows]), [row.source for row in rows]
    )


def evaluate_files(reader: Reader, paths: Sequence[Path], *, features_only: bool = False) -> dict[str, Any]:
    """The same for files of typed prompts.

    Raises:
        ModelError: A file that cannot be used.
    """
    return evaluate_reader(reader, read_rows(paths), features_only=features_only)


def _probabilities(reader: Reader, rows: Sequence[Row], *, features_only: bool) -> Numbers:
    found: list[tuple[float, ...]] = []
    for start in range(0, len(rows), BATCH):
        views = [row.view(features_only=features_only) for row in rows[start : start + BATCH]]
        found += [reading.probabilities or (0.0,) * len(TASKS) for reading in reader.read(views)]
    return np.array(found, dtype=np.float64)
