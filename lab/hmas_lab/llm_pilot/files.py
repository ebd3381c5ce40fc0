"""The profile model as a folder: formula, CatBoost models and card."""

from pathlib import Path

import msgspec

from hmas.agents.model_store.card import CARD, ModelCard, verified, write_card
from hmas.agents.model_store.ranges import RANGES, counter_of
from hmas.agents.prediction.prior import Formula
from hmas.agents.prediction.regressor import read_trees
from hmas.controller.core.errors import ModelError
from hmas_lab.llm_pilot.model import CATEGORIES, COLUMNS, REGIMES, TARGETS, ProfileModel

SHIPPED = Path(__file__).parent / "models"
FORMAT = "catboost-profile-1"
KIND = "prediction"
FORMULA = "formula.json"


def save_profile_model(model: ProfileModel, folder: Path, card: ModelCard) -> ModelCard:
    """Writes a model and its card, with kind, format and columns filled in; returns the card as written.

    Raises:
        ModelError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.cbm"):
            # The card lists the files beside it, so files of an earlier training are removed.
            old.unlink()
        for (regime, target), trees in model.trees.items():
            trees.save_model(str(folder / f"{regime}-{target}.cbm"))
        (folder / FORMULA).write_bytes(msgspec.json.encode(model.formula) + b"\n")
    except OSError as error:
        raise ModelError(f"{folder}: {error.strerror}") from error
    details = card.details | {"features": list(COLUMNS), "categories": list(CATEGORIES)}
    if model.ranges is not None:
        details[RANGES] = model.ranges.bounds
    return write_card(folder, msgspec.structs.replace(card, kind=KIND, format=FORMAT, details=details))


def load_profile_model(folder: Path = SHIPPED) -> tuple[ProfileModel, ModelCard]:
    """Reads a model and its card.

    Raises:
        ModelError: A file is missing, broken or not the one its card describes, or it was trained on other columns.
    """
    card = verified(folder)
    if card.format != FORMAT:
        raise ModelError(f"profile model {folder}: format {card.format!r}; allowed: {FORMAT!r}")
    if card.details.get("features") != list(COLUMNS) or card.details.get("categories") != list(CATEGORIES):
        raise ModelError(f"profile model {folder} was trained on other columns; train it again: hmas-lab llm-pilot --data FILE --out DIR")
    try:
        formula = msgspec.json.decode((folder / FORMULA).read_bytes(), type=Formula)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{folder / FORMULA}: {error}") from error
    try:
        ranges = counter_of(card, COLUMNS)
    except ValueError as error:
        raise ModelError(f"{folder / CARD}: {error}") from error
    trees = {(regime, target): read_trees(folder / f"{regime}-{target}.cbm") for regime in REGIMES for target in TARGETS}
    return ProfileModel(formula, trees, ranges), card
