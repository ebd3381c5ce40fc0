"""What a model saw in training bounds what it is shown at run time; what lies outside is counted, so that operators can see it. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.card import ModelCard

RANGES = "ranges"
"""Where a card has them among its `details`."""


class RangeCounter:
    """Clips a model's inputs to the ranges of its training.

    A network's answer to an input far outside of what it was trained on is arbitrary; at the edge of the range it is the nearest thing
    that it knows. A feature that never varied in training has a range of one value, and can therefore not steer anything.

    Attributes:
        bounds: Lowest and highest value in training by feature, in the order in which values come.
        out_of_range: By feature, how many inputs lay outside so far; only features with any.
    """

    def __init__(self, ranges: Mapping[str, Sequence[float]], open_above: Collection[str] = ()) -> None:
        """Takes the ranges by feature: lowest and highest value seen in training.

        Args:
            ranges: As above.
            open_above: Features of which higher values say no more than the highest in training. `count` does not count them.

        Raises:
            ValueError: A range that is not two numbers in ascending order; names the feature.
        """
        for name, bounds in ranges.items():
            if len(bounds) != 2 or not bounds[0] <= bounds[1]:
                raise ValueError(f"ranges.{name} is {list(bounds)!r}; allowed: two numbers, the lower one first")
        self.bounds = {name: (float(low), float(high)) for name, (low, high) in ranges.items()}
        self._low, self._high = np.array(list(self.bounds.values()), np.float32).reshape(-1, 2).T
        self._most = np.array([math.inf if name in open_above else high for name, (_, high) in self.bounds.items()], np.float32)
        self.out_of_range: dict[str, int] = {}

    def clip(self, values: Sequence[float]) -> list[float]:
        """The values of one input, each within its range; one that is no number becomes the lowest. Those outside are counted."""
        clipped = []
        for (name, (low, high)), value in zip(self.bounds.items(), values, strict=True):
            within = value if low <= value <= high else high if value > high else low
            if not low <= value <= high:
                self.out_of_range[name] = self.out_of_range.get(name, 0) + 1
            clipped.append(within)
        return clipped

    def within(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Many inputs, a column for each of `bounds`, each value within; nothing is counted. NaN stays: to trees it says something."""
        return np.clip(rows, self._low, self._high)

    def count(self, rows: NDArray[np.float32]) -> None:
        """Counts the inputs with a value outside, NaN apart.

        Args:
            rows: Shape (inputs, rows of each, features): by feature, an input counts once however many of its rows lie outside.
        """
        outside = ((rows < self._low) | (rows > self._most)).any(axis=1).sum(axis=0)
        if outside.any():
            for name, count in zip(self.bounds, outside.tolist(), strict=True):
                if count:
                    self.out_of_range[name] = self.out_of_range.get(name, 0) + count


def ranges_of(names: Sequence[str], rows: Iterable[Sequence[float]]) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each feature over the inputs of a training; at least one input is needed.

    Missing values (NaN) are left out. A feature that was always missing gets the range of zero alone: no model has learnt from it.
    """
    return {name: _range_of(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def counter_of(card: ModelCard, names: Sequence[str], open_above: Collection[str] = ()) -> RangeCounter | None:
    """A counter with the ranges that the card of a model with these inputs states, None where it states none (older cards have none).

    `open_above`: as in `RangeCounter`.

    Raises:
        ValueError: They are not two numbers for each of `names`.
    """
    stated = card.details.get(RANGES)
    if stated is None:
        return None
    if not isinstance(stated, Mapping) or tuple(stated) != tuple(names):
        raise ValueError(f"details.{RANGES} must name {', '.join(names)}, in this order")
    try:
        return RangeCounter(stated, open_above)
    except TypeError as error:
        raise ValueError(f"details.{RANGES}: {error}; allowed: two numbers for each feature") from error


def figures_of(model: str, counter: RangeCounter | None) -> dict[str, float]:
    """What a report says of the inputs outside, as `out_of_range/MODEL/FEATURE` (`hmas.controller.observability.agent_metrics`)."""
    # A copy: the model may be counting in another thread.
    return {f"out_of_range/{model}/{feature}": float(count) for feature, count in dict(counter.out_of_range).items()} if counter else {}


def _range_of(column: Sequence[float]) -> tuple[float, float]:
    present = [value for value in column if not math.isnan(value)]
    return (min(present), max(present)) if present else (0.0, 0.0)
