"""A router made of scorers: ranks instances by the weighted sum of their scores."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest

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
        uses_blocks: Whether a scorer reads `Request.blocks`.
        parts: Scorers and weights.
    """

    def __init__(self, name: str, scorers: Iterable[tuple[Scorer, float]]) -> None:
        self.name = name
        self.parts = tuple(scorers)
        self.uses_blocks = any(scorer.uses_blocks for scorer, _ in self.parts)
        # A hook that a scorer does not have is not called.
        self._on_sent = [scorer for scorer, _ in self.parts if type(scorer).sent is not Scorer.sent]
        self._on_ended = [scorer for scorer, _ in self.parts if type(scorer).ended is not Scorer.ended]
        self._favouring = [scorer for scorer, _ in self.parts if type(scorer).favours is not Scorer.favours]

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterator[Choice]:
        """The best of `instances` first; the order of the others is determined only if it is asked for."""
        if len(instances) == 1:
            only = instances[0]
            yield Choice(only.name, f"window {only.sequences}/{only.n_run}, the only one that may take it")
            return
        scored = self._shortlist(entry, instances) if len(instances) > 2 * SHORTLIST else instances
        table = [scorer.score(entry, scored, now_s) for scorer, _ in self.parts]
        totals = [0.0] * len(scored)
        for (scorer, weight), scores in zip(self.parts, table, strict=True):
            if len(scores) != len(scored):
                raise ValueError(f"scorer {scorer.name!r} gave {len(scores)} scores for {len(scored)} instances")
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        places = list(range(len(scored)))
        highest = max(totals)
        ties = [place for place in places if totals[place] == highest]
        first = ties[0] if len(ties) == 1 else min(ties, key=lambda place: tokens_per_slot(scored[place]))
        yield self._choice(scored, table, totals, first, len(instances))
        places.remove(first)
        places.sort(key=lambda place: (-totals[place], tokens_per_slot(scored[place])))
        for place in places:
            yield self._choice(scored, table, totals, place, len(instances))
        if scored is not instances:
            ranked = {instance.name for instance in scored}
            for instance in sorted((one for one in instances if one.name not in ranked), key=_share):
                yield Choice(instance.name, f"window {instance.sequences}/{instance.n_run}, not scored: busier than {len(scored)} others")

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:
        """See `Scorer.sent`."""
        for scorer in self._on_sent:
            scorer.sent(entry, instance, now_s)

    def ended(self, request: Request, instance: str, cached_tokens: int | None) -> None:
        """See `Scorer.ended`."""
        for scorer in self._on_ended:
            scorer.ended(request, instance, cached_tokens)

    def left(self, instance: str) -> None:
        """See `Scorer.left`."""
        for scorer, _ in self.parts:
            scorer.left(instance)

    def _shortlist(self, entry: Routable, instances: Sequence[InstanceState]) -> Sequence[InstanceState]:
        """The emptiest instances and the favoured ones, in the given order."""
        shares = [instance.sequences / instance.routing_window for instance in instances]
        places = set(nsmallest(SHORTLIST, range(len(instances)), key=shares.__getitem__))
        favoured = {name for scorer in self._favouring for name in scorer.favours(entry)}
        if favoured:
            places |= {place for place, instance in enumerate(instances) if instance.name in favoured}
        return [instances[place] for place in sorted(places)]

    def _choice(
        self, scored: Sequence[InstanceState], table: Sequence[Sequence[float]], totals: Sequence[float], place: int, among: int
    ) -> Choice:
        scores = tuple((scorer.name, row[place], weight) for (scorer, weight), row in zip(self.parts, table, strict=True))
        words = " + ".join([f"{weight:g} x {name} {score:.2f}" for name, score, weight in scores])
        return Choice(scored[place].name, f"score {totals[place]:.2f} of {among}: {words}", scores)


def _share(instance: InstanceState) -> float:
    return instance.sequences / instance.routing_window
