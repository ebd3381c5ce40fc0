"""Plain ways to foretell output lengths, to measure `hmas.agents.perception.lengths.model` against. Pure.

Each gives log quantiles at `hmas.controller.core.lengths.LEVELS` before it learns the row, as the length model does.
"""

import math
from collections import defaultdict, deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lengths.demands import demanded_tokens
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.answers import LengthRow
from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.types import TaskType
from hmas_lab.lengths.statistics import LengthStatistics

Floats = NDArray[np.float64]

WINDOW = 4096
"""Outcomes that a moving histogram remembers."""
START: Floats = np.log(np.array([20.0, 60.0, 160.0, 400.0, 900.0, 1400.0, 4000.0]))
"""What a baseline says before it has learnt anything: roughly the prior of an unknown task."""
_NORMAL: Floats = np.array([-1.2816, -0.6745, 0.0, 0.6745, 1.2816, 1.6449, 2.3263])


class Baseline(Protocol):
    """Tells and learns; rows come in the order of their arrival."""

    def tell(self, row: LengthRow, view: PromptView, task: TaskType) -> Floats:
        """Log quantiles at `LEVELS`, ascending."""
        ...

    def learn(self, row: LengthRow, view: PromptView, task: TaskType) -> None:
        """Takes the row's length into account."""
        ...


class RulesAndStatistics:
    """H-MAS's deterministic path: groups' medians and 90 % quantiles shrunk towards coarser groups; other levels as if log-normal."""

    def __init__(self) -> None:
        self._statistics = LengthStatistics()

    def tell(self, row: LengthRow, view: PromptView, task: TaskType) -> Floats:  # noqa: ARG002 - part of the protocol
        """As `Baseline.tell`."""
        length = self._statistics.estimate(
            tenant="-", task=task, prompt_tokens=view.prompt_tokens, demanded=demanded_tokens(view.excerpt.lower())
        )
        middle, high = math.log(length.p50), math.log(length.p90)
        return np.asarray(middle + _NORMAL * ((high - middle) / _NORMAL[4]))

    def learn(self, row: LengthRow, view: PromptView, task: TaskType) -> None:
        """As `Baseline.learn`."""
        self._statistics.learn(tenant="-", task=task, prompt_tokens=view.prompt_tokens, output_tokens=row.tokens)


class _Histogram:
    """The newest log lengths, their quantiles kept for a while."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=WINDOW)
        self._quantiles = START
        self._due = 1.0

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, length: float) -> None:
        self._logs.append(length)
        self._due -= 1.0

    def quantiles(self) -> Floats:
        if self._due <= 0.0:
            self._quantiles = np.quantile(np.array(self._logs), LEVELS)
            self._due = max(1.0, 0.02 * len(self._logs))
        return self._quantiles


class MovingHistogram:
    """AIBrix's way: histograms of recent output lengths per power-of-two bucket of the prompt's length."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Histogram] = defaultdict(_Histogram)

    def tell(self, row: LengthRow, view: PromptView, task: TaskType) -> Floats:  # noqa: ARG002 - part of the protocol
        """As `Baseline.tell`."""
        return self._buckets[view.prompt_tokens.bit_length()].quantiles()

    def learn(self, row: LengthRow, view: PromptView, task: TaskType) -> None:  # noqa: ARG002 - part of the protocol
        """As `Baseline.learn`."""
        self._buckets[view.prompt_tokens.bit_length()].add(math.log(row.tokens))


class ModelMean:
    """What the engine's own counters show: the recent lengths of the same model, whatever it was asked."""

    def __init__(self) -> None:
        self._models: dict[str, _Histogram] = defaultdict(_Histogram)
        self._all = _Histogram()

    def tell(self, row: LengthRow, view: PromptView, task: TaskType) -> Floats:  # noqa: ARG002 - part of the protocol
        """As `Baseline.tell`."""
        own = self._models.get(row.model)
        return own.quantiles() if own is not None and len(own) else self._all.quantiles()

    def learn(self, row: LengthRow, view: PromptView, task: TaskType) -> None:  # noqa: ARG002 - part of the protocol
        """As `Baseline.learn`."""
        self._models[row.model].add(math.log(row.tokens))
        self._all.add(math.log(row.tokens))
