"""Keeps requests with known outcomes for training: the newest, and a uniform sample of all before them. Pure and bounded."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEWEST = 4_000
SAMPLE = 4_000
"""Requests kept of each kind: under 2 MB together."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """The regressor's input for one request on the instance that served it, and the outcome.

    Attributes:
        row: `FEATURES`. `names`: `CATEGORIES`.
        labels: Logarithms of actual over analytic TTFT and TPOT; NaN if there was none.
    """

    row: NDArray[np.float32]
    names: tuple[bytes, ...]
    labels: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Table:
    """Labelled requests as columns, oldest first."""

    rows: NDArray[np.float32]
    names: NDArray[np.object_]
    labels: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_] | slice) -> "Table":
        """Returns the chosen requests."""
        return Table(self.rows[chosen], self.names[chosen], self.labels[chosen])


class Experience:
    """Bounded memory of labelled requests."""

    def __init__(self, *, newest: int = NEWEST, sample: int = SAMPLE) -> None:
        self._newest: deque[Labelled] = deque(maxlen=newest)
        self._sample: list[Labelled] = []
        self._room = sample
        self._passed = 0
        self._rng = np.random.default_rng(1)
        self.total = 0

    def __len__(self) -> int:
        return len(self._sample) + len(self._newest)

    def add(self, labelled: Labelled) -> None:
        """Adds a request; the oldest of the newest moves to the sample or is dropped."""
        if len(self._newest) == self._newest.maxlen:
            self._keep(self._newest[0])
        self._newest.append(labelled)
        self.total += 1

    def table(self) -> Table:
        """Returns all kept requests: the sample, then the newest in the order in which they ended."""
        return as_table([*self._sample, *self._newest])

    def _keep(self, labelled: Labelled) -> None:
        # Reservoir sampling: every request before the newest has the same chance to be here.
        self._passed += 1
        if len(self._sample) < self._room:
            self._sample.append(labelled)
            return
        place = int(self._rng.integers(0, self._passed))
        if place < self._room:
            self._sample[place] = labelled


def as_table(labelled: list[Labelled]) -> Table:
    """Returns labelled requests as columns."""
    if not labelled:
        return Table(np.empty((0, 0), np.float32), np.empty((0, 0), object), np.empty((0, 2)))
    names = np.empty((len(labelled), len(labelled[0].names)), dtype=object)
    for index, one in enumerate(labelled):
        names[index] = one.names
    return Table(np.stack([one.row for one in labelled]), names, np.array([one.labels for one in labelled], dtype=np.float64))
