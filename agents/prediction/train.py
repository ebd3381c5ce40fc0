"""`python -m agents.prediction.train`: generates the data, trains the cost model, measures it on other engines, writes model and card."""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import catboost
import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.prediction.features import FEATURES
from agents.prediction.generate import samples, table
from agents.prediction.regressor import FORMAT, SHIPPED, Card, CatBoostRegressor, card_path

SEED = 1
EPISODES = 240
HELD_OUT = 60
LABEL_LIMIT = 1.5
"""Labels are clipped here: a request that met a preemption storm says nothing about ordinary ones."""
PARAMETERS = {
    "loss_function": "MultiRMSEWithMissingValues",
    "iterations": 300,
    "depth": 5,
    "learning_rate": 0.06,
    "l2_leaf_reg": 20,
    "border_count": 64,
    "thread_count": 1,
    "verbose": 0,
    "allow_writing_files": False,
}


def train(seed: int, episodes: int) -> tuple[catboost.CatBoost, str]:
    """Trains on generated episodes; returns the model and the hash of the data."""
    rows, labels = table([sample for episode in samples(seed, episodes) for sample in episode])
    model = catboost.CatBoost({**PARAMETERS, "random_seed": seed})
    model.fit(rows, np.clip(labels, -LABEL_LIMIT, LABEL_LIMIT))
    # The library stamps time and a random id into the file; without them the same command gives the same bytes.
    metadata = model.get_metadata()
    metadata["train_finish_time"] = ""
    metadata["model_guid"] = f"hmas-{seed}-{episodes}"
    return model, hashlib.sha256(rows.tobytes() + labels.tobytes()).hexdigest()


def measure(regressor: CatBoostRegressor, seed: int, episodes: int) -> dict[str, float]:
    """Errors on episodes with engines that the model has not seen: the formula's, and what the agent says with all its corrections."""
    found = [sample for episode in samples(seed, episodes, regressor) for sample in episode]
    metrics = {"samples": float(len(found))}
    for target in ("ttft_ms", "tpot_ms"):
        kept = [sample for sample in found if getattr(sample, target) > 0]
        actual = np.array([getattr(sample, target) for sample in kept])
        for name, said in (("formula", [sample.formula for sample in kept]), ("agent", [sample.said for sample in kept])):
            predicted = np.array([getattr(estimate, target) for estimate in said])
            metrics |= {f"{target}_{name}_{what}": round(value, 4) for what, value in _errors(actual, predicted).items()}
    return metrics


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, measures and writes."""
    parser = argparse.ArgumentParser(prog="python -m agents.prediction.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=SHIPPED, help="model file to write (.cbm); its card goes beside it")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="engines and loads to train on")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="engines and loads to measure on")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(argv)
    model, data_hash = train(options.seed, options.episodes)
    with tempfile.TemporaryDirectory() as folder:
        model.save_model(str(Path(folder) / "model.cbm"))
        data = (Path(folder) / "model.cbm").read_bytes()
    card = Card(
        format=FORMAT,
        features=list(FEATURES),
        model_sha256=hashlib.sha256(data).hexdigest(),
        data_sha256=data_hash,
        command=f"python -m agents.prediction.train --seed {options.seed} --episodes {options.episodes} --held-out {options.held_out}",
        catboost=catboost.__version__,
        metrics={},
    )
    metrics = measure(CatBoostRegressor(model, card), options.seed + 1, options.held_out)
    document = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(card, metrics=metrics)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(data)
    card_path(options.out).write_bytes(document + b"\n")
    sys.stdout.write(document.decode() + "\n")
    return 0


def _errors(actual: NDArray[np.float64], predicted: NDArray[np.float64]) -> dict[str, float]:
    """Coefficient of determination of the values and of their logarithms, and median and mean absolute percentage error."""
    share = np.abs(predicted - actual) / actual
    return {
        "r2": _r2(actual, predicted),
        "r2_log": _r2(np.log(actual), np.log(predicted)),
        "median_ape": float(np.median(share)),
        "mape": float(np.mean(share)),
    }


def _r2(actual: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    return float(1.0 - np.sum((actual - predicted) ** 2) / np.sum((actual - actual.mean()) ** 2))


if __name__ == "__main__":
    raise SystemExit(main())
