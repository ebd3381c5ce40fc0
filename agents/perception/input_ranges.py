"""The ranges of a model's inputs in its training data: what lies outside is moved to the nearest bound and counted by name.

A model says nothing reliable of inputs that it was never trained on, and a linear part of it can say anything at all of them.
"""

import math
from collections.abc import Mapping, Sequence

from controller.core.errors import ModelError


class InputRanges:
    """Bounds of a model's inputs, with a count of the values that lay outside.

    Args:
        low, high: Smallest and largest value of each input in training; equal where the input was constant.
        names: Names of the inputs, in order.

    Raises:
        ModelError: The three differ in length, or a bound is not finite or below its lower bound.
    """

    def __init__(self, low: Sequence[float], high: Sequence[float], names: Sequence[str]) -> None:
        if not len(low) == len(high) == len(names):
            raise ModelError(f"input ranges: {len(low)} lower and {len(high)} upper bounds for {len(names)} inputs; allowed: one each")
        for name, least, most in zip(names, low, high, strict=True):
            if not (math.isfinite(least) and math.isfinite(most) and least <= most):
                raise ModelError(f"input range of {name} is {least} to {most}; allowed: finite numbers, the lower one first")
        self._bounds = list(zip(names, map(float, low), map(float, high), strict=True))
        self._outside: dict[str, int] = {}

    @property
    def outside(self) -> Mapping[str, int]:
        """By input, how many values lay outside its range so far; inputs without any are absent."""
        return self._outside

    def clip(self, values: Sequence[float]) -> list[float]:
        """The values, each moved to the nearest bound where it lies outside (NaN to the lower one) and counted."""
        clipped = []
        for value, (name, low, high) in zip(values, self._bounds, strict=True):
            if low <= value <= high:
                clipped.append(value)
                continue
            self._outside[name] = self._outside.get(name, 0) + 1
            clipped.append(high if value > high else low)
        return clipped
