"""Performance profiles: how long one step of an engine takes on one GPU with one model, and what fits into its memory."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engines.errors import ProfileError

Ms = Annotated[float, Meta(ge=0, le=1e6)]
Positive = Annotated[int, Meta(ge=1, le=1 << 40)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step time is linear in the step's work, the form that DistServe and Vidur fit to measurements.

    Attributes:
        name: File name without `.json`.
        gpu: GPU the numbers stand for. Likewise `model`, `tp` (tensor parallel size) and `dtype`.
        source: How the numbers came about, in words.
        step_ms: What each step costs however little it does: reading the weights and launching.
        prefill_ms_per_token: Added per prompt token computed in the step.
        prefill_ms_per_ktoken_sq: Added per million query-key pairs of the prompt tokens' causal attention.
        decode_ms_per_seq: Added per sequence that decodes one token.
        decode_ms_per_kv_ktoken: Added per 1000 cached tokens that the decoding sequences read.
        block_size: Tokens per KV block.
        kv_blocks: KV blocks on the GPU; they hold at least one sequence of `max_model_len`.
        kv_bytes_per_token: 2 x layers x KV heads x head size x bytes per element.
        max_num_seqs: Sequences that may run at once, at start.
        max_num_batched_tokens: Tokens per step, at start.
        max_model_len: Prompt and output of one sequence together, tokens.
    """

    name: str
    gpu: str
    model: str
    source: str
    tp: Positive = 1
    dtype: str = "bfloat16"
    step_ms: Annotated[float, Meta(gt=0, le=1e6)]
    prefill_ms_per_token: Ms
    prefill_ms_per_ktoken_sq: Ms
    decode_ms_per_seq: Ms
    decode_ms_per_kv_ktoken: Ms
    block_size: Positive = 16
    kv_blocks: Positive
    kv_bytes_per_token: Positive
    max_num_seqs: Positive = 256
    max_num_batched_tokens: Positive = 2048
    max_model_len: Positive

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens the KV cache holds."""
        return self.kv_blocks * self.block_size

    def step_duration_s(self, *, prefill_tokens: int, prefill_pairs: int, decode_seqs: int, decode_kv_tokens: int) -> float:
        """Seconds that one step takes.

        Args:
            prefill_tokens: Prompt tokens computed (recomputed ones too).
            prefill_pairs: Query-key pairs of their attention: for a chunk of `c` tokens after `s`, `c*s + c*(c+1)/2`.
            decode_seqs: Sequences that decode one token.
            decode_kv_tokens: Cached tokens those sequences read, summed.
        """
        ms = (
            self.step_ms
            + self.prefill_ms_per_token * prefill_tokens
            + self.prefill_ms_per_ktoken_sq * prefill_pairs * 1e-6
            + self.decode_ms_per_seq * decode_seqs
            + self.decode_ms_per_kv_ktoken * decode_kv_tokens * 1e-3
        )
        return ms * 1e-3


def _shipped() -> Traversable:
    return resources.files("engines.sim") / "profiles"


def profile_names() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    return sorted(entry.name.removesuffix(".json") for entry in _shipped().iterdir() if entry.name.endswith(".json"))


def load_profile(name_or_path: str) -> Profile:
    """Reads a profile: a shipped one by its name, or any file by a path that ends in `.json`.

    Raises:
        ProfileError: It is not there, is not JSON, or a field is missing, unknown or out of range.
    """
    try:
        if name_or_path.endswith(".json"):
            data = Path(name_or_path).read_bytes()
        elif name_or_path in profile_names():
            data = (_shipped() / f"{name_or_path}.json").read_bytes()
        else:
            allowed = ", ".join(profile_names())
            raise ProfileError(f"profile {name_or_path!r} is unknown; allowed: {allowed}, or the path of a .json file")
    except OSError as error:
        raise ProfileError(f"profile {name_or_path}: {error.strerror}") from error
    return parse_profile(data, origin=name_or_path)


def parse_profile(data: bytes, *, origin: str) -> Profile:
    """Decodes and checks a profile document.

    Args:
        data: The JSON document.
        origin: Where it came from, for the error's text.

    Raises:
        ProfileError: Names the field and what is allowed.
    """
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise ProfileError(f"profile {origin}: {error}") from error
    if profile.kv_capacity_tokens < profile.max_model_len:
        raise ProfileError(
            f"profile {origin}: kv_blocks {profile.kv_blocks} x block_size {profile.block_size} hold {profile.kv_capacity_tokens} tokens; "
            f"allowed: at least max_model_len {profile.max_model_len}"
        )
    return profile
