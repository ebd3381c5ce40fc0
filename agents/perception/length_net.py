"""The shipped model of output lengths from prompts: bag of words and pairs, two small layers, seven quantiles. Runs on numpy alone.

It is trained by `agents.perception.length_training` on permissively licensed outputs of language models and tells lengths of an average
model. Its last hidden layer is what `agents.perception.lengths` goes on learning with.
"""

import base64
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.perception.length_text import DENSE, PromptFeatures, terms
from controller.core.errors import ModelError
from controller.core.lengths import LEVELS, MEDIAN

FILE = "lengths.json"
SHIPPED = Path(__file__).parent / "models" / "lengths"
FORMAT = 1

Floats = NDArray[np.float32]


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: matrices as base64 of little-endian numbers, row by row."""

    format: int
    levels: list[float]
    dense: list[str]
    vocabulary: list[str]
    width: int
    hidden: list[int]
    embedding: str
    embedding_scale: list[float]
    dense_mean: list[float]
    dense_scale: list[float]
    layers: list[str]
    hidden_mean: list[float]
    hidden_scale: list[float]
    offsets: dict[str, float]


class Told(msgspec.Struct, frozen=True):
    """What the net says of one prompt.

    Attributes:
        log_lengths: Quantiles of the log output length at `LEVELS`, ascending.
        hidden: Last hidden layer, standardised.
    """

    log_lengths: Floats
    hidden: Floats


class PromptNet:
    """A trained net. Not thread-safe only in that numpy is not; it holds no state between calls.

    Attributes:
        width: Length of `Told.hidden`.
        offsets: Verbosity of known models (log), by `length_names.model_key`.
    """

    def __init__(self, stored: _Stored) -> None:
        self._rows = {term: row for row, term in enumerate(stored.vocabulary)}
        first, second = stored.hidden
        self.width = second
        self.offsets = dict(stored.offsets)
        scale = np.asarray(stored.embedding_scale, np.float32)
        self._embedding: Floats = _matrix(stored.embedding, "int8", len(stored.vocabulary), stored.width).astype(np.float32) * scale
        self._dense_mean = np.asarray(stored.dense_mean, np.float32)
        self._dense_scale = np.asarray(stored.dense_scale, np.float32)
        inputs = stored.width + len(stored.dense)
        shapes = [(first, inputs), (1, first), (second, first), (1, second), (len(LEVELS), second), (1, len(LEVELS))]
        if len(stored.layers) != len(shapes):
            raise ModelError(f"layers: {len(stored.layers)} matrices; {len(shapes)} are needed")
        parts = [_matrix(text, "float16", *shape).astype(np.float32) for text, shape in zip(stored.layers, shapes, strict=True)]
        self._w1, self._w2, self._w3 = parts[0], parts[2], parts[4]
        self._b1, self._b2, self._b3 = parts[1][0], parts[3][0], parts[5][0]
        self._hidden_mean = np.asarray(stored.hidden_mean, np.float32)
        self._hidden_scale = np.asarray(stored.hidden_scale, np.float32)

    def tell(self, features: PromptFeatures) -> Told:
        """Quantiles and hidden layer for one prompt."""
        rows = self._rows
        known = [rows[term] for term in terms(features.words) if term in rows]
        pooled = self._embedding[known].sum(axis=0) / len(known) ** 0.5 if known else np.zeros(self._embedding.shape[1], np.float32)
        dense = (np.array(features.dense, np.float32) - self._dense_mean) * self._dense_scale
        inputs = np.concatenate((pooled, np.clip(dense, -6.0, 6.0)))
        first = np.maximum(self._w1 @ inputs + self._b1, 0.0)
        hidden = np.maximum(self._w2 @ first + self._b2, 0.0)
        return Told(spread(self._w3 @ hidden + self._b3), np.clip((hidden - self._hidden_mean) * self._hidden_scale, -4.0, 4.0))


def spread(outputs: Floats) -> Floats:
    """The last layer's numbers as ascending quantiles: the median, and steps outwards that are positive by softplus."""
    steps = np.logaddexp(outputs, np.float32(0.0))
    quantiles = np.empty_like(outputs)
    quantiles[MEDIAN] = outputs[MEDIAN]
    quantiles[MEDIAN + 1 :] = outputs[MEDIAN] + np.cumsum(steps[MEDIAN + 1 :])
    quantiles[:MEDIAN] = outputs[MEDIAN] - np.cumsum(steps[:MEDIAN][::-1])[::-1]
    return quantiles


def load(folder: Path) -> PromptNet:
    """Reads a net from its folder.

    Raises:
        ModelError: The file is missing, is not one, or was made for other levels or features.
    """
    path = folder / FILE
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path} cannot be read as a length model: {error}") from error
    if stored.format != FORMAT or tuple(stored.levels) != LEVELS or tuple(stored.dense) != DENSE:
        raise ModelError(f"{path} was made for other quantile levels or features: format {stored.format}, needed {FORMAT}; train it again")
    return PromptNet(stored)


def _matrix(text: str, kind: str, rows: int, columns: int) -> NDArray[Any]:
    data = base64.b64decode(text)
    dtype = np.dtype(kind).newbyteorder("<")
    if len(data) != rows * columns * dtype.itemsize:
        raise ModelError(f"a matrix of {rows} x {columns} {kind} has {len(data)} bytes; {rows * columns * dtype.itemsize} are needed")
    return np.frombuffer(data, dtype).reshape(rows, columns)
