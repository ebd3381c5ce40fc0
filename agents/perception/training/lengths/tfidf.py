"""The strongest plain baseline: ridge regression of log lengths on TF-IDF of words and pairs, with or without a mean per model. Pure."""

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]  # it ships no types

from agents.perception.reading import PromptView
from agents.perception.training.lengths.baselines import START, WINDOW
from agents.perception.training.lengths.data import LengthRow
from controller.core.lengths import LEVELS, MEDIAN
from controller.core.types import TaskType

Floats = NDArray[np.float64]

FIRST_FIT = 50
GROWTH = 1.7
"""The regression is fitted again whenever the rows seen have grown by this much: some fifteen times over 100,000 rows."""
PENALTIES = (0.3, 1.0, 3.0, 10.0)
"""Strengths of the ridge, of which the one with the smallest leave-one-out error is taken."""
CHOSEN_UP_TO = 800
"""Prompts up to which the strength is chosen anew; from there on it stays."""
SHRINKAGE = 4.0
"""Rows of a model that the absence of an effect counts for."""
WORDS = 400

_WORD = re.compile(r"\w+")


class TfIdfRidge:
    """A `Baseline` of `agents.perception.training.lengths.baselines`.

    Args:
        models: Adds the shrunk mean residual of each model, up to date with every row.
        trained: Rows to begin with.
    """

    def __init__(self, *, models: bool, trained: Sequence[LengthRow] = ()) -> None:
        self._models = models
        self._rows: list[tuple[str, str, float]] = []
        self._ridge: _Ridge | None = None
        self._told: dict[str, float] = {}
        self._offsets: dict[str, list[float]] = {}
        self._residuals: deque[float] = deque(maxlen=WINDOW)
        self._shape: Floats = START - START[MEDIAN]
        self._penalty = 1.0
        self._next_fit, self._next_shape = FIRST_FIT, 20
        self._rows.extend((row.prompt, row.model, math.log(row.tokens)) for row in trained)
        if trained:
            self._fit()

    def tell(self, row: LengthRow, view: PromptView, task: TaskType) -> Floats:  # noqa: ARG002 - part of the protocol
        """As `Baseline.tell`."""
        return self._text(row.prompt) + self._offset(row.model) + self._shape

    def learn(self, row: LengthRow, view: PromptView, task: TaskType) -> None:  # noqa: ARG002 - part of the protocol
        """As `Baseline.learn`."""
        length = math.log(row.tokens)
        unexplained = length - self._text(row.prompt)
        self._residuals.append(unexplained - self._offset(row.model))
        self._rows.append((row.prompt, row.model, length))
        if self._models:
            known = self._offsets.setdefault(row.model, [0.0, 0.0])
            known[0] += unexplained
            known[1] += 1.0
        if len(self._rows) >= self._next_shape:
            self._next_shape = int(1.1 * len(self._rows)) + 1
            self._shape = np.quantile(np.array(self._residuals), LEVELS)
        if len(self._rows) >= self._next_fit:
            self._fit()

    def _text(self, prompt: str) -> float:
        if self._ridge is None:
            return float(START[MEDIAN])
        if prompt not in self._told:
            self._told[prompt] = self._ridge.tell(prompt)
        return self._told[prompt]

    def _offset(self, model: str) -> float:
        total, count = self._offsets.get(model, (0.0, 0.0))
        return total / (count + SHRINKAGE)

    def _fit(self) -> None:
        """Fits texts to what models' offsets leave, then the offsets to what texts leave."""
        self._next_fit = int(GROWTH * len(self._rows)) + 1
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for prompt, model, length in self._rows:
            entry = sums[prompt]
            entry[0] += length - self._offset(model)
            entry[1] += 1.0
        counts = np.array([count for _, count in sums.values()])
        means = np.array([total for total, _ in sums.values()]) / counts
        self._ridge = _Ridge(list(sums), means, counts, self._penalty, choose=len(sums) <= CHOSEN_UP_TO)
        self._penalty = self._ridge.penalty
        self._told.clear()
        if self._models:
            fresh: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for prompt, model, length in self._rows:
                entry = fresh[model]
                entry[0] += length - self._text(prompt)
                entry[1] += 1.0
            self._offsets = dict(fresh)


class _Ridge:
    """Ridge regression over distinct prompts in its kernel form; a prompt's mean counts by how many lengths it is of."""

    def __init__(self, prompts: Sequence[str], means: Floats, counts: Floats, penalty: float, *, choose: bool) -> None:
        bags = [_bag(prompt) for prompt in prompts]
        seen = Counter(term for bag in bags for term in bag)
        kept = [term for term, count in seen.items() if count > 1]
        self._columns = {term: column for column, term in enumerate(kept)}
        self._idf = np.log((1.0 + len(prompts)) / (1.0 + np.array([seen[term] for term in kept]))) + 1.0
        matrix = self._matrix(bags)
        self._mean = float(np.average(means, weights=np.minimum(counts, SHRINKAGE)))
        kernel = np.asarray((matrix @ matrix.T).todense())
        self.penalty = self._chosen(kernel, means - self._mean, counts) if choose else penalty
        dual = np.linalg.solve(kernel + np.diag(_noise(self.penalty, counts)), means - self._mean)
        self._weights = matrix.T @ dual

    @staticmethod
    def _chosen(kernel: Floats, target: Floats, counts: Floats) -> float:
        """The strength with the smallest leave-one-out error."""
        errors = []
        for penalty in PENALTIES:
            inverse = np.linalg.inv(kernel + np.diag(_noise(penalty, counts)))
            errors.append(float(np.mean((inverse @ target / np.diag(inverse)) ** 2)))
        return PENALTIES[int(np.argmin(errors))]

    def tell(self, prompt: str) -> float:
        return self._mean + float((self._matrix([_bag(prompt)]) @ self._weights)[0])

    def _matrix(self, bags: Sequence[Counter[str]]) -> Any:
        """Rows of unit length, one per prompt."""
        columns: list[int] = []
        values: list[float] = []
        ends = [0]
        for bag in bags:
            entries = [(self._columns[term], 1.0 + math.log(count)) for term, count in bag.items() if term in self._columns]
            weights = np.array([value for _, value in entries]) * self._idf[[column for column, _ in entries]] if entries else np.zeros(0)
            norm = float(np.sqrt(np.sum(weights * weights))) or 1.0
            columns.extend(column for column, _ in entries)
            values.extend((weights / norm).tolist())
            ends.append(len(columns))
        return csr_matrix((values, columns, ends), shape=(len(bags), len(self._columns)))


def _noise(penalty: float, counts: Floats) -> Floats:
    """Half of it is the prompt's own, half chance, which more answers average out."""
    return np.asarray(penalty * (0.5 + 0.5 / counts))


def _bag(prompt: str) -> Counter[str]:
    words = _WORD.findall(prompt.lower())[:WORDS]
    return Counter([*words, *(f"{one} {other}" for one, other in pairwise(words))])
