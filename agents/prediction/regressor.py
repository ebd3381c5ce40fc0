"""The trained correction: a CatBoost model file and the card beside it, checked against each other before use."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.prediction.features import FEATURES
from controller.core.errors import ModelError

SHIPPED = Path(__file__).parent / "models" / "cost.cbm"
TRAINER = "agents.prediction.train"
FORMAT = 1


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a model file is: `NAME.json` beside `NAME.cbm`.

    Attributes:
        format: Version of this card.
        features: Columns it was trained on, in order.
        model_sha256: Hash of the model file.
        data_sha256: Hash of rows and labels it was trained on.
        command: What makes it again.
        catboost: Version that trained it.
        metrics: Figures on held-out episodes, by name.
    """

    format: int
    features: list[str]
    model_sha256: str
    data_sha256: str
    command: str
    catboost: str
    metrics: dict[str, float]


def card_path(model: Path) -> Path:
    """Where the card of a model file lies."""
    return model.with_suffix(".json")


class CatBoostRegressor:
    """Implements `agents.prediction.model.Regressor` on one thread."""

    def __init__(self, model: Any, card: Card) -> None:
        self._model = model
        self.card = card

    def log_corrections(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """See `Regressor.log_corrections`."""
        return np.asarray(self._model.predict(rows, thread_count=1), dtype=np.float64).reshape(-1, 2)


def load_regressor(path: Path = SHIPPED) -> CatBoostRegressor:
    """Reads a model and its card.

    Raises:
        ModelError: A file is missing or broken, they do not belong together, or the model was trained on other features.
    """
    try:
        data = path.read_bytes()
        card = msgspec.json.decode(card_path(path).read_bytes(), type=Card)
    except OSError as error:
        raise ModelError(f"cost model {path}: {error.filename}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"card {card_path(path)}: {error}") from error
    if card.format != FORMAT:
        raise ModelError(f"card {card_path(path)} has format {card.format}; allowed: {FORMAT}")
    if tuple(card.features) != FEATURES:
        raise ModelError(f"cost model {path} was trained on other features; train it again: python -m {TRAINER} --out {path}")
    if hashlib.sha256(data).hexdigest() != card.model_sha256:
        raise ModelError(f"cost model {path} is not the file that its card describes; train it again or restore both")
    return CatBoostRegressor(_parse(data, path), card)


def _parse(data: bytes, path: Path) -> Any:
    try:
        # Imported here: this library alone is larger than the rest of the process, and a broken one must not keep the agent from starting.
        import catboost  # noqa: PLC0415
    except ImportError as error:
        raise ModelError(f"cost model {path}: the catboost package cannot be imported: {error}") from error
    model = catboost.CatBoost()
    try:
        model.load_model(blob=data)
    except catboost.CatBoostError as error:
        raise ModelError(f"cost model {path} cannot be read: {error}") from error
    return model
