"""Data-sheet figures of GPUs, and sizes that follow from a model's shape: what is known before any measurement. Pure.

They are known at serving time, so they transfer what was learnt on one GPU to another.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hmas.controller.core.errors import ModelError
from hmas.engines.sim.profile import shape_name


class Gpu(msgspec.Struct, frozen=True):
    """One GPU's data sheet.

    Attributes:
        memory_gb: Memory, 1e9 bytes.
        bandwidth_gb_s: Memory bandwidth, 1e9 bytes/s.
        tflops: Dense 16-bit tensor throughput, 1e12 FLOP/s.
        link_gb_s: To its neighbour, 1e9 bytes/s each way.
    """

    memory_gb: float
    bandwidth_gb_s: float
    tflops: float
    link_gb_s: float


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "T4": Gpu(16, 320, 65, 16),
        "V100": Gpu(16, 900, 125, 150),
        "A10": Gpu(24, 600, 125, 32),
        "A10G": Gpu(24, 600, 70, 32),
        "A30": Gpu(24, 933, 165, 100),
        "A40": Gpu(48, 696, 150, 32),
        "A6000": Gpu(48, 768, 155, 32),
        "L4": Gpu(24, 300, 121, 32),
        "L40S": Gpu(48, 864, 362, 32),
        "A100": Gpu(40, 1555, 312, 300),
        "A100-80GB": Gpu(80, 2039, 312, 300),
        "H100": Gpu(80, 3350, 989, 450),
        "H100-PCIE": Gpu(80, 2000, 756, 300),
        "H200": Gpu(141, 4800, 989, 450),
        "B200": Gpu(180, 8000, 2250, 900),
    }
)
"""Data sheets of NVIDIA. `A100` is the 40 GB one, as in LLM-Pilot's measurements."""

_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "A100_SXM": "A100-80GB",
        "A100_PCIE": "A100-80GB",
        "A100-40GB": "A100",
        "A100-SXM": "A100-80GB",
        "H100_SXM": "H100",
        "H100-SXM": "H100",
        "H100-80GB": "H100",
        "H100_PCIE": "H100-PCIE",
        "H200_SXM": "H200",
        "RTX-A6000": "A6000",
    }
)


def gpu_of(name: str) -> Gpu | None:
    """Returns the GPU of that name, ignoring letter case and maker's prefix; None if it is unknown."""
    plain = name.strip().upper().removeprefix("NVIDIA").strip(" -_")
    return GPUS.get(_ALIASES.get(plain, plain))


class Shape(msgspec.Struct, frozen=True):
    """The size of a model.

    Attributes:
        parameters: In 1e9; of these, `active` take part in one token.
        kv_bytes: KV cache of one token over all layers, in 16 bit.
        layers: Layers of the transformer.
    """

    parameters: float
    active: float
    kv_bytes: float
    layers: int


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "llama-7b": Shape(6.74, 6.74, 524_288, 32),
        "llama-13b": Shape(13.02, 13.02, 819_200, 40),
        "llama-2-7b": Shape(6.74, 6.74, 524_288, 32),
        "llama-2-13b": Shape(13.02, 13.02, 819_200, 40),
        "llama-2-70b": Shape(68.98, 68.98, 327_680, 80),
        "llama-3-8b": Shape(8.03, 8.03, 131_072, 32),
        "llama-3-70b": Shape(70.55, 70.55, 327_680, 80),
        "qwen3-8b": Shape(8.19, 8.19, 147_456, 36),
        "qwen3-14b": Shape(14.77, 14.77, 163_840, 40),
        "qwen3-30b-a3b": Shape(30.53, 3.35, 98_304, 48),
        "qwen3-32b": Shape(32.76, 32.76, 262_144, 64),
        "gpt-neox-20b": Shape(20.55, 20.55, 1_081_344, 44),
        "starcoder": Shape(15.52, 15.52, 20_480, 40),
        "codegen2-16b": Shape(16.0, 16.0, 835_584, 34),
        "mpt-7b": Shape(6.65, 6.65, 524_288, 32),
    }
)
"""From the models' public `config.json`."""


def shape_of(name: str) -> Shape | None:
    """Returns the shape of a model by its name, without publisher and edition; None if it is unknown."""
    return SHAPES.get(shape_name(name.rsplit("__", 1)[-1]))


class Setup(msgspec.Struct, frozen=True):
    """A model on some GPUs: the times that follow from data sheets alone.

    Attributes:
        read_ms: To read the weights once, all GPUs together: the lower bound of a decode step.
        token_ms: To compute one token at the full rate, prompt or output.
        kv_read_ms: To read the KV cache of one token.
        room_tokens: Tokens whose KV cache fits beside the weights in 90 % of the memory; 0 if the weights alone do not fit.
        exchange_ms: To pass one token's activations between the GPUs, all layers; 0 on one GPU.
        split: Number of GPUs.
    """

    read_ms: float
    token_ms: float
    kv_read_ms: float
    room_tokens: float
    exchange_ms: float
    split: int


def setup_of(gpu_name: str, n_gpus: int, model_name: str) -> Setup:
    """Returns the setup of a model on `n_gpus` GPUs, weights and cache in 16 bit.

    Raises:
        ModelError: The GPU or the model is unknown; the message lists the known ones.
    """
    gpu, shape = gpu_of(gpu_name), shape_of(model_name)
    if gpu is None:
        raise ModelError(f"gpu {gpu_name!r} is not known; allowed: {', '.join(GPUS)}")
    if shape is None:
        raise ModelError(f"model {model_name!r} is not known; allowed: {', '.join(SHAPES)}")
    if n_gpus < 1:
        raise ModelError(f"n_gpus is {n_gpus}; allowed: 1 and above")
    weights_gb = 2.0 * shape.parameters
    bandwidth = gpu.bandwidth_gb_s * n_gpus
    room_gb = max(0.0, 0.9 * gpu.memory_gb * n_gpus - weights_gb)
    width = shape.kv_bytes / (4.0 * shape.layers)
    exchange_bytes = 0.0 if n_gpus == 1 else 4.0 * shape.layers * width * (n_gpus - 1) / n_gpus
    return Setup(
        read_ms=1e3 * weights_gb * shape.active / shape.parameters / bandwidth,
        token_ms=2.0 * shape.active / (gpu.tflops * n_gpus),
        kv_read_ms=1e-6 * shape.kv_bytes / bandwidth,
        room_tokens=1e9 * room_gb / shape.kv_bytes,
        exchange_ms=1e-6 * exchange_bytes / gpu.link_gb_s,
        split=n_gpus,
    )
