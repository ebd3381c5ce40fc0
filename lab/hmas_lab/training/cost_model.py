"""The first training of the cost model on generated episodes, and its evaluation on others."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.card import ModelCard
from hmas.agents.model_store.ranges import RANGES, ranges_of
from hmas.agents.prediction.experience import Table
from hmas.agents.prediction.features import CATEGORIES, FEATURES
from hmas.agents.prediction.regressor import FORMAT, KIND, TARGETS, CatBoostRegressor, Target
from hmas.agents.prediction.training import PARAMETERS, SHAPES, accepted_error, clipped, hash_of, median_loss, pool_of
from hmas_lab.training.episodes import Sample, samples, table

EPISODES = 240
HELD_OUT = 24
REPLAY_ROWS = 2_000
"""Rows kept beside the model, on which a refit must keep the model's results."""


def train(seed: int, episodes: int, on_progress: Callable[[int, int], None] = lambda _done, _of: None) -> CatBoostRegressor:
    """Trains on generated episodes. The same seed gives the same model."""
    found: list[Sample] = []
    for number, episode in enumerate(samples(seed, episodes)):
        found += episode
        on_progress(number + 1, episodes)
    learnt = table(found)
    models = {target: _fit(learnt, target, seed=seed) for target in TARGETS}
    for target, model in models.items():
        _make_reproducible(model, f"hmas-{target}-0.5-{seed}-{episodes}")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(learnt))[:REPLAY_ROWS])
    card = ModelCard(
        kind=KIND,
        format=FORMAT,
        data_sha256={"generated episodes": hash_of(learnt)},
        licence="Apache-2.0",
        details={
            "features": list(FEATURES),
            "categories": list(CATEGORIES),
            "rows": len(learnt),
            RANGES: ranges_of(FEATURES, learnt.rows.tolist()),
        },
    )
    return CatBoostRegressor(models, card, (learnt.rows[chosen], learnt.names[chosen]))


def measure(regressor: CatBoostRegressor, seed: int, episodes: int) -> dict[str, float]:
    """Returns errors on episodes with unseen engines: the formula's, and the agent's with all its corrections."""
    found = [sample for episode in samples(seed, episodes, regressor) for sample in episode]
    metrics = {"samples": float(len(found))}
    for target in ("ttft_ms", "tpot_ms"):
        kept = [sample for sample in found if getattr(sample, target) > 0]
        actual = np.array([getattr(sample, target) for sample in kept])
        for name, said in (("formula", [sample.formula for sample in kept]), ("agent", [sample.said for sample in kept])):
            predicted = np.array([getattr(estimate, target) for estimate in said])
            metrics |= {f"{target}_{name}_{what}": round(value, 4) for what, value in _errors(actual, predicted).items()}
    return metrics


def accept(regressor: CatBoostRegressor, seed: int, episodes: int) -> CatBoostRegressor:
    """Returns the model with its accepted error, measured on unseen episodes, on its card."""
    learnt = table([sample for episode in samples(seed, episodes, regressor) for sample in episode])
    accepted = accepted_error(regressor.log_ratios(learnt.rows, learnt.names), clipped(learnt.labels))
    return _with_card(regressor, details=regressor.card.details | {"accepted": accepted})


def with_metrics(regressor: CatBoostRegressor, metrics: Mapping[str, float], command: str) -> CatBoostRegressor:
    """Returns the model with figures and command on its card."""
    return _with_card(regressor, metrics=dict(metrics), command=command)


def _with_card(regressor: CatBoostRegressor, **changes: Any) -> CatBoostRegressor:
    return CatBoostRegressor(regressor.models, msgspec.structs.replace(regressor.card, **changes), regressor.replay)


def _fit(learnt: Table, target: Target, *, seed: int) -> Any:
    import catboost  # noqa: PLC0415

    labels = learnt.labels[:, TARGETS.index(target)]
    kept = np.isfinite(labels)
    model = catboost.CatBoost({**PARAMETERS, **SHAPES[target], **median_loss(target), "random_seed": seed})
    model.fit(pool_of(learnt.rows[kept], learnt.names[kept], clipped(labels[kept])))
    return model


def _make_reproducible(model: Any, name: str) -> None:
    # The library writes time and a random id into the file; without them the same command gives the same bytes.
    metadata = model.get_metadata()
    metadata["train_finish_time"] = ""
    metadata["model_guid"] = name


def _errors(actual: NDArray[np.float64], predicted: NDArray[np.float64]) -> dict[str, float]:
    """Returns the coefficient of determination of values and of logarithms, and median and mean absolute percentage error."""
    share = np.abs(predicted - actual) / actual
    return {
        "r2": _r2(actual, predicted),
        "r2_log": _r2(np.log(actual), np.log(predicted)),
        "median_ape": float(np.median(share)),
        "mape": float(np.mean(share)),
    }


def _r2(actual: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    spread = float(np.sum((actual - actual.mean()) ** 2))
    return float(1.0 - np.sum((actual - predicted) ** 2) / spread) if spread > 0 else math.nan
