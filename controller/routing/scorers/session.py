"""Scores the instance that got the last request of the same session, and the bound that load sets to any affinity."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar

from hmas.controller.core.placement import InstanceState, Routable

SESSIONS_MOST = 65_536
"""Sessions that are remembered, those used last: about 25 MB."""
LOAD_CAP = 1.5
"""Load of an instance, over the mean of all that may take the request, above which no affinity counts."""
SPARE = 2
"""Requests in flight beside that bound: with little load, one request is much of the mean."""


class Session:
    """1 for the instance that got the last request of the session, unless `under_cap` forbids it."""

    name: ClassVar[str] = "session"
    summary: ClassVar[str] = "the instance that served the session last"

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  the contract's
        """See `Scorer.score`."""
        last = self._of(entry)
        scores: list[float] = []
        if last:
            for place, instance in enumerate(instances):
                if instance.name == last:
                    scores = [0.0] * len(instances)
                    scores[place] = 1.0 if under_cap(instance, mean_load(instances)) else 0.0
                    break
        return scores

    def favours(self, entry: Routable) -> Iterable[str]:
        """See `Scorer.favours`."""
        last = self._of(entry)
        return (last,) if last else ()

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """Remembers the instance."""
        request = entry.request
        if request.session:
            key = (request.tenant, request.model, request.session)
            self._last[key] = instance
            self._last.move_to_end(key)
            if len(self._last) > SESSIONS_MOST:
                self._last.popitem(last=False)

    def _of(self, entry: Routable) -> str:
        request = entry.request
        return self._last.get((request.tenant, request.model, request.session), "") if request.session else ""


def mean_load(instances: Sequence[InstanceState]) -> float:
    """The mean share of their windows that is in use."""
    return sum([one.sequences / one.routing_window for one in instances]) / len(instances)


def under_cap(instance: InstanceState, mean: float) -> bool:
    """Whether an instance is so little busier than the others that affinity may prefer it: a hot prefix or session spreads at that load."""
    return instance.sequences <= LOAD_CAP * mean * instance.routing_window + SPARE
