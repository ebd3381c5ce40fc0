"""Refits the cost model from telemetry without forgetting; the first training is `offline.first_training`."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.card import ModelCard
from hmas.agents.model_store.ranges import RANGES, ranges_of
from hmas.agents.prediction.experience import Table
from hmas.agents.prediction.features import CATEGORIES, FEATURES
from hmas.agents.prediction.regressor import FORMAT, KIND, RISING, TARGETS, CatBoostRegressor, Target

SEED = 1
LABEL_LIMIT = 1.5
"""Limit at which labels are clipped: a request in a preemption storm says nothing about ordinary ones."""
PARAMETERS: Mapping[str, Any] = MappingProxyType(
    {
        "border_count": 64,
        "one_hot_max_size": 255,
        "thread_count": 1,
        "verbose": 0,
        "allow_writing_files": False,
    }
)
SHAPES: Mapping[Target, Mapping[str, Any]] = MappingProxyType(
    {
        "ttft": MappingProxyType({"iterations": 250, "depth": 5, "learning_rate": 0.08, "l2_leaf_reg": 20}),
        # The formula predicts TPOT about as well as possible beforehand; larger trees would only learn the engines of the training.
        "tpot": MappingProxyType({"iterations": 120, "depth": 4, "learning_rate": 0.03, "l2_leaf_reg": 100}),
    }
)
"""Parameters of the trees, by target; chosen on episodes of other engines."""
REFIT_ITERATIONS = 40
GROWN_MOST = 4
"""Times the trees of its first training after which a model is refitted from these."""
REFIT_RATE = 0.06
REFIT_LEAF_REG = 20
REFIT_HELD_OUT = 0.2
"""Share of the newest telemetry that a refit does not see; it is used to judge the refit."""
REFIT_LEAST = 300
"""Fewest labelled requests for a refit."""


def refit(regressor: CatBoostRegressor, learnt: Table, seed: int = SEED) -> tuple[CatBoostRegressor, dict[str, float]]:
    """Continues the training from telemetry: new trees on top of the old ones, in a new model.

    The rows kept from the first training are included, with the model's own results as labels: where telemetry has no data, the model keeps
    its results. The newest telemetry is held out.

    Returns:
        The new model, and the mean error of old and new on the held-out part (`errors_of`).

    Raises:
        ValueError: There are too few.
    """
    if len(learnt) < REFIT_LEAST:
        raise ValueError(f"{len(learnt)} labelled requests; allowed: {REFIT_LEAST} and more")
    held = max(50, int(REFIT_HELD_OUT * len(learnt)))
    seen, unseen = learnt.take(slice(0, len(learnt) - held)), learnt.take(slice(len(learnt) - held, len(learnt)))
    models = {}
    remembered = None if regressor.replay is None else regressor.log_ratios(*regressor.replay)
    for index, target in enumerate(TARGETS):
        kept = np.isfinite(seen.labels[:, index])
        part = seen.take(kept)
        rows, names, labels = part.rows, part.names, clipped(part.labels[:, index])
        if remembered is not None and regressor.replay is not None:
            rows = np.concatenate([rows, regressor.replay[0]])
            names = np.concatenate([names, regressor.replay[1]])
            labels = np.concatenate([labels, remembered[:, index]])
        models[target] = _continued(regressor.models[target], pool_of(rows, names, labels), target, seed=seed)
    card = regressor.card
    details = card.details | {"refits": int(card.details.get("refits", 0)) + 1, "telemetry": len(learnt)}
    if regressor.ranges is not None:
        # The union of the first training's ranges and the telemetry's. Without the former, no range can be given.
        details[RANGES] = ranges_of(FEATURES, [*zip(*regressor.ranges.bounds.values(), strict=True), *seen.rows.tolist()])
    fresh_card = ModelCard(
        kind=KIND,
        format=FORMAT,
        data_sha256=card.data_sha256 | {"telemetry": hash_of(learnt)},
        licence=card.licence,
        command="refit from telemetry",
        details=details,
    )
    fresh = CatBoostRegressor(models, fresh_card, regressor.replay)
    errors = {
        name: float(np.nanmean(errors_of(one.log_ratios(unseen.rows, unseen.names), unseen.labels)))
        for name, one in (("old", regressor), ("new", fresh))
    }
    # Of a target without a held-out label nothing new is known: one-token answers have no TPOT.
    accepted = regressor.accepted | accepted_error(fresh.log_ratios(unseen.rows, unseen.names), unseen.labels)
    fresh.card = msgspec.structs.replace(
        fresh.card,
        metrics={"held_out": len(unseen), "error_before": errors["old"], "error_after": errors["new"]},
        details=details | {"accepted": accepted},
    )
    return fresh, errors


def errors_of(said: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean absolute logarithmic error of each request over its available targets."""
    present = np.isfinite(labels)
    total = np.where(present, np.abs(labels - said), 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(1, present.sum(axis=1)), dtype=np.float64)


def accepted_error(said: NDArray[np.float64], labels: NDArray[np.float64]) -> dict[str, float]:
    """Returns the mean absolute logarithmic error of the medians, by target that has labels; live errors are compared with it."""
    errors = np.abs(labels - said)
    present = np.isfinite(errors)
    return {target: round(float(errors[present[:, at], at].mean()), 4) for at, target in enumerate(TARGETS) if present[:, at].any()}


def _continued(before: Any, pool: Any, target: Target, *, seed: int) -> Any:
    import catboost  # noqa: PLC0415

    first = SHAPES[target]["iterations"]
    if before.tree_count_ > GROWN_MOST * first:
        # Each refit adds trees. Without those of earlier ones, which data since then replace, they would grow for ever.
        before = before.copy()
        before.shrink(first)
    model = catboost.CatBoost(
        {
            **PARAMETERS,
            "depth": SHAPES[target]["depth"],
            "l2_leaf_reg": REFIT_LEAF_REG,
            "iterations": REFIT_ITERATIONS,
            "learning_rate": REFIT_RATE,
            "model_shrink_rate": 0,
            **median_loss(target),
            "random_seed": seed,
        }
    )
    model.fit(pool, init_model=before)
    return model


def median_loss(target: Target) -> dict[str, Any]:
    """Returns the loss of which the median is the best answer, and the features in which the target is monotone."""
    return {"loss_function": "Quantile:alpha=0.5", "monotone_constraints": {FEATURES.index(name): 1 for name in RISING[target]}}


def pool_of(rows: NDArray[np.float32], names: NDArray[np.object_], labels: NDArray[np.float64]) -> Any:
    """Returns CatBoost's training input."""
    import catboost  # noqa: PLC0415

    return catboost.Pool(
        catboost.FeaturesData(
            num_feature_data=np.ascontiguousarray(rows, dtype=np.float32),
            num_feature_names=list(FEATURES),
            cat_feature_data=names,
            cat_feature_names=list(CATEGORIES),
        ),
        labels,
    )


def clipped(labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the labels within `LABEL_LIMIT`."""
    return np.clip(labels, -LABEL_LIMIT, LABEL_LIMIT)


def hash_of(learnt: Table) -> str:
    """Returns the SHA-256 of rows, labels and names."""
    digest = hashlib.sha256(learnt.rows.tobytes() + learnt.labels.tobytes())
    digest.update(b"\0".join(name for row in learnt.names for name in row))
    return digest.hexdigest()
