"""Bytes per token of a model's KV cache, from the attention fields of its public config.json, and where such files lie."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hmas.engines.errors import ProfileError

DATASETS_ENV = "HMAS_DATASETS_DIR"
KvDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8"]
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "fp8": 1}
"""Bytes of one element, by the names that config.json and engines use; fp8 in any of its formats (`fp8_e4m3`, ...)."""
_Positive = Annotated[int, Meta(ge=1, le=1 << 31)]
_Count = Annotated[int, Meta(ge=0, le=1 << 31)]


def datasets_dir() -> Path:
    """HMAS_DATASETS_DIR if set, else the package's own `hmas/data`, which is datasets/ in a source tree."""
    named = os.environ.get(DATASETS_ENV)
    return Path(named) if named else Path(__file__).parent.parent / "data"


class KvShape(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a model that determine the size of its KV cache, under the names of Hugging Face's config.json.

    With `kv_lora_rank` the attention is multi-head latent attention (DeepSeek-V2, 2024, section 2.1): each layer keeps one compressed
    vector of that width and one rotary key of `qk_rope_head_dim` per token, regardless of the number of heads.

    Attributes:
        dtype: Type of the weights; a KV cache of type `auto` has the same.
    """

    num_hidden_layers: _Positive
    num_attention_heads: _Positive
    num_key_value_heads: _Positive
    head_dim: _Positive
    kv_lora_rank: _Count = 0
    qk_rope_head_dim: _Count = 0
    dtype: str = "bfloat16"


def kv_bytes_per_token(shape: KvShape, *, tp: int = 1, dtype: KvDtype = "auto") -> int:
    """Bytes of one token in the KV cache on `tp` GPUs together.

    Keys and values of every layer take 2 x layers x KV heads x head size x bytes per element. The latent vector of multi-head latent
    attention is stored once, not as keys and values, and whole on every GPU. Layers with a sliding window store less, but are counted as if
    they had none: the estimate then holds requests back too early rather than too late.
    """
    name = shape.dtype if dtype == "auto" else dtype
    element = ELEMENT_BYTES[name.split("_")[0]]
    if shape.kv_lora_rank:
        return shape.num_hidden_layers * (shape.kv_lora_rank + shape.qk_rope_head_dim) * element * tp
    # A GPU holds its share of the heads; if there are fewer heads than GPUs, several hold the same one.
    heads_per_gpu = max(1, shape.num_key_value_heads // tp)
    return 2 * shape.num_hidden_layers * heads_per_gpu * tp * shape.head_dim * element


def model_names() -> list[str]:
    """Names of the models in datasets/models/, sorted."""
    return sorted(path.stem for path in (datasets_dir() / "models").glob("*.json"))


def read_document(name_or_path: str) -> tuple[dict[str, Any], str]:
    """Reads a config.json, by its name in datasets/models/ or by its path; returns the document and the file's path.

    Raises:
        ProfileError: The file does not exist or is not a JSON object.
    """
    is_path = name_or_path.endswith(".json")
    path = Path(name_or_path) if is_path else datasets_dir() / "models" / f"{name_or_path}.json"
    if not is_path and not path.is_file():
        raise ProfileError(f"model {name_or_path!r} is unknown; allowed: {', '.join(model_names())}, or the path of a config.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]), str(path)
    except OSError as error:
        raise ProfileError(f"model {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ProfileError(f"model {path}: {error}") from error


def with_heads(document: dict[str, Any]) -> dict[str, Any]:
    """A copy with the fields that config.json may leave out: as many KV heads as attention heads, and the head size."""
    filled = dict(document)
    heads = document.get("num_attention_heads")
    if filled.get("num_key_value_heads") is None:
        filled["num_key_value_heads"] = heads
    if filled.get("head_dim") is None and isinstance(heads, int) and heads and isinstance(document.get("hidden_size"), int):
        filled["head_dim"] = document["hidden_size"] // heads
    return filled


def parse_kv_shape(document: dict[str, Any], *, origin: str) -> KvShape:
    """Checks the fields of a config.json that concern the KV cache. Multimodal models have them under `text_config`.

    Raises:
        ProfileError: Names the file, the field, its value and what is allowed.
    """
    inner = document.get("text_config")
    if "num_hidden_layers" not in document and isinstance(inner, dict):
        document, origin = inner, f"{origin}: text_config"
    filled = with_heads(document)
    dtype = document.get("torch_dtype") or document.get("dtype") or "bfloat16"
    if dtype not in ELEMENT_BYTES:
        raise ProfileError(f"model {origin}: torch_dtype {dtype!r}; allowed: {', '.join(ELEMENT_BYTES)}")
    filled["dtype"] = dtype
    for field in ("kv_lora_rank", "qk_rope_head_dim"):
        filled[field] = filled.get(field) or 0
    try:
        shape = msgspec.convert(filled, KvShape)
    except msgspec.ValidationError as error:
        raise ProfileError(f"model {origin}: {error}") from error
    if shape.num_attention_heads % shape.num_key_value_heads:
        raise ProfileError(
            f"model {origin}: num_key_value_heads {shape.num_key_value_heads}; "
            f"allowed: a divisor of num_attention_heads {shape.num_attention_heads}"
        )
    return shape


def model_kv_bytes(name_or_path: str, *, tp: int = 1, dtype: KvDtype = "auto") -> int:
    """Bytes of one token in a model's KV cache on `tp` GPUs together, from its config.json.

    Raises:
        ProfileError: As `read_document` and `parse_kv_shape`; or neither of tp and KV heads divides the other.
    """
    document, origin = read_document(name_or_path)
    shape = parse_kv_shape(document, origin=origin)
    heads = shape.num_key_value_heads
    if not shape.kv_lora_rank and heads % tp and tp % heads:
        raise ProfileError(f"model {origin}: tp {tp} and num_key_value_heads {heads}; allowed: one divides the other")
    return kv_bytes_per_token(shape, tp=tp, dtype=dtype)
