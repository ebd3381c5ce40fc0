"""A supervised classifier as a selector (H-MAS C.2): the policy that served workloads like this one best in simulation.

Its training (`hmas-lab train-meta`) knows simulated fleets, not this one; so it is heard past the twin's judgement only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hmas.agents.meta.candidate import Candidate, candidate
from hmas.agents.meta.selectors.base import Proposal, Reward, Situation
from hmas.agents.meta.selectors.features import FEATURES, features_of
from hmas.agents.meta.selectors.rules import SAMPLES_MIN, figures
from hmas.agents.model_store.card import CARD, ModelCard, verified
from hmas.agents.model_store.ranges import RangeCounter, counter_of
from hmas.agents.model_store.store import SHIPPED as SHIPPED_NAME
from hmas.controller.core.errors import ModelError

KIND = "meta"
FORMAT = "catboost-policy-1"
FILE = "policy.cbm"
SHIPPED = Path(__file__).parent.parent / "models" / "policy"
SURE = 0.5
"""Probability below which what runs is left alone."""


class PolicyClassifier:
    """Policies with probabilities for one row of features, on one thread.

    Args:
        model: A CatBoost classifier. `policies`: its classes in order.
        card: What it is.

    Attributes:
        ranges: Clips the features to what its training saw and counts what lies outside; None where the card does not state it.
        answered: Rows answered so far.

    Raises:
        ValueError: The ranges on the card are none of `FEATURES`.
    """

    def __init__(self, model: Any, policies: tuple[str, ...], card: ModelCard) -> None:
        self._model = model
        self._policies = policies
        self.card = card
        self.ranges: RangeCounter | None = counter_of(card, FEATURES)
        self.answered = 0

    def probabilities(self, row: list[float]) -> dict[str, float]:
        """By policy; they add up to 1."""
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
        # Imported here: the library is larger than the rest of the process, and only this selector wants it.
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
    """Proposes the likeliest policy, where that is likely enough.

    Args:
        classifier: The model that it asks.
        version: Name of that model, for reports.
    """

    name = "classifier"
    trusted = False

    def __init__(self, classifier: PolicyClassifier, version: str = SHIPPED_NAME) -> None:
        self.classifier = classifier
        self.version = version

    def propose(self, situation: Situation) -> Proposal:
        """What the model says; what runs where it is not sure."""
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
        return Proposal(candidate=known(best, situation), reason=told, source=self.name, confidence=share, evidence=figures(view))

    def learn(self, reward: Reward) -> None:
        """It is trained offline."""


def likeliest(said: Mapping[str, float], allowed: tuple[str, ...]) -> str:
    """The policy with the highest figure of those that may be proposed; empty where there is none."""
    return max((name for name in said if name in allowed), key=lambda name: said[name], default="")


def known(policy: str, situation: Situation) -> Candidate:
    """A policy by name: what runs with its parameters and window, the configured one with its own, else with its defaults."""
    for one in (situation.current, situation.start):
        if one.policy == policy:
            return one
    return candidate(policy)
