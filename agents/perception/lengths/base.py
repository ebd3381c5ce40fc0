"""The shipped model of output lengths: it predicts an average model's answer to a question, as seven quantiles.

Weights of words and of pairs of words add up to one score. Boosted trees (CatBoost's oblivious trees, multi-quantile loss) read the score
and a dozen plain numbers of the question. Trees do not extrapolate, and every input is clipped to its range in training: for any input the
answer is one that occurred in training. It needs only numpy; `hmas.agents.perception.training.lengths` trains it.
"""

import base64
import copy
import math
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.ranges import RangeCounter
from hmas.agents.perception.lengths.text import NUMBERS, QuestionFeatures, features_of
from hmas.agents.perception.reading import PromptView
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS, MEDIAN

FILE = "lengths.json"
SHIPPED = Path(__file__).parent.parent / "models" / "lengths"
FORMAT = 2
INPUTS = (*NUMBERS, "word_score")
"""Names of the trees' inputs, in order."""


class Trees(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Oblivious trees of one depth; matrices are base64 of little-endian numbers, row by row.

    Attributes:
        inputs: Input that each level of each tree tests, shape (trees, depth), uint8.
        borders: Thresholds of the tests (true above them), float32, same shape; infinity where a tree is less deep.
        leaves: Values at the levels, shape (trees, 2 ** depth, levels), float16; the first test is the lowest bit of a leaf's number.
        bias: Added to the sum over the trees, by level.
    """

    count: int
    depth: int
    inputs: str
    borders: str
    leaves: str
    bias: list[float]


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file.

    Attributes:
        ranges: Lowest and highest value of every input in training.
        terms: Words, and pairs of words with a blank between; `weights` has the weight of each.
        intercept: The score of a question without known terms.
        widening: Factor by which quantiles lie further from the median than the trees predict, because a fit is too sure of its own data.
        offsets: Verbosity of known models (log), by `names.model_key`.
        longest: Tokens that 999 in 1,000 answers in training stayed below.
    """

    format: int
    levels: list[float]
    inputs: list[str]
    ranges: list[tuple[float, float]]
    terms: list[str]
    weights: list[float]
    intercept: float
    trees: Trees
    widening: float
    offsets: dict[str, float]
    longest: float


class Told(msgspec.Struct, frozen=True):
    """The prediction for one answer.

    Attributes:
        log_lengths: Quantiles of the log output length at `LEVELS`, ascending.
        inputs: Values of `INPUTS`, each scaled from -1 to 1 over its range.
    """

    log_lengths: list[float]
    inputs: NDArray[np.float32]


class LengthBase:
    """A trained model; its only mutable state counts inputs outside their ranges.

    Attributes:
        offsets, longest: As stored.
        ranges: Bounds of the inputs, with counts of values outside.
    """

    def __init__(self, stored: Stored) -> None:
        self.offsets, self.longest = dict(stored.offsets), stored.longest
        self.ranges = RangeCounter(dict(zip(stored.inputs, stored.ranges, strict=True)))
        if len(stored.terms) != len(stored.weights):
            raise ModelError(f"{len(stored.weights)} weights of {len(stored.terms)} terms; needed: one each")
        low, high = np.array(stored.ranges, np.float32).T
        self._middle, self._scale = (low + high) / 2.0, np.where(high > low, 2.0 / np.maximum(high - low, 1e-6), 0.0).astype(np.float32)
        self._words: dict[str, float] = {}
        self._pairs: dict[tuple[str, str], float] = {}
        for term, weight in zip(stored.terms, stored.weights, strict=True):
            first, _, second = term.partition(" ")
            if second:
                self._pairs[first, second] = weight
            else:
                self._words[term] = weight
        self._intercept = stored.intercept
        trees = stored.trees
        self._inputs = _matrix(trees.inputs, "u1", trees.count, trees.depth).astype(np.intp)
        self._borders = _matrix(trees.borders, "f4", trees.count, trees.depth)
        self._leaves = _matrix(trees.leaves, "f2", trees.count << trees.depth, len(LEVELS)).astype(np.float32)
        if len(trees.bias) != len(LEVELS) or int(self._inputs.max(initial=0)) >= len(INPUTS):
            raise ModelError(
                f"trees of {len(trees.bias)} levels ask about input {self._inputs.max(initial=0)}; needed: {len(LEVELS)} levels"
            )
        self._bits = 1 << np.arange(trees.depth)
        self._first_leaf = np.arange(trees.count) << trees.depth
        self._bias = np.array(trees.bias)
        self._widening = stored.widening

    def apart(self) -> Self:
        """Returns the same model with its own count of inputs outside their ranges."""
        twin = copy.copy(self)
        twin.ranges = RangeCounter(self.ranges.bounds)
        return twin

    def tell_of(self, view: PromptView) -> Told:
        """Predicts the answer to a request from its prompt view."""
        return self.tell(features_of(view))

    def tell(self, features: QuestionFeatures) -> Told:
        """Like `tell_of`, from the features of the question."""
        row = np.array(self.ranges.clip([*features.numbers, self.score(features.words)]), np.float32)
        leaves = self._first_leaf + (row[self._inputs] > self._borders) @ self._bits
        # Crossing levels are sorted (Chernozhukov et al., "Quantile and probability curves without crossing", 2010).
        raw: list[float] = sorted((self._leaves.take(leaves, 0).sum(0) + self._bias).tolist())
        middle = raw[MEDIAN]
        stated = [middle + self._widening * (value - middle) for value in raw]
        return Told(stated, (row - self._middle) * self._scale)

    def score(self, words: list[str]) -> float:
        """Returns the score of a question's words: the sum of the weights of its distinct known terms over the root of their number."""
        known = [weight for weight in map(self._words.get, dict.fromkeys(words), repeat(None)) if weight is not None]
        known += [weight for weight in map(self._pairs.get, dict.fromkeys(pairwise(words)), repeat(None)) if weight is not None]
        return self._intercept + (sum(known) / math.sqrt(len(known)) if known else 0.0)


def load(folder: Path) -> LengthBase:
    """Reads a model from its folder.

    Raises:
        ModelError: The file is missing, is no length model, or was made for other levels or inputs.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
        form = msgspec.json.decode(content, type=_Versioned)
        if form.format == FORMAT:
            stored = msgspec.json.decode(content, type=Stored)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path} cannot be read as a length model: {error}") from error
    if form.format != FORMAT or tuple(stored.levels) != LEVELS or tuple(stored.inputs) != INPUTS:
        raise ModelError(f"{path} was made for other quantile levels or inputs: format {form.format}, needed {FORMAT}; train it again")
    try:
        return LengthBase(stored)
    except ValueError as error:
        raise ModelError(f"{path} cannot be read as a length model: {error}") from error


class _Versioned(msgspec.Struct, frozen=True):
    format: int


def _matrix(text: str, kind: str, rows: int, columns: int) -> NDArray[Any]:
    data = base64.b64decode(text)
    dtype = np.dtype(kind).newbyteorder("<")
    if len(data) != rows * columns * dtype.itemsize:
        raise ModelError(f"a matrix of {rows} x {columns} {kind} has {len(data)} bytes; {rows * columns * dtype.itemsize} are needed")
    return np.frombuffer(data, dtype).reshape(rows, columns)
