"""Performance profiles: the time of one engine step for a model on certain GPUs, and the size of their memory."""

from bisect import bisect_right
from difflib import get_close_matches
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hmas.engines.errors import ProfileError

Ms = Annotated[float, Meta(ge=0, le=1e6)]
Positive = Annotated[int, Meta(ge=1, le=1 << 40)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Tokens = Annotated[int, Meta(ge=0, le=1 << 20)]
Curve = Annotated[tuple[tuple[Tokens, Ms], ...], Meta(max_length=256)]

_TABLE_TOKENS = 1 << 14
"""Steps of up to this many tokens are looked up in a table; the limit keeps the table below a megabyte."""

_EXAMPLES = ("a100-qwen3-8b", "demo-small", "h100-llama-3-70b-tp4")

_EDITIONS = ("meta-", "-hf", "-instruct2", "-instruct", "-chat", "-base")
"""Parts of a model's name that do not affect its shape, and so not its speed."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Step time: a curve over the step's tokens plus terms linear in its attention work.

    DistServe and Vidur fit the linear form to measurements. The curve adds what the linear form misses: the transition of the GEMMs from
    memory-bound (reading weights) to compute-bound. All figures are for one instance, which is `tp` GPUs that work as one.

    Attributes:
        name: File name without `.json`.
        gpu: The GPU of these figures; likewise `model`, `tp` (tensor parallel size) and `dtype`.
        source: The origin of the figures, as text.
        step_ms: Fixed cost of each step: launches, host work and, without a `token_curve`, reading the weights.
        token_curve: Breakpoints (tokens in the step, ms); each prompt token and each decoding sequence counts as one token. Tokens rise
            strictly, ms never fall. Linear in between, flat before the first, continued with the last slope. Empty: 0 everywhere.
        prefill_ms_per_token: Added per prompt token computed in the step.
        prefill_ms_per_ktoken_sq: Added per million query-key pairs of the prompt tokens' causal attention.
        prefill_ms_per_seq: Added per sequence of which prompt tokens are computed: the cost of a new sequence regardless of its length.
        decode_ms_per_seq: Added per sequence that decodes one token.
        decode_ms_per_kv_ktoken: Added per 1000 cached tokens that the decoding sequences read.
        request_ms: Time that the engine's front end spends on each request before the scheduler receives it: HTTP, tokenization.
        block_size: Tokens per KV block.
        kv_blocks: KV blocks of the instance; they hold at least one sequence of `max_model_len`.
        kv_bytes_per_token: 2 x layers x KV heads x head size x bytes per element, over all GPUs of the instance.
        swap_gb_per_s: Speed at which KV moves between the instance's GPUs and the host, 1e9 bytes/s, all GPUs together; 0: no swapping.
        memory_bytes: Memory of the instance's GPUs together; 0: unknown.
        weight_bytes: The model's weights on the instance's GPUs together; 0: unknown.
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
    step_ms: Ms
    token_curve: Curve = ()
    prefill_ms_per_token: Ms
    prefill_ms_per_ktoken_sq: Ms
    decode_ms_per_seq: Ms
    decode_ms_per_kv_ktoken: Ms
    prefill_ms_per_seq: Ms = 0.0
    request_ms: Ms = 0.0
    block_size: Positive = 16
    kv_blocks: Positive
    kv_bytes_per_token: Positive
    swap_gb_per_s: Annotated[float, Meta(ge=0, le=1e5)] = 0.0
    memory_bytes: Bytes = 0
    weight_bytes: Bytes = 0
    max_num_seqs: Positive = 256
    max_num_batched_tokens: Positive = 2048
    max_model_len: Positive

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens the KV cache holds."""
        return self.kv_blocks * self.block_size

    def curve_ms(self, tokens: int) -> float:
        """The `token_curve` at a number of tokens, ms."""
        curve = self.token_curve
        if not curve:
            return 0.0
        right = bisect_right(curve, tokens, key=itemgetter(0))
        if right == 0 or len(curve) == 1:
            return curve[0][1]
        (from_tokens, from_ms), (to_tokens, to_ms) = curve[right - 1 : right + 1] if right < len(curve) else curve[-2:]
        return from_ms + (to_ms - from_ms) * (tokens - from_tokens) / (to_tokens - from_tokens)

    @cached_property
    def _table(self) -> tuple[float, ...]:
        """`step_ms` plus the curve, by number of tokens: a cache, because steps are timed millions of times with few different numbers."""
        curve = self.token_curve
        if not curve:
            return ()
        end = min(curve[-1][0], self.max_num_batched_tokens, _TABLE_TOKENS)
        table = [self.step_ms + curve[0][1]] * curve[0][0]
        for (from_tokens, from_ms), (to_tokens, to_ms) in pairwise(curve):
            if from_tokens > end:
                break
            count, rise = to_tokens - from_tokens, to_ms - from_ms
            table += [self.step_ms + (from_ms + rise * index / count) for index in range(min(count, end + 1 - from_tokens))]
        return tuple(table[: end + 1])

    def _base_ms(self, tokens: int) -> float:
        table = self._table
        return table[tokens] if tokens < len(table) else self.step_ms + self.curve_ms(tokens)

    def step_duration_s(
        self, *, prefill_tokens: int, prefill_pairs: int, decode_seqs: int, decode_kv_tokens: int, prefill_seqs: int = 0
    ) -> float:
        """Seconds that one step takes.

        Args:
            prefill_tokens: Prompt tokens computed, including recomputed ones.
            prefill_pairs: Query-key pairs of their attention: for a chunk of `c` tokens after `s`, `c*s + c*(c+1)/2`.
            decode_seqs: Sequences that decode one token.
            decode_kv_tokens: Sum of the cached tokens that those sequences read.
            prefill_seqs: Sequences that the prompt tokens belong to.
        """
        tokens = prefill_tokens + decode_seqs
        table = self._table
        ms = (
            (table[tokens] if tokens < len(table) else self._base_ms(tokens))
            + self.prefill_ms_per_token * prefill_tokens
            + self.prefill_ms_per_ktoken_sq * prefill_pairs * 1e-6
            + self.prefill_ms_per_seq * prefill_seqs
            + self.decode_ms_per_seq * decode_seqs
            + self.decode_ms_per_kv_ktoken * decode_kv_tokens * 1e-3
        )
        return ms * 1e-3

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """Time of a decode-only step as a linear function of the cached tokens that it reads: (ms, ms per token)."""
        return self._base_ms(decode_seqs) + self.decode_ms_per_seq * decode_seqs, self.decode_ms_per_kv_ktoken * 1e-3


def _some_names(unknown: str) -> str:
    """The most similar shipped names, or a few examples: there are too many to list them all."""
    names = profile_names()
    near = get_close_matches(unknown, names, n=5, cutoff=0.7) or [name for name in _EXAMPLES if name in names]
    return f"{', '.join(near)} and {len(names) - len(near)} others (docs/profiles.md)"


def _shipped() -> Traversable:
    return resources.files("hmas.engines.sim") / "profiles"


def profile_names() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    return sorted(entry.name.removesuffix(".json") for entry in _shipped().iterdir() if entry.name.endswith(".json"))


def load_profile(name_or_path: str) -> Profile:
    """Reads a profile: a shipped one by its name, or any file by a path that ends in `.json`.

    Raises:
        ProfileError: The profile does not exist or is not JSON, or a field is missing, unknown or out of range.
    """
    try:
        if name_or_path.endswith(".json"):
            data = Path(name_or_path).read_bytes()
        elif name_or_path in profile_names():
            data = (_shipped() / f"{name_or_path}.json").read_bytes()
        else:
            raise ProfileError(f"profile {name_or_path!r} is unknown; allowed: {_some_names(name_or_path)}, or the path of a .json file")
    except OSError as error:
        raise ProfileError(f"profile {name_or_path}: {error.strerror}") from error
    return parse_profile(data, origin=name_or_path)


def parse_profile(data: bytes, *, origin: str) -> Profile:
    """Decodes and checks a profile's JSON document; errors name its `origin`.

    Raises:
        ProfileError: Names the field and what is allowed.
    """
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise ProfileError(f"profile {origin}: {error}") from error
    check_profile(profile, origin=origin)
    return profile


def check_profile(profile: Profile, *, origin: str | None = None) -> None:
    """Checks properties beyond single fields: the curve's shape, and whether everything fits into memory.

    Args:
        profile: A profile whose single fields are in range.
        origin: Where it came from, for error messages; the profile's name if None.

    Raises:
        ProfileError: Names the field, the value and what is allowed.
    """
    at = f"profile {profile.name if origin is None else origin}"
    curve = profile.token_curve
    for (before_tokens, before_ms), (tokens, ms) in pairwise(curve):
        if tokens <= before_tokens:
            raise ProfileError(f"{at}: token_curve has {tokens} tokens after {before_tokens}; allowed: strictly rising")
        if ms < before_ms:
            raise ProfileError(f"{at}: token_curve falls from {before_ms} ms to {ms} ms at {tokens} tokens; allowed: never falling")
    if profile.step_ms + profile.curve_ms(0) <= 0:
        raise ProfileError(f"{at}: step_ms {profile.step_ms}; allowed: above 0, or a token_curve that begins above 0")
    _check_memory(profile, at)


def _check_memory(profile: Profile, at: str) -> None:
    """Checks that weights and KV cache fit into the instance's memory, if known, and the longest sequence into the KV cache."""
    memory, weights = profile.memory_bytes, profile.weight_bytes
    if memory and weights >= memory:
        raise ProfileError(
            f"{at}: weight_bytes {weights} of {profile.model} do not fit into memory_bytes {memory} ({profile.tp} x {profile.gpu}); "
            f"allowed: less than that; use more or larger GPUs"
        )
    kv_bytes = profile.kv_capacity_tokens * profile.kv_bytes_per_token
    if memory and weights + kv_bytes > memory:
        raise ProfileError(
            f"{at}: kv_blocks {profile.kv_blocks} take {kv_bytes} bytes; allowed: up to {memory - weights}, memory_bytes less weight_bytes"
        )
    if profile.kv_capacity_tokens < profile.max_model_len:
        raise ProfileError(
            f"{at}: kv_blocks {profile.kv_blocks} x block_size {profile.block_size} hold {profile.kv_capacity_tokens} tokens; "
            f"allowed: at least max_model_len {profile.max_model_len}"
        )


def same_model(one: str, other: str) -> bool:
    """Whether two names mean a model of the same shape; publisher, letter case and chat tuning (`-Instruct`, `-hf`, ...) are ignored."""
    return shape_name(one) == shape_name(other)


def shape_name(model: str) -> str:
    """The name that all models of one shape share, in lower case."""
    name = model.rsplit("/", 1)[-1].lower().replace("llama-3.1", "llama-3")
    for edition in _EDITIONS:
        name = name.replace(edition, "")
    return name


def faster(profile: Profile, speed: float) -> Profile:
    """The profile with every time divided by `speed`; sizes and limits are unchanged."""
    if speed == 1.0:
        return profile
    times = {name: getattr(profile, name) / speed for name in Profile.__struct_fields__ if "_ms" in name}
    curve = tuple((tokens, ms / speed) for tokens, ms in profile.token_curve)
    note = f"{profile.source} Run {speed:g} times faster than that."
    return msgspec.structs.replace(profile, source=note, token_curve=curve, swap_gb_per_s=profile.swap_gb_per_s * speed, **times)
