"""A router made of scorers: ranks instances by the weighted sum of their scores."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hmas.controller.core.placement import Choice, InstanceState, Routable, Scorer
from hmas.controller.core.types import Request
from hmas.controller.routing.least_loaded import tokens_per_slot

SHORTLIST = 32
"""Instances that are scored: of more, the emptiest so many, and those that a scorer favours whatever their load."""


class ScoredRouter:
    """Ranks by the weighted sum of scores; then by the fewest tokens in flight per slot, then in the given order.

    Args:
        name: Its name.
        scorers: Each scorer with its weight, more than 0. The scorers are this router's own: they learn from its requests.

    Attributes:
        name: As given.
        uses_blocks: Whether a scorer reads `Request.blocks`. `uses_times_alone`: whether one reads `Estimates.alone`.
        parts: Scorers and weights.
    """

    def __init__(self, name: str, scorers: Iterable[tuple[Scorer, float]]) -> None:
        self.name = name
        self.parts = tuple(scorers)
        self.uses_blocks, self.uses_times_alone = (
            any(getattr(scorer, name, False) for scorer, _ in self.parts) for name in ("uses_blocks", "uses_times_alone")
        )
        self._on_sent = self._hooks("sent")
        self._on_ended = self._hooks("ended")
        self._on_left = self._hooks("left")
        self._knows_cached = self._hooks("cached")
        self._favouring = self._hooks("favours")
        self._places: dict[str, int] = {}

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterator[Choice]:
        """The best of `instances` first; the order of the others is determined only if it is asked for."""
        among = len(instances)
        if among == 1:
            only = instances[0]
            reason = f"window {only.sequences}/{only.n_run}, the only one that may take it"
            yield Choice(only.name, reason, cached_tokens=self._cached(entry, only))
            return
        scored = self._shortlist(entry, instances) if among > 2 * SHORTLIST else instances
        parts: list[tuple[str, float, list[float]]] = []
        totals: list[float] = []
        for scorer, weight in self.parts:
            scores = scorer.score(entry, scored, now_s)
            if not scores:
                continue
            if len(scores) != len(scored):
                raise ValueError(f"scorer {scorer.name!r} gave {len(scores)} scores for {len(scored)} instances")
            if parts:
                totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
            else:
                totals = [weight * score for score in scores]
            parts.append((scorer.name, weight, scores))
        if not parts:
            totals = [0.0] * len(scored)
        for place in _best_first(totals, scored):
            scores_of = tuple([(name, scores[place], weight) for name, weight, scores in parts])
            name = scored[place].name
            yield Choice(name, f"score {totals[place]:.2f} among {among}", scores_of, self._cached(entry, scored[place]))
        if among > len(scored):
            ranked = {instance.name for instance in scored}
            rest = [instance for instance in instances if instance.name not in ranked]
            rest.sort(key=lambda instance: instance.sequences / instance.routing_window)
            for instance in rest:
                yield Choice(instance.name, f"window {instance.sequences}/{instance.n_run}, not scored: busier than {len(scored)} others")

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:
        """See `Scorer`."""
        for hook in self._on_sent:
            hook(entry, instance, now_s)

    def ended(self, request: Request, instance: str, cached_tokens: int | None) -> None:
        """See `Scorer`."""
        for hook in self._on_ended:
            hook(request, instance, cached_tokens)

    def left(self, instance: str) -> None:
        """See `Scorer`."""
        for hook in self._on_left:
            hook(instance)

    def _hooks(self, name: str) -> list[Callable[..., Any]]:
        """The hook of this name of each scorer that has it."""
        found = [getattr(scorer, name, None) for scorer, _ in self.parts]
        return [hook for hook in found if hook is not None]

    def _cached(self, entry: Routable, instance: InstanceState) -> int | None:
        for known in self._knows_cached:
            if (tokens := known(entry, instance.name)) is not None:
                return int(tokens)
        return None

    def _shortlist(self, entry: Routable, instances: Sequence[InstanceState]) -> list[InstanceState]:
        """The emptiest instances and the favoured ones, in the given order."""
        shares = [instance.sequences / instance.routing_window for instance in instances]
        limit = sorted(shares)[SHORTLIST - 1]
        places = [place for place, share in enumerate(shares) if share <= limit]
        if len(places) > SHORTLIST:
            # Those below the limit, and the first of those at it.
            below = [place for place in places if shares[place] < limit]
            places = below + [place for place in places if shares[place] == limit][: SHORTLIST - len(below)]
        chosen, renewed = set(places), False
        for favours in self._favouring:
            for name in favours(entry):
                place = self._places.get(name, -1)
                # The list changes little from one request to the next, and may lack a favoured instance that is full.
                if not renewed and not _stands_at(place, name, instances):
                    self._places, renewed = {instance.name: place for place, instance in enumerate(instances)}, True
                    place = self._places.get(name, -1)
                if _stands_at(place, name, instances):
                    chosen.add(place)
        return [instances[place] for place in sorted(chosen)]


def _stands_at(place: int, name: str, instances: Sequence[InstanceState]) -> bool:
    return 0 <= place < len(instances) and instances[place].name == name


def _best_first(totals: Sequence[float], instances: Sequence[InstanceState]) -> Iterator[int]:
    """Places in the order of their totals, of equal ones the emptiest first; the order after the first is determined if it is asked for."""
    highest = max(totals)
    first = totals.index(highest)
    if totals.count(highest) > 1:
        first = min((place for place, total in enumerate(totals) if total == highest), key=lambda place: tokens_per_slot(instances[place]))
    yield first
    others = [place for place in range(len(instances)) if place != first]
    yield from sorted(others, key=lambda place: (-totals[place], tokens_per_slot(instances[place])))
