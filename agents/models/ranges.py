"""What a model saw in training bounds what it is shown at run time; what lies outside is counted, so that operators can see it. Pure."""

from collections.abc import Iterable, Mapping, Sequence


class RangeCounter:
    """Clips a model's inputs to the ranges of its training.

    A network's answer to an input far outside of what it was trained on is arbitrary; at the edge of the range it is the nearest thing
    that it knows. A feature that never varied in training has a range of one value, and can therefore not steer anything.

    Attributes:
        names: The features, in the order in which values come.
        out_of_range: By feature, how many inputs lay outside so far; only features with any.
    """

    def __init__(self, ranges: Mapping[str, Sequence[float]]) -> None:
        """Takes the ranges by feature: lowest and highest value seen in training.

        Raises:
            ValueError: A range that is not two numbers in ascending order; names the feature.
        """
        for name, bounds in ranges.items():
            if len(bounds) != 2 or not bounds[0] <= bounds[1]:
                raise ValueError(f"ranges.{name} is {list(bounds)!r}; allowed: two numbers, the lower one first")
        self.names = tuple(ranges)
        self._bounds = [(float(low), float(high)) for low, high in ranges.values()]
        self.out_of_range: dict[str, int] = {}

    def clip(self, values: Sequence[float]) -> list[float]:
        """The values of one input, each within its range; one that is no number becomes the lowest.

        Args:
            values: One for each of `names`.
        """
        clipped = []
        for name, value, (low, high) in zip(self.names, values, self._bounds, strict=True):
            within = value if low <= value <= high else high if value > high else low
            if not low <= value <= high:
                self.out_of_range[name] = self.out_of_range.get(name, 0) + 1
            clipped.append(within)
        return clipped


def ranges_of(names: Sequence[str], rows: Iterable[Sequence[float]]) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each feature over the inputs of a training; at least one input is needed."""
    return {name: (min(column), max(column)) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def figures_of(model: str, counter: RangeCounter | None) -> dict[str, float]:
    """What a report says of the inputs outside, as `out_of_range/MODEL/FEATURE` (`controller.gateway.model_reports`)."""
    # A copy: the model may be counting in another thread.
    return {f"out_of_range/{model}/{feature}": float(count) for feature, count in dict(counter.out_of_range).items()} if counter else {}
