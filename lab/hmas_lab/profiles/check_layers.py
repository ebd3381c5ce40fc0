"""Composed GEMMs against a second source: Vidur's medians of one layer's matrices (MIT), measured on A100 and H100 by other people."""

import csv
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hmas.engines.errors import ProfileError
from hmas_lab.profiles.compose import step_cost
from hmas_lab.profiles.models import load_model
from hmas_lab.profiles.step import StepCost
from hmas_lab.profiles.tables import Tables

FILE = "vidur_mlp.csv.gz"
GPUS = {"a100": "a100_sxm", "h100": "h100_sxm"}
SHAPES = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-3-70b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
}
"""Models whose layers datasets/models/ has; Llama 2 and 3 with 70 billion parameters have the same layers."""

MATRICES = ("attn_pre_proj_median_ms", "attn_post_proj_median_ms", "mlp_up_proj_median_ms", "mlp_down_proj_median_ms")
DECODE_TOKENS = 256


class Layer(NamedTuple):
    """One layer's matrices at so many tokens: measured by Vidur, and composed."""

    gpu: str
    model: str
    tp: int
    tokens: int
    measured_ms: float
    composed_ms: float

    @property
    def error(self) -> float:
        """Relative, signed: below 0 where the composition is faster."""
        return self.composed_ms / self.measured_ms - 1.0


def compare_layers(folder: Path, tables: Mapping[str, Tables]) -> list[Layer]:
    """Every measurement of the file that datasets/models/ has the layers of, beside its composition.

    Raises:
        ProfileError: The file is missing or a row is not what it should be.
    """
    path = folder / FILE
    costs: dict[tuple[str, str, int], StepCost] = {}
    layers = []
    try:
        with gzip.open(path, "rt", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                gpu, model = GPUS.get(row["gpu"]), SHAPES.get(row["model"])
                if gpu is None or model is None:
                    continue
                try:
                    tp, tokens = int(row["num_tensor_parallel_workers"]), int(row["num_tokens"])
                    measured_ms = sum(float(row[field]) for field in MATRICES)
                except ValueError as error:
                    raise ProfileError(f"{path.name}, row {number}: {error}") from error
                key = (gpu, model, tp)
                if key not in costs:
                    costs[key] = step_cost(load_model(model), gpu, tp=tp, dtype="bfloat16", tables=tables[gpu])
                layers.append(Layer(gpu, model, tp, tokens, measured_ms, costs[key].matrices_ms(tokens)))
    except (OSError, KeyError) as error:
        raise ProfileError(f"{path}: {error}") from error
    return layers


def report_layers(layers: list[Layer]) -> list[str]:
    """Median errors by GPU, degree and size of the step, as lines of text."""
    lines = ["one layer's matrices against Vidur's measurements: median |error| (median error)"]
    for gpu, tp in sorted({(layer.gpu, layer.tp) for layer in layers}):
        parts = []
        for name, small in ((f"up to {DECODE_TOKENS} tokens", True), ("more", False)):
            errors = [one.error for one in layers if (one.gpu, one.tp) == (gpu, tp) and (one.tokens <= DECODE_TOKENS) is small]
            parts.append(f"{name} {np.median(np.abs(errors)):.1%} ({np.median(errors):+.1%}, {len(errors)})")
        lines.append(f"  {gpu} tp {tp}: " + ", ".join(parts))
    return lines
