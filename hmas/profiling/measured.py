"""Makes a profile document from a fit and the known data of an engine."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from hmas.engines.sim.profile import Profile, parse_profile
from hmas.profiling.coefficients import Fit, Misfit
from hmas.profiling.probe import Findings
from hmas.profiling.target import ProbeError, Target

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_TOKENS_PER_STEP = 2048
DEFAULT_KV_BYTES = 131_072
DEFAULT_BLOCK = 16


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """Values that the operator states; None for values to read from the engine.

    Attributes:
        gpu: The GPU's name in the profile. `tp`, `dtype` likewise.
        kv_tokens: Tokens the KV cache holds.
        kv_bytes_per_token: 2 x layers x KV heads x head size x bytes per element; no engine reports it over HTTP.
        max_model_len, max_num_seqs, max_num_batched_tokens: As in `Profile`.
    """

    gpu: str = "unknown"
    tp: int = 1
    dtype: str = "bfloat16"
    kv_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes for the profile, and which of them are assumed."""

    block_size: int
    kv_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    assumed: tuple[str, ...] = ()


def limits_of(target: Target, stated: Stated) -> Limits:
    """Sizes from the operator, else from the engine, else vLLM's defaults.

    Raises:
        ProbeError: The context length or the KV cache's size is unknown; the error names the option.
    """
    length = stated.max_model_len or target.max_model_len
    if not length:
        raise ProbeError(f"{target.url} does not state the context length of {target.model!r}; give it with --max-model-len")
    kv_tokens = stated.kv_tokens or target.kv_tokens
    if not kv_tokens:
        raise ProbeError(f"{target.url} does not state the size of its KV cache; give it with --kv-tokens (see the engine's start-up log)")
    # One sequence of full length has to fit; an engine with a smaller cache accepts only shorter ones.
    length = min(length, kv_tokens)
    assumed = []
    seqs = stated.max_num_seqs or target.max_num_seqs
    if not seqs:
        seqs = DEFAULT_MAX_NUM_SEQS
        assumed.append(f"max_num_seqs {seqs}")
    budget = stated.max_num_batched_tokens or target.max_num_batched_tokens
    if not budget:
        budget = DEFAULT_TOKENS_PER_STEP
        assumed.append(f"max_num_batched_tokens {budget}")
    if not stated.kv_bytes_per_token:
        assumed.append(f"kv_bytes_per_token {DEFAULT_KV_BYTES}")
    return Limits(
        block_size=target.block_size or DEFAULT_BLOCK,
        kv_tokens=kv_tokens,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        assumed=tuple(assumed),
    )


def profile_of(name: str, *, target: Target, stated: Stated, limits: Limits, findings: Findings, fit: Fit) -> Profile:
    """Makes the profile, with the same checks as `load_profile`.

    Raises:
        ProfileError: A value is out of the range of profiles.
    """
    block = limits.block_size
    document: dict[str, Any] = {
        "name": name,
        "gpu": stated.gpu,
        "model": model_name(target),
        "source": source_text(target, limits, findings, fit.misfits),
        "tp": stated.tp,
        "dtype": stated.dtype,
        **{key: float(f"{value:.6g}") for key, value in fit.values.items()},
        "block_size": block,
        "kv_blocks": -(-limits.kv_tokens // block),
        "kv_bytes_per_token": stated.kv_bytes_per_token or DEFAULT_KV_BYTES,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": limits.max_model_len,
    }
    return parse_profile(msgspec.json.encode(document), origin=name)


def source_text(target: Target, limits: Limits, findings: Findings, misfits: tuple[Misfit, ...]) -> str:
    """The origin of the numbers as text, with the fit's error."""
    engine = f"{target.kind} {target.version}".strip()
    errors = ", ".join(f"{one.quantity} {one.median:.1%} at the median and {one.p90:.1%} at the 90th percentile" for one in misfits)
    text = (
        f"Measured by `hmas profile` on a live engine ({engine}, model {target.model}): {len(findings.prefills)} single prompts and "
        f"{len(findings.decodes)} batches that decoded, {findings.tokens} tokens in {findings.elapsed_s:.0f} s; non-negative least squares "
        f"on relative errors with a soft-L1 loss. Error of the fit: {errors}. request_ms holds the network and the front end."
    )
    return text + (f" Not stated by the engine, so assumed: {', '.join(limits.assumed)}." if limits.assumed else "")


def model_name(target: Target) -> str:
    """The model behind the served name; for a folder its last part, because the rest is specific to the machine."""
    return target.root.rstrip("/").rsplit("/", 1)[-1] if target.root.startswith(("/", ".")) else target.root or target.model


def slug(model: str, gpu: str) -> str:
    """A file name for a profile."""
    return re.sub(r"[^a-z0-9.]+", "-", f"{gpu}-{model.rsplit('/', 1)[-1]}".lower()).strip("-.") or "profile"


def document_of(profile: Profile) -> Mapping[str, Any]:
    """The profile as a JSON document, without optional fields that have their defaults."""
    built: Mapping[str, Any] = msgspec.to_builtins(profile)
    required = {"name", "gpu", "model", "source", "tp", "dtype"}
    defaults = {field.name: field.default for field in msgspec.structs.fields(Profile)}
    return {key: value for key, value in built.items() if key in required or defaults.get(key, msgspec.NODEFAULT) != value}
