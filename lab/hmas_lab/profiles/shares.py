"""What share of their data sheets' rates measured kernels reach."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hmas.engines.sim.profile import Profile
from hmas_lab.profiles.compose import compose
from hmas_lab.profiles.gpus import load_gpus
from hmas_lab.profiles.models import load_model
from hmas_lab.profiles.tables import Tables

LARGE = ((6144, 4096), (4096, 4096), (16384, 5120), (5120, 16384), (10240, 8192), (8192, 8192), (16384, 16384))
"""Shapes (n, k) of a size that models of 8 to 70 billion parameters have, all measured."""


STEPS = ((0, 1), (0, 32), (0, 128), (512, 0), (2048, 0), (8192, 0))
"""Steps of (prompt tokens, decoding sequences) that data-sheet profiles are tried on."""


class Shares(NamedTuple):
    """Medians of achieved over data-sheet rates.

    Attributes:
        flop: GEMMs of 2048 to 8192 tokens, of the tensor-core rate.
        weight: GEMMs of 1 to 32 tokens, of the bandwidth.
        pair: Causal attention of 2048 to 8192 tokens, of the tensor-core rate.
        kv: Attention of decoding sequences over 64 thousand cached tokens and more, of the bandwidth.
        link: All-reduce of 8 MB and more, of the link's rate.
    """

    flop: float
    weight: float
    pair: float
    kv: float
    link: float


def measured_shares(tables: Mapping[str, Tables]) -> dict[str, Shares]:
    """The shares of each measured GPU, by its name."""
    gpus = load_gpus()
    result = {}
    for name, table in tables.items():
        gpu = gpus[name]
        flop = [2e3 * m * n * k / table.gemm_ms("bfloat16", m, n, k) / gpu.bf16_flop_per_s for m in (2048, 4096, 8192) for n, k in LARGE]
        weight = [2e3 * n * k / table.gemm_ms("bfloat16", m, n, k) / gpu.bytes_per_s for m in (1, 8, 32) for n, k in LARGE]
        prefill, decode = table.prefill_sheet(32, 8), table.decode_sheet(32, 8)
        pair = [
            4e3 * 32 * 128 * prompts * s * (s + 1) / 2 / prefill.ms(prompts, s) / gpu.bf16_flop_per_s
            for prompts, s in ((1, 4096), (1, 8192), (2, 4096), (4, 2048))
        ]
        kv = [
            4e3 * 8 * 128 * seqs * s / decode.ms(seqs, s) / gpu.bytes_per_s
            for seqs, s in ((16, 4096), (32, 4096), (64, 1024), (64, 2048), (128, 1024))
        ]
        link = [
            2.0 * 2 * (n - 1) / n * e * 1e3 / table.all_reduce_ms(n, e) / gpu.link_bytes_per_s
            for n in (2, 4, 8)
            for e in (1 << 22, 1 << 24)
        ]
        result[name] = Shares(*map(_median, (flop, weight, pair, kv, link)))
    return result


def roofline_errors(tables: Mapping[str, Tables], names: Sequence[str] = ("llama-3-8b", "qwen3-14b")) -> dict[str, tuple[float, float]]:
    """What a data-sheet profile is worth, on GPUs where the composed one is known: its least and its largest relative error, by GPU.

    Args:
        tables: Measured tables by the GPU's name.
        names: Models, each on one GPU, over steps of 1, 32 and 128 decoding sequences and prefills of 512, 2048 and 8192 tokens.
    """
    result = {}
    for gpu, table in tables.items():
        errors = []
        for model in map(load_model, names):
            sheet, composed = compose(model, gpu), compose(model, gpu, tables=table)
            errors += [_step_s(sheet, *step) / _step_s(composed, *step) - 1.0 for step in STEPS]
        result[gpu] = (min(errors), max(errors))
    return result


def _step_s(profile: Profile, prompt: int, seqs: int) -> float:
    return profile.step_duration_s(
        prefill_tokens=prompt, prefill_pairs=prompt * (prompt + 1) // 2, decode_seqs=seqs, decode_kv_tokens=1024 * seqs
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
