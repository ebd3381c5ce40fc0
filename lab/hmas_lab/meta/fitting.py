"""Fits the classifier on labelled workloads, and says what it is worth on those that it has not seen."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import catboost
import msgspec
import numpy as np

from hmas.agents.model_store.card import ModelCard, write_card
from hmas_lab.meta.classifier import FILE, FORMAT, KIND, SURE
from hmas_lab.meta.features import FEATURES, SHORT_LIST
from hmas_lab.meta.labels import START, Labelled, Seen
from hmas_lab.meta.regimes import Row, look_up
from hmas_lab.meta.table import find_rows

FOLDS = 5
GAIN_WEIGHT = 20.0
"""Weight of a row per share of requests that its label wins: what matters little may be mistaken."""
SETTINGS = {"iterations": 150, "depth": 4, "learning_rate": 0.06, "l2_leaf_reg": 6.0, "loss_function": "MultiClass"}
Choice = Callable[[Seen], str]


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What a way to choose is worth on held-out workloads, each counting alike.

    Attributes:
        accuracy: Share of views at which it wished the label.
        good: Mean share of good requests under what it wished. `regret`: how much less than under the best policy of each.
    """

    accuracy: float
    good: float
    regret: float


def fit(labelled: Sequence[Labelled], seed: int) -> Any:
    """A classifier trained on all views of these workloads."""
    rows = [(seen.features, one.best, 1.0 + GAIN_WEIGHT * (one.good[one.best] - one.good[START])) for one in labelled for seen in one.seen]
    model = catboost.CatBoostClassifier(**SETTINGS, random_seed=seed, thread_count=1, allow_writing_files=False, verbose=False)
    # Every policy of the list is a class, also one that was never best: a row of next to no weight stands for it.
    for name in SHORT_LIST:
        rows.append((rows[0][0], name, 1e-6))
    x = np.array([row[0] for row in rows], np.float32)
    model.fit(x, [row[1] for row in rows], sample_weight=[row[2] for row in rows])
    return model


def chooser(model: Any) -> Choice:
    """As the selector chooses, but without guards."""
    policies = [str(name) for name in model.classes_]

    def choose(seen: Seen) -> str:
        said = model.predict(np.array([seen.features], np.float32), prediction_type="Probability", thread_count=1)[0]
        best = int(np.argmax(said))
        return policies[best] if said[best] >= SURE else seen.current

    return choose


def by_table(rows: Sequence[Row]) -> Choice:
    """As the change-point selector looks up."""

    def choose(seen: Seen) -> str:
        found = look_up(rows, dict(zip(FEATURES, seen.features, strict=True)))
        return found.policy if found is not None else START

    return choose


def worth(labelled: Sequence[Labelled], choose: Choice) -> Worth:
    """Measures a way to choose."""
    hits, good, regret = [], [], []
    for one in labelled:
        wished = [choose(seen) for seen in one.seen]
        hits.append(np.mean([name == one.best for name in wished]))
        reached = float(np.mean([one.good[name] for name in wished]))
        good.append(reached)
        regret.append(max(one.good.values()) - reached)
    return Worth(accuracy=round(float(np.mean(hits)), 4), good=round(float(np.mean(good)), 4), regret=round(float(np.mean(regret)), 4))


def held_out(labelled: Sequence[Labelled], seed: int) -> dict[str, Worth]:
    """Every way to choose on workloads that it was not made from, fold by fold; those that learn nothing on the same ones."""
    parts: dict[str, list[Worth]] = {}
    for fold in range(FOLDS):
        test = [one for one in labelled if one.drawn.number % FOLDS == fold]
        rest = [one for one in labelled if one.drawn.number % FOLDS != fold]
        ways: dict[str, Choice] = {
            "classifier": chooser(fit(rest, seed)),
            "table": by_table(find_rows(rest)),
            "rules": lambda seen: seen.rules,
            **{f"always {name}": (lambda _seen, name=name: name) for name in SHORT_LIST},  # type: ignore[misc]
        }
        for name, choose in ways.items():
            parts.setdefault(name, []).append(worth(test, choose))
    return {
        name: Worth(**{figure: round(float(np.mean([getattr(one, figure) for one in found])), 4) for figure in Worth.__struct_fields__})
        for name, found in parts.items()
    }


def save(model: Any, folder: Path, card: ModelCard) -> ModelCard:
    """Writes the model's folder with its card."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_model(str(folder / FILE))
    return write_card(folder, card)


def card_of(labelled: Sequence[Labelled], found: dict[str, Worth], command: str, created_s: float) -> ModelCard:
    """The card of a classifier, without the hashes of its files."""
    return ModelCard(
        kind=KIND,
        format=FORMAT,
        created_s=created_s,
        command=command,
        licence="Apache-2.0; trained on this project's simulations alone",
        metrics={"workloads": len(labelled), "held_out": {name: msgspec.to_builtins(one) for name, one in found.items()}},
        details={"features": list(FEATURES), "policies": list(SHORT_LIST)},
    )
