"""The text of the embedded engine's answers: meaningless words, the same for the same prompt, and tool calls that fit their schema."""

import itertools
import math
from collections.abc import Sequence
from hashlib import blake2b
from statistics import NormalDist
from typing import Any

import orjson

WORDS: tuple[str, ...] = tuple(
    " the of and to in is that for it as with on be at by this from or an are was not have but all which one more will when who their"
    " other time some very what about out up into than them can only its over new after also two these may any such first most our way"
    " where even much state each".replace(" ", "\0 ").split("\0")[1:]
)
"""One word per token, each with its leading space."""

WORDS_JSON: tuple[bytes, ...] = tuple(orjson.dumps(word) for word in WORDS)

MEDIAN_OUTPUT_TOKENS = 150.0
SIGMA_OUTPUT_TOKENS = 0.8
MAX_DRAWN_OUTPUT_TOKENS = 4096
_MAX_SCHEMA_DEPTH = 8


def seed_of(text: str) -> int:
    """A 64-bit hash of the prompt, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def drawn_output_tokens(seed: int) -> int:
    """Output length of a request that sets none: log-normal, median 150, sigma 0.8, between 1 and 4096."""
    share = (seed % (1 << 32) + 0.5) / (1 << 32)
    length = MEDIAN_OUTPUT_TOKENS * math.exp(SIGMA_OUTPUT_TOKENS * NormalDist().inv_cdf(share))
    return max(1, min(MAX_DRAWN_OUTPUT_TOKENS, round(length)))


def word_index(seed: int, position: int) -> int:
    """Index of the word at a position of the answer; 1 is the first position."""
    return (seed + 7 * position) % len(WORDS)


def logprob(seed: int, position: int, rank: int = 0) -> float:
    """An artificial log probability of a token, below 0 and falling with its rank."""
    return -(((seed >> 8) + 13 * position) % 97) / 97 - 0.01 - rank


def split_text(text: str, count: int) -> list[str]:
    """Cuts `text` into exactly `count` pieces, longer ones first; if the text is too short, the last pieces are empty."""
    size, longer = divmod(len(text), count)
    cuts = [0]
    for index in range(count):
        cuts.append(cuts[-1] + size + (index < longer))
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def instance_of(schema: object, depth: int = 0) -> Any:
    """A small JSON value that fits a JSON Schema as tool definitions use it."""
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH:
        return "text"
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples", "anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if isinstance(options, list) and options:
            return options[0] if key in {"enum", "examples"} else instance_of(options[0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        kind = next(iter(kind), "string")
    return _instance_of_kind(str(kind), schema, depth)


def _instance_of_kind(kind: str, schema: dict[str, Any], depth: int) -> Any:
    if kind == "object":
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required", list(properties))
        return {name: instance_of(properties.get(name), depth + 1) for name in required if isinstance(name, str)}
    if kind == "array":
        count = schema.get("minItems", 0)
        return [instance_of(schema.get("items"), depth + 1) for _ in range(min(count if isinstance(count, int) else 0, 16))]
    if kind in {"integer", "number"}:
        low = schema.get("minimum", 1)
        return low if isinstance(low, int | float) else 1
    return {"boolean": True, "null": None}.get(kind, "text")
