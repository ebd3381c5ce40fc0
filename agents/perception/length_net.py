"""The shipped model of output lengths from prompts: bag of words and pairs, two small layers, seven quantiles. Runs on numpy alone.

It is trained by `agents.perception.training.lengths.fitting` on permissively licensed outputs of language models and tells lengths of an
average model. Its last hidden layer is what `agents.perception.lengths` goes on learning with.
"""

import base64
import math
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.perception.input_ranges import InputRanges
from agents.perception.length_text import DENSE, PromptFeatures, features_of
from agents.perception.reading import PromptView
from controller.core.errors import ModelError
from controller.core.lengths import LEVELS, MEDIAN

FILE = "lengths.json"
SHIPPED = Path(__file__).parent / "models" / "lengths"
FORMAT = 1
OUTLIER = 5.0
"""Standard deviations to which a unit of the hidden layer is bounded for those who learn on it."""
CONSTANT = 999.0
"""Scale from which an input was constant in training: its weights were never trained, so it is left out."""
TYPICAL = 3.0
"""Standard deviations around the mean that stand for the range of an input where the file does not state it."""

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
    widening: float
    offsets: dict[str, float]
    newcomers: float = 0.0
    dense_low: list[float] = []
    dense_high: list[float] = []


class Told(msgspec.Struct, frozen=True):
    """What the net says of one prompt.

    Attributes:
        log_lengths: Quantiles of the log output length at `LEVELS`, ascending.
        hidden: Last hidden layer, standardised, and a 1 at its end.
    """

    log_lengths: list[float]
    hidden: Floats


class PromptNet:
    """A trained net; it holds no state between calls.

    Attributes:
        width: Length of `Told.hidden`.
        offsets: Verbosity of known models (log), by `length_names.model_key`.
        newcomers: Verbosity to expect of a model never heard of (log).
        ranges: Bounds of the dense inputs in training, with a count of what lay outside.
    """

    def __init__(self, stored: _Stored) -> None:
        self._words: dict[str, int] = {}
        self._pairs: dict[tuple[str, str], int] = {}
        for row, term in enumerate(stored.vocabulary):
            first_word, _, second_word = term.partition(" ")
            if second_word:
                self._pairs[first_word, second_word] = row
            else:
                self._words[term] = row
        # Unknown terms all fall on one last row of zeros.
        self._unknown = len(stored.vocabulary)
        first, second = stored.hidden
        self.width = second + 1
        self.offsets = dict(stored.offsets)
        self.newcomers = stored.newcomers
        scale = np.asarray(stored.embedding_scale, np.float32)
        embedding = _matrix(stored.embedding, "int8", len(stored.vocabulary), stored.width).astype(np.float32) * scale
        inputs = stored.width + len(stored.dense)
        shapes = [(first, inputs), (1, first), (second, first), (1, second), (len(LEVELS), second), (1, len(LEVELS))]
        if len(stored.layers) != len(shapes):
            raise ModelError(f"layers: {len(stored.layers)} matrices; {len(shapes)} are needed")
        parts = [_matrix(text, "float16", *shape).astype(np.float32) for text, shape in zip(stored.layers, shapes, strict=True)]
        mean, by = np.asarray(stored.dense_mean, np.float32), np.asarray(stored.dense_scale, np.float32)
        self.ranges = _ranges(stored)
        by = np.where(by >= CONSTANT, np.float32(0.0), by)
        # Standardising the dense features is part of the first layer.
        # So is what the words' part of it makes of each term: layers are linear before their bend.
        self._terms: Floats = np.vstack((embedding @ parts[0][:, : stored.width].T, np.zeros((1, first), np.float32)))
        self._w1_dense = np.ascontiguousarray(parts[0][:, stored.width :] * by)
        self._b1 = parts[1][0] - self._w1_dense @ mean
        self._w2, self._w3 = parts[2], parts[4]
        self._b2, self._b3 = parts[3][0], parts[5][0]
        self._widening = stored.widening
        self._hidden_mean = np.append(np.asarray(stored.hidden_mean, np.float32), np.float32(-1.0))
        self._hidden_scale = np.append(np.asarray(stored.hidden_scale, np.float32), np.float32(1.0))

    def tell_of(self, view: PromptView) -> Told:
        """Quantiles and hidden layer for one prompt as perception sees it."""
        return self.tell(features_of(view))

    def tell(self, features: PromptFeatures) -> Told:
        """Quantiles and hidden layer for one prompt."""
        words, unknown = features.words, self._unknown
        rows = [*map(self._words.get, words, repeat(unknown)), *map(self._pairs.get, pairwise(words), repeat(unknown))]
        known = len(rows) - rows.count(unknown)
        first = self._w1_dense @ np.array(self.ranges.clip(features.dense), np.float32) + self._b1
        if known:
            pooled = np.add.reduce(self._terms.take(rows, 0), 0)
            pooled *= 1.0 / math.sqrt(known)
            first += pooled
        np.maximum(first, 0.0, out=first)
        second = self._w2 @ first
        second += self._b2
        hidden = np.zeros(self.width, np.float32)
        bent = hidden[:-1]
        np.maximum(second, 0.0, out=bent)
        outputs = (self._w3 @ bent + self._b3).tolist()
        hidden -= self._hidden_mean
        hidden *= self._hidden_scale
        np.minimum(hidden, OUTLIER, out=hidden)
        return Told(spread(outputs, self._widening), hidden)


def spread(outputs: list[float], widening: float) -> list[float]:
    """The last layer's numbers as ascending quantiles: the median, and steps outwards that are positive by softplus, times `widening`."""
    quantiles = [outputs[MEDIAN]] * len(outputs)
    for place in range(MEDIAN + 1, len(outputs)):
        quantiles[place] = quantiles[place - 1] + widening * _softplus(outputs[place])
    for place in range(MEDIAN - 1, -1, -1):
        quantiles[place] = quantiles[place + 1] - widening * _softplus(outputs[place])
    return quantiles


def _softplus(value: float) -> float:
    return math.log1p(math.exp(value)) if value < 30.0 else value


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


def _ranges(stored: _Stored) -> InputRanges:
    """The stated ranges of the dense inputs, or typical ones; `hidden` is 0 or 1 and was trained with both."""
    if stored.dense_low:
        return InputRanges(stored.dense_low, stored.dense_high, stored.dense)
    low, high = [], []
    for name, mean, scale in zip(stored.dense, stored.dense_mean, stored.dense_scale, strict=True):
        reach = 0.0 if scale >= CONSTANT else TYPICAL / scale
        low.append(0.0 if name == "hidden" else mean - reach)
        high.append(1.0 if name == "hidden" else mean + reach)
    return InputRanges(low, high, stored.dense)


def _matrix(text: str, kind: str, rows: int, columns: int) -> NDArray[Any]:
    data = base64.b64decode(text)
    dtype = np.dtype(kind).newbyteorder("<")
    if len(data) != rows * columns * dtype.itemsize:
        raise ModelError(f"a matrix of {rows} x {columns} {kind} has {len(data)} bytes; {rows * columns * dtype.itemsize} are needed")
    return np.frombuffer(data, dtype).reshape(rows, columns)
