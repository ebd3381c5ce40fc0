"""A supervised classifier as a selector (H-MAS C.2): it proposes the policy that served similar workloads best in simulation.

Its training (`hmas-lab train-meta`) uses simulated fleets, not this one, so its proposals are followed only if the twin passes them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hmas.agents.meta.make import SelectorSetup
from hmas.agents.meta.selectors.base import Proposal, Reward, Situation
from hmas.agents.meta.selectors.rules import SAMPLES_MIN, figures
from hmas.agents.model_store.card import CARD, ModelCard, verified
from hmas.agents.model_store.ranges import RangeCounter, counter_of, figures_of
from hmas.agents.model_store.store import SHIPPED as SHIPPED_NAME
from hmas.agents.model_store.store import ModelStore
from hmas.controller.config.derived import models_dir
from hmas.controller.core.errors import ModelError
from hmas_lab.meta.features import FEATURES, features_of

KIND = "meta"
FORMAT = "catboost-policy-1"
FILE = "policy.cbm"
SHIPPED = Path(__file__).parent / "models" / "policy"
SURE = 0.5
"""Smallest probability at which a policy is proposed; below it, what runs stays."""


class PolicyClassifier:
    """Predicts the probability of each policy for one row of features, on one thread.

    Args:
        model: A CatBoost classifier. `policies`: its classes in order.
        card: The model's card.

    Attributes:
        ranges: Clips the features to the ranges of the training data and counts values outside; None if the card states no ranges.
        answered: Rows answered so far.

    Raises:
        ValueError: The card's ranges do not match `FEATURES`.
    """

    def __init__(self, model: Any, policies: tuple[str, ...], card: ModelCard) -> None:
        self._model = model
        self._policies = policies
        self.card = card
        self.ranges: RangeCounter | None = counter_of(card, FEATURES)
        self.answered = 0

    def probabilities(self, row: list[float]) -> dict[str, float]:
        """Returns the probability of each policy; they add up to 1."""
        self.answered += 1
        if self.ranges is not None:
            row = self.ranges.clip(row)
        said = self._model.predict(np.array([row], np.float32), prediction_type="Probability", thread_count=1)[0]
        return dict(zip(self._policies, map(float, said), strict=True))


def load_classifier(folder: Path = SHIPPED) -> PolicyClassifier:
    """Reads a model folder.

    Raises:
        ModelError: A file is missing, broken or not the one its card describes, or the model was trained on other columns.
    """
    card = verified(folder)
    if card.kind != KIND or card.format != FORMAT:
        raise ModelError(f"meta's model {folder}: kind {card.kind!r}, format {card.format!r}; allowed: {KIND!r}, {FORMAT!r}")
    if tuple(card.details.get("features", ())) != FEATURES:
        raise ModelError(f"meta's model {folder} was trained on other features; train it again: hmas-lab train-meta")
    try:
        # Imported here: the library is larger than the rest of the process, and only this selector needs it.
        import catboost  # noqa: PLC0415
    except ImportError as error:
        raise ModelError(f"meta's model {folder}: the catboost package cannot be imported: {error}") from error
    model = catboost.CatBoostClassifier()
    try:
        model.load_model(blob=(folder / FILE).read_bytes())
    except (OSError, catboost.CatBoostError) as error:
        raise ModelError(f"meta's model {folder / FILE} cannot be read: {error}") from error
    try:
        return PolicyClassifier(model, tuple(map(str, model.classes_)), card)
    except ValueError as error:
        raise ModelError(f"{folder / CARD}: {error}") from error


class ClassifierSelector:
    """Proposes the likeliest policy if it is likely enough.

    Args:
        classifier: The model.
        version: Name of that model, for reports.
    """

    name = "classifier"
    trusted = False

    def __init__(self, classifier: PolicyClassifier, version: str = SHIPPED_NAME) -> None:
        self.classifier = classifier
        self.version = version

    @property
    def answered(self) -> int:
        """Number of rows that the model has answered."""
        return self.classifier.answered

    def figures(self) -> dict[str, float]:
        """What came in from outside of the ranges of the training."""
        return figures_of(self.name, self.classifier.ranges)

    def propose(self, situation: Situation) -> Proposal:
        """Proposes the model's choice; what runs if the model is not sure."""
        view, current = situation.view, situation.current
        if view.ended < SAMPLES_MIN:
            reason = f"keep: {view.ended} requests ended within {view.window_s:.0f} s are too few to judge by"
            return Proposal(candidate=current, reason=reason, source=self.name, confidence=0.0)
        said = self.classifier.probabilities(features_of(view, current.policy))
        best = likeliest(said, situation.allowed)
        share = said.get(best, 0.0)
        told = f"{best} with probability {share:.2f}, {current.policy} {said.get(current.policy, 0.0):.2f}"
        if not best or share < SURE:
            return Proposal(candidate=current, reason=f"keep: {told}", source=self.name, confidence=share, evidence=figures(view))
        return Proposal(candidate=situation.candidate_of(best), reason=told, source=self.name, confidence=share, evidence=figures(view))

    def learn(self, reward: Reward) -> None:
        """Does nothing: the model is trained offline."""


def likeliest(said: Mapping[str, float], allowed: tuple[str, ...]) -> str:
    """The allowed policy with the highest probability; empty if there is none."""
    return max((name for name in said if name in allowed), key=lambda name: said[name], default="")


def make_classifier(setup: SelectorSetup) -> ClassifierSelector:
    """Builds the selector with the configured model, else the one that `hmas models use meta` chose, else the shipped one.

    Raises:
        ModelError: As `load_classifier`.
    """
    own = setup.config.agents.meta_model
    folder = Path(own).expanduser() if own else ModelStore(models_dir(setup.config)).current(KIND)
    return ClassifierSelector(load_classifier(folder or SHIPPED), folder.name if folder else SHIPPED_NAME)
