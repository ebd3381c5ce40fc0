"""The trained correction: a folder with a CatBoost model per target, the replay rows for refits, and its card.

There is one model per target because the library keeps monotone constraints only for models with one output.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.card import CARD, ModelCard, verified
from hmas.agents.model_store.ranges import RangeCounter, counter_of
from hmas.agents.prediction.features import CATEGORIES, FEATURES, MOVING, OPEN_ABOVE, RISING_TPOT, RISING_TTFT
from hmas.agents.prediction.few_rows import FewRows
from hmas.controller.core.errors import ModelError

SHIPPED = Path(__file__).parent / "models" / "cost"
FORMAT = "catboost-cost-3"
KIND = "prediction"
REPLAY = "replay.npz"
FEW = 32
"""Up to this many rows the trees are evaluated without the library. Then it is no slower right after a snapshot, and faster after that."""

Target = Literal["ttft", "tpot"]
TARGETS: tuple[Target, ...] = ("ttft", "tpot")
RISING: Mapping[Target, tuple[str, ...]] = {"ttft": RISING_TTFT, "tpot": RISING_TPOT}

Rows = NDArray[np.float32]
Names = NDArray[np.object_]
Ratios = NDArray[np.float64]


class CatBoostRegressor:
    """Implements `hmas.agents.prediction.asking.Regressor` on one thread.

    `replay` are the rows and names on which a refit must keep the models' results.

    Raises:
        ValueError: The card's ranges do not match `FEATURES`.
    """

    def __init__(self, models: Mapping[Target, Any], card: ModelCard, replay: tuple[Rows, Names] | None = None) -> None:
        # Imported here: this library alone is larger than the rest of the process.
        import catboost  # noqa: PLC0415

        self._catboost = catboost
        self.models = dict(models)
        self.card = card
        self.replay = replay
        self.ranges: RangeCounter | None = counter_of(card, FEATURES, OPEN_ABOVE)
        self._few: FewRows | None = None
        self._only_library = False

    @property
    def accepted(self) -> dict[str, float]:
        """Mean absolute logarithmic error on held-out data, by target; 0 if it is not known."""
        told = self.card.details.get("accepted")
        known = told if isinstance(told, dict) else {}
        # A refit without a label of a target has once stored null.
        return {target: float(known[target]) if isinstance(known.get(target), int | float) else 0.0 for target in TARGETS}

    def log_ratios(self, rows: Rows, names: Names) -> Ratios:
        """Returns the medians; see `Regressor.log_ratios`. Values outside the training ranges are clipped to them."""
        if self.ranges is not None:
            rows = self.ranges.within(rows)
        few = self._few_rows() if len(rows) <= FEW else None
        if few is not None:
            return few.predict(rows, names)
        pool = self._catboost.Pool(self._catboost.FeaturesData(num_feature_data=rows, cat_feature_data=names))
        return np.column_stack([self.models[target].predict(pool, thread_count=1) for target in TARGETS])

    def _few_rows(self) -> FewRows | None:
        if self._few is None and not self._only_library:
            try:
                self._few = FewRows([self.models[target] for target in TARGETS], len(FEATURES), MOVING)
            except ModelError:
                # The library alone evaluates a model of other trees: slower, with the same result.
                self._only_library = True
        return self._few

    def save(self, folder: Path) -> None:
        """Writes everything but the card."""
        folder.mkdir(parents=True, exist_ok=True)
        for target, model in self.models.items():
            model.save_model(str(folder / file_of(target)))
        if self.replay is not None:
            rows, names = self.replay
            buffer = io.BytesIO()
            np.savez_compressed(buffer, rows=rows, names=names.astype("S64"))
            (folder / REPLAY).write_bytes(buffer.getvalue())


def load_regressor(folder: Path = SHIPPED) -> CatBoostRegressor:
    """Reads a model folder.

    Raises:
        ModelError: A file is missing, broken or not the one its card describes, or the model was trained on other columns.
    """
    card = verified(folder)
    if card.kind != KIND or card.format != FORMAT:
        raise ModelError(f"cost model {folder}: kind {card.kind!r}, format {card.format!r}; allowed: {KIND!r}, {FORMAT!r}")
    if tuple(card.details.get("features", ())) != FEATURES or tuple(card.details.get("categories", ())) != CATEGORIES:
        raise ModelError(f"cost model {folder} was trained on other features; train it again: hmas train prediction")
    models = {target: read_trees(folder / file_of(target)) for target in TARGETS}
    replay = _replay_of(folder / REPLAY)
    try:
        return CatBoostRegressor(models, card, replay)
    except ValueError as error:
        raise ModelError(f"{folder / CARD}: {error}") from error


def file_of(target: Target) -> str:
    """Returns the name of a model's file, such as `ttft.cbm`."""
    return f"{target}.cbm"


def read_trees(path: Path) -> Any:
    """Reads a model file of CatBoost.

    Raises:
        ModelError: The file cannot be read, or the package cannot be imported.
    """
    try:
        # Imported here: a broken library must not keep the agent from starting.
        import catboost  # noqa: PLC0415
    except ImportError as error:
        raise ModelError(f"cost model {path}: the catboost package cannot be imported: {error}") from error
    model = catboost.CatBoost()
    try:
        model.load_model(blob=path.read_bytes())
    except (OSError, catboost.CatBoostError) as error:
        raise ModelError(f"cost model {path} cannot be read: {error}") from error
    return model


def _replay_of(path: Path) -> tuple[Rows, Names] | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            rows, texts = stored["rows"].astype(np.float32), stored["names"]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    names = np.empty(texts.shape, dtype=object)
    for index, text in np.ndenumerate(texts):
        names[index] = bytes(text)
    return rows, names
