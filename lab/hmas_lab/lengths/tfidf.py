"""The strongest plain baseline: ridge regression of log lengths on TF-IDF of words and pairs, with or without a mean per model. Pure."""

import math
import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]  # it ships no types
from scipy.sparse.linalg import LinearOperator, cg  # type: ignore[import-untyped]  # likewise

from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.answers import LengthRow
from hmas.controller.core.lengths import LEVELS, MEDIAN
from hmas.controller.core.types import TaskType
from hmas_lab.lengths.baselines import START, WINDOW

Floats = NDArray[np.float64]

FIRST_FIT = 50
GROWTH = 1.7
"""The regression is fitted again whenever the rows learnt have grown by this much: some fifteen times over 100,000 rows."""
PENALTIES = (0.3, 1.0, 3.0, 10.0)
"""Strengths of the ridge, of which the one with the smallest leave-one-out error is taken."""
CHOSEN_UP_TO = 800
"""Prompts up to which the strength is chosen anew; from there on it stays."""
SHRINKAGE = 4.0
"""Rows of a model that the absence of an effect counts for."""
HELD_OUT = 8
"""Of the prompts to begin with one in so many is left out at first, to see how far lengths scatter."""
WORDS = 400

_WORD = re.compile(r"\w+")


class TfIdfRidge:
    """A `Baseline` of `hmas_lab.lengths.baselines`.

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
        self._learnt = 0
        self._next_fit, self._next_shape = FIRST_FIT, 20
        if trained:
            self._begin([(row.prompt, row.model, math.log(row.tokens)) for row in trained])

    def fresh(self) -> "TfIdfRidge":
        """One that knows what this one was given to begin with and learns on its own; this one is not to learn."""
        other = TfIdfRidge(models=self._models)
        other._rows, other._told = list(self._rows), dict(self._told)
        other._offsets = {model: list(known) for model, known in self._offsets.items()}
        other._ridge, other._penalty, other._shape = self._ridge, self._penalty, self._shape
        return other

    def _begin(self, rows: list[tuple[str, str, float]]) -> None:
        """Fits all but some prompts and takes the spread from these: a regression knows the prompts that it was fitted to too well."""
        held = [zlib.crc32(prompt.encode()) % HELD_OUT == 0 for prompt, _, _ in rows]
        self._rows = [row for row, out in zip(rows, held, strict=True) if not out]
        if self._rows and any(held):
            self._fit()
            left = [
                length - self._text(prompt) - self._offset(model) for (prompt, model, length), out in zip(rows, held, strict=True) if out
            ]
            self._shape = np.quantile(np.array(left), LEVELS)
        self._rows = rows
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
        if len(self._residuals) >= self._next_shape:
            self._next_shape = int(1.1 * len(self._residuals)) + 1
            self._shape = np.quantile(np.array(self._residuals), LEVELS)
        self._learnt += 1
        if self._learnt >= self._next_fit:
            self._next_fit = int(GROWTH * self._learnt) + 1
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
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for prompt, model, length in self._rows:
            entry = sums[prompt]
            entry[0] += length - self._offset(model)
            entry[1] += 1.0
        counts = np.array([count for _, count in sums.values()])
        means = np.array([total for total, _ in sums.values()]) / counts
        if self._ridge is None or len(sums) <= CHOSEN_UP_TO:
            self._penalty = chosen_penalty(list(sums), means, counts)
        self._ridge = _Ridge(list(sums), means, counts, self._penalty)
        self._told.clear()
        if self._models:
            fresh: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for prompt, model, length in self._rows:
                entry = fresh[model]
                entry[0] += length - self._text(prompt)
                entry[1] += 1.0
            self._offsets = dict(fresh)


def chosen_penalty(prompts: Sequence[str], means: Floats, counts: Floats) -> float:
    """Of `PENALTIES` the one with the smallest leave-one-out error, on at most `CHOSEN_UP_TO` of the prompts."""
    step = max(1, math.ceil(len(prompts) / CHOSEN_UP_TO))
    part, target, counts = prompts[::step], means[::step], counts[::step]
    matrix = _Bags(part).matrix()
    kernel = np.asarray((matrix @ matrix.T).todense())
    target = target - np.average(target, weights=np.minimum(counts, SHRINKAGE))
    errors = []
    for penalty in PENALTIES:
        inverse = np.linalg.inv(kernel + np.diag(_noise(penalty, counts)))
        errors.append(float(np.mean((inverse @ target / np.diag(inverse)) ** 2)))
    return PENALTIES[int(np.argmin(errors))]


class _Bags:
    """TF-IDF over some prompts: terms of two of them or more."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self._bags = [_bag(prompt) for prompt in prompts]
        seen = Counter(term for bag in self._bags for term in bag)
        kept = [term for term, count in seen.items() if count > 1]
        self._columns = {term: column for column, term in enumerate(kept)}
        self._idf = np.log((1.0 + len(prompts)) / (1.0 + np.array([seen[term] for term in kept]))) + 1.0

    def matrix(self, prompt: str | None = None) -> Any:
        """Rows of unit length, one per prompt; of one that may be new where it is given."""
        bags = self._bags if prompt is None else [_bag(prompt)]
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


class _Ridge:
    """Ridge regression over distinct prompts in its dual form; a prompt's mean counts by how many lengths it is of."""

    def __init__(self, prompts: Sequence[str], means: Floats, counts: Floats, penalty: float) -> None:
        self._bags = _Bags(prompts)
        matrix, noise = self._bags.matrix(), _noise(penalty, counts)
        self._mean = float(np.average(means, weights=np.minimum(counts, SHRINKAGE)))
        # By conjugate gradients: the kernel of 10,000 prompts is not written out.
        turned = matrix.T.tocsr()
        kernel = LinearOperator((len(prompts), len(prompts)), matvec=lambda dual: matrix @ (turned @ dual) + noise * dual, dtype=np.float64)
        dual, _ = cg(kernel, means - self._mean, rtol=1e-6, maxiter=500)
        self._weights = turned @ dual

    def tell(self, prompt: str) -> float:
        return self._mean + float((self._bags.matrix(prompt) @ self._weights)[0])


def _noise(penalty: float, counts: Floats) -> Floats:
    """Half of it is the prompt's own, half chance, which more answers average out."""
    return np.asarray(penalty * (0.5 + 0.5 / counts))


@lru_cache(maxsize=20_000)
def _bag(prompt: str) -> Counter[str]:
    words = _WORD.findall(prompt.lower())[:WORDS]
    return Counter([*words, *(f"{one} {other}" for one, other in pairwise(words))])
