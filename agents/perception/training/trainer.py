"""From files of typed prompts to a model folder: the shipped kind of perception model, trained anew. Needs torch and onnx."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hmas.agents.model_store.card import ModelCard, file_sha256
from hmas.agents.perception.training.data import GENERATED, PERMISSIVE, Row, read_rows
from hmas.agents.perception.training.export import write_model
from hmas.agents.perception.training.feeding import Settings
from hmas.agents.perception.training.fitting import Fitted, Say, by_task, fit
from hmas.agents.perception.training.metrics import report, summary
from hmas.agents.perception.training.split import Parts, parts_of
from hmas.controller.core.errors import ModelError
from hmas.controller.runtime.clock import Clock

LICENCE = "Apache-2.0; trained on data under MIT, Apache-2.0, CC-BY and CC-BY-SA, attributed in details.trained_on"
LEAST_ROWS = 50
"""Fewer rows leave no validation part worth its name."""


def fit_parts(parts: Parts, own: Sequence[Row], settings: Settings, say: Say) -> Fitted:
    """Trains on collected and on generated rows.

    Raises:
        ModelError: Hardly any row may be trained on.
    """
    if len(parts.train) < LEAST_ROWS:
        raise ModelError(
            f"{len(parts.train)} prompts under a licence for training; at least {LEAST_ROWS} are needed. Rows need a `license` that begins "
            f"with {', '.join(PERMISSIVE)}"
        )
    say(f"training on {len(parts.train)} collected and {len(own)} generated prompts, validating on {len(parts.validation)}")
    return fit(parts.train, own, parts.validation, settings, say)


def train(paths: Sequence[Path], folder: Path, settings: Settings, clock: Clock, *, say: Say, command: str) -> ModelCard:
    """Trains, evaluates on the test part, writes the model folder, and returns its card.

    Args:
        paths: Files of typed prompts. Rows whose source is `generated` are mixed into the training alone.
        folder: Where the model goes.
        settings: See there.
        clock: When it was trained, and how long it took.
        say: Takes one line of text on the progress.
        command: What the card names as the way to get this model again.
    """
    started_s = clock.now_s()
    rows = read_rows(paths)
    own = [row for row in rows if row.source == GENERATED]
    parts = parts_of([row for row in rows if row.source != GENERATED])
    fitted = fit_parts(parts, own, settings, say)
    card = ModelCard(
        kind="perception",
        created_s=started_s,
        data_sha256={path.name: file_sha256(path) for path in paths},
        command=command,
        licence=LICENCE,
        metrics={
            "test": summary(evaluate_fitted(fitted, parts.test)),
            "test_of_trained_sources": summary(evaluate_fitted(fitted, [row for row in parts.test if row.licence is not None])),
            "test_features_only": summary(evaluate_fitted(fitted, parts.test, features_only=True)),
        },
        details={
            "settings": msgspec.to_builtins(settings),
            "rows": {name: by_task(getattr(parts, name)) for name in ("train", "validation", "test")} | {GENERATED: by_task(own)},
            "trained_on": dict(sorted(Counter(f"{row.source}: {row.licence}" for row in parts.train).items())),
            "training_s": round(clock.now_s() - started_s),
        },
    )
    return write_model(fitted, folder, card)


def evaluate_fitted(fitted: Fitted, rows: Sequence[Row], *, features_only: bool = False) -> dict[str, Any]:
    """The report of a fitted network on rows."""
    logits, _ = fitted.logits([row.view(features_only=features_only) for row in rows])
    scaled = logits / fitted.temperature
    exponents = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return report(exponents / exponents.sum(axis=1, keepdims=True), np.array([row.label for row in rows]), [row.source for row in rows])
