"""Embeddings of the embedded engine: unit vectors derived from the text, computed at once and outside the batch."""

import base64
from hashlib import blake2b
from typing import Any, Literal

import msgspec
import numpy as np
import orjson

from hmas.engines.sim.wire import Refused, check_model
from hmas.engines.tokens import estimate_tokens

DIMENSIONS = 64
MAX_INPUTS = 2048


class _Body(msgspec.Struct):
    input: Any
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


def embed(data: bytes, *, model: str) -> bytes:
    """Returns the answer's document.

    Raises:
        Refused: The body is not JSON, the model is not served, or `input` is not a text, a token list or a list of those.
    """
    try:
        body = msgspec.json.decode(data, type=_Body)
    except msgspec.DecodeError as error:
        raise Refused(400, str(error)) from error
    check_model(body.model, model)
    inputs = body.input if isinstance(body.input, list) and body.input and isinstance(body.input[0], str | list) else [body.input]
    if len(inputs) > MAX_INPUTS:
        raise Refused(400, f"input: {len(inputs)} texts; allowed up to {MAX_INPUTS}", param="input")
    tokens = sum(_length(entry) for entry in inputs)
    rows = [{"object": "embedding", "index": i, "embedding": _encoded(entry, body.encoding_format)} for i, entry in enumerate(inputs)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps({"object": "list", "model": model, "data": rows, "usage": usage})


def _length(entry: object) -> int:
    if isinstance(entry, str):
        return estimate_tokens(entry)
    if isinstance(entry, list) and entry and all(isinstance(token, int) for token in entry):
        return len(entry)
    raise Refused(400, "input: allowed is a text, a list of token ids, or a list of those", param="input")


def _encoded(entry: object, form: str) -> list[float] | str:
    seed = int.from_bytes(blake2b(orjson.dumps(entry), digest_size=8).digest(), "big")
    vector = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype("<f4")
    vector /= np.linalg.norm(vector)
    if form == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return [float(value) for value in vector]
