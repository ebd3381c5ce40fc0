"""Normalises names of language models, so that a model's data are found under every name it is served by. Pure."""

import re
from collections.abc import Mapping

NAME_CHARS = 128
_PACKAGING = "meta ai instruct chat hf api it preview latest fp8 fp16 bf16 awq gptq gguf int4 int8 w4a16 quantized base per repository"
_DROPPED = frozenset(_PACKAGING.split())
_PART = re.compile(r"[a-z]+|\d+")
_SEPARATORS = re.compile(r"[\s_\-:@()+]+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LONG_NUMBER = 4
"""Fewest digits of a separate number that counts as a date or a build."""


def model_key(name: str) -> str:
    """Returns the normal form of a model's name: no organisation, no packaging, no date, no punctuation.

    `meta-llama/Meta-Llama-3.1-70B-Instruct`, `Llama-3.1-70B` and `llama31_70b` are the same model.
    """
    last = _DATE.sub("", name[:NAME_CHARS].lower().rsplit("/", 1)[-1]).replace(".", "")
    parts = [part for part in _SEPARATORS.split(last) if part and part not in _DROPPED]
    kept = [part for part in parts if not (part.isdigit() and len(part) >= _LONG_NUMBER)]
    return "".join("".join(_PART.findall(part)) for part in kept)


def known_offset(key: str, offsets: Mapping[str, float]) -> tuple[float, float]:
    """Returns what is known of a model's verbosity, as a logarithm, and how certain that is.

    Returns:
        Offset and certainty: 1 for the model itself; 0.5 for a shorter name that the key continues (`claude35` for `claude35sonnet`), at
        half the offset; 0 and 0 for an unknown model.
    """
    if key in offsets:
        return offsets[key], 1.0
    for end in range(len(key) - 1, 3, -1):
        if key[:end] in offsets and not (key[end].isdigit() and key[end - 1].isdigit()):
            return 0.5 * offsets[key[:end]], 0.5
    return 0.0, 0.0
