"""A profile for any covered model on any GPU that was measured or has a data sheet."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile, check_profile
from hmas_lab.profiles.gpus import SHORT, Gpu, load_gpu
from hmas_lab.profiles.kernels import DataSheetKernels, Kernels, MeasuredKernels
from hmas_lab.profiles.memory import BLOCK_TOKENS, RUNTIME_BYTES, UTILISATION, kv_blocks
from hmas_lab.profiles.models import BYTES, ModelConfig, check_tp
from hmas_lab.profiles.reduce import Reduced, reduce_cost, rounded
from hmas_lab.profiles.step import SAMPLER_BYTES, StepCost
from hmas_lab.profiles.tables import Tables

HOST_SHARE = 0.8
"""Share of the bus to the host that KV swapping reaches."""

PREFILL_TOKENS = 8192
"""Tokens of the largest prefill step that a profile is fitted to."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine adds to its kernels: scheduling, launches, gaps. Estimated from a real engine by `hmas_lab.profiles.check`.

    Attributes:
        step_ms: Each step.
        ms_per_seq: Each sequence in a step.
        request_ms: Each request before its first step.
        note: Where the numbers come from, for the profile's `source`.
    """

    step_ms: Annotated[float, Meta(ge=0)] = 0.0
    ms_per_seq: Annotated[float, Meta(ge=0)] = 0.0
    request_ms: Annotated[float, Meta(ge=0)] = 0.0
    note: str = ""


NO_HOST = Host()


def profile_name(gpu: str, model: ModelConfig, tp: int, dtype: str) -> str:
    """`<gpu>-<model>[-fp8][-tpN]`, as in `h100-llama-3-70b-tp4`."""
    plain = model.name.rsplit("/", 1)[-1].lower().replace("llama-3.1", "llama-3")
    return f"{SHORT.get(gpu, gpu)}-{plain}" + ("" if dtype == "bfloat16" else f"-{dtype}") + ("" if tp == 1 else f"-tp{tp}")


def step_cost(model: ModelConfig, gpu_name: str, *, tp: int, dtype: str, tables: Tables | None) -> StepCost:
    """The cost of steps kernel by kernel: from measurements, or from the data sheet where `tables` is None.

    Raises:
        ProfileError: The model does not divide, or dtype, head size or GPU are not covered.
    """
    if dtype not in BYTES:
        raise ProfileError(f"dtype {dtype!r}; allowed: {', '.join(BYTES)}")
    check_tp(model, tp)
    gpu = load_gpu(gpu_name)
    kernels: Kernels
    kernels = DataSheetKernels(model, tp, dtype, gpu) if tables is None else MeasuredKernels(model, tp, dtype, gpu, tables)
    return StepCost(model, tp, dtype, kernels)


def compose(
    model: ModelConfig,
    gpu_name: str,
    *,
    tp: int = 1,
    dtype: str = "bfloat16",
    tables: Tables | None = None,
    host: Host = NO_HOST,
    utilisation: float = UTILISATION,
    name: str | None = None,
) -> Profile:
    """Makes a profile without an engine.

    Args:
        model: Its shape (`load_model`).
        gpu_name: Name of a GPU in gpus.json.
        tp: GPUs that the model is split among.
        dtype: `bfloat16`, or `fp8` for the layers' matrices; KV cache and output head stay in 16 bit.
        tables: The GPU's measured kernels (`read_tables(...)[gpu_name]`); None for a roofline from its data sheet.
        host: What the engine adds to the kernels; nothing by default.
        utilisation: Share of the memory that the engine takes.
        name: The profile's name; `profile_name` by default.

    Returns:
        The profile. Its `source` says what was measured, what estimated, and how far its numbers are from the sum of the kernels.

    Raises:
        ProfileError: The model does not divide or does not fit, or something was not measured.
    """
    gpu = load_gpu(gpu_name)
    cost = step_cost(model, gpu_name, tp=tp, dtype=dtype, tables=tables)
    seqs, tokens = gpu.engine_limits(gpu_name)
    blocks = kv_blocks(model, gpu, gpu_name=gpu_name, tp=tp, dtype=dtype, seqs=seqs, tokens=tokens, utilisation=utilisation)
    reduced = reduce_cost(cost, kv_capacity_tokens=blocks * BLOCK_TOKENS, max_tokens=PREFILL_TOKENS)
    profile = Profile(
        name=name or profile_name(gpu_name, model, tp, dtype),
        gpu=gpu_name,
        model=model.name,
        tp=tp,
        dtype=dtype,
        source=_source(cost, gpu, reduced, host, utilisation),
        step_ms=rounded(reduced.step_ms + host.step_ms),
        token_curve=reduced.token_curve,
        prefill_ms_per_token=reduced.prefill_ms_per_token,
        prefill_ms_per_ktoken_sq=reduced.prefill_ms_per_ktoken_sq,
        decode_ms_per_seq=rounded(reduced.decode_ms_per_seq + host.ms_per_seq),
        decode_ms_per_kv_ktoken=reduced.decode_ms_per_kv_ktoken,
        request_ms=host.request_ms,
        kv_blocks=blocks,
        kv_bytes_per_token=model.kv_bytes_per_token(tp),
        swap_gb_per_s=rounded(HOST_SHARE * tp * gpu.host_bytes_per_s * 1e-9),
        memory_bytes=tp * gpu.memory_bytes,
        weight_bytes=model.weight_bytes(tp, dtype),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=min(model.max_position_embeddings, blocks * BLOCK_TOKENS),
    )
    check_profile(profile)
    return profile


def _source(cost: StepCost, gpu: Gpu, reduced: Reduced, host: Host, utilisation: float) -> str:
    weights = cost.model.weight_bytes(cost.tp, cost.dtype)
    parts = [cost.kernels.note, f"Estimated: sampling, {SAMPLER_BYTES} bytes per logit."]
    if cost.model.num_experts:
        parts.append(
            "Estimated: experts, as one GEMM that reads the weights of the experts touched when tokens pick evenly; fused kernels for "
            "experts are slower than that at large batches."
        )
    if host.step_ms or host.ms_per_seq:
        parts.append(f"Engine: {host.step_ms:g} ms per step and {host.ms_per_seq:g} ms per sequence are added, {host.note}.")
    else:
        parts.append("Left out: gaps between kernels and host work, so a real engine is slower.")
    parts.append(f"Error against the summed kernels: decode {reduced.decode.text()}, prefill {reduced.prefill.text()}.")
    parts.append(
        f"kv_blocks: {utilisation:.0%} of {cost.tp} x {gpu.memory_bytes / 1e9:.1f} GB less {weights / 1e9:.1f} GB of weights, "
        f"{RUNTIME_BYTES / 1e9:g} GB per GPU for the runtime and the values of the largest step."
    )
    return " ".join(parts)
