"""The cheapest fleet of several kinds that holds a load."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.probing import Needed, Probe, alone, probe
from hmas.planning.question import Question

MIX_RUNS = 40
"""Most mixed fleets that are simulated in search of a cheaper one."""
MIX_CANDIDATES = 200_000


class Enough(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet that holds the wanted load."""

    fleet: str
    instances: int
    price: float
    share: float


def cheapest(wish: Question, needed: Mapping[str, Needed], tell: Callable[[str], None]) -> tuple[Enough | None, int, bool]:
    """Returns the cheapest fleet found, the number of mixed fleets tried, and whether all fleets that could be cheaper were tried.

    Candidates are tried in order of price. A candidate is skipped if in no kind it is larger than a fleet that failed, or if it could not
    hold the load even if each of its instances were worth as much as the last one needed in a fleet of its own kind.
    """
    kinds = [kind for kind in wish.kinds if needed[kind.name].count]
    if not kinds or any(kind.price <= 0.0 for kind in kinds):
        return None, 0, False
    best = min(kinds, key=lambda kind: needed[kind.name].count * kind.price)
    at = needed[best.name].at
    assert at is not None, "a count that holds the load has its run"
    cheapest = _enough(alone(best, needed[best.name].count), at)
    candidates = list(itertools.islice(_mixes([(kind, needed[kind.name].count) for kind in kinds], cheapest.price), MIX_CANDIDATES))
    failed: list[tuple[int, ...]] = []
    tried = 0
    for counts in sorted(candidates, key=lambda counts: (_price(counts, kinds), counts)):
        if any(all(n <= f for n, f in zip(counts, other, strict=True)) for other in failed):
            continue
        if tried == MIX_RUNS:
            return cheapest, tried, False
        fleet = Fleet(groups=[Group(kind=kind, count=n) for kind, n in zip(kinds, counts, strict=True) if n])
        result = probe(msgspec.structs.replace(wish.case, fleet=fleet, load=wish.load), wish.share)
        tried += 1
        tell(f"{fleet.name} at {fleet.price:g} an hour: {_within(result)} within their targets")
        if result.share >= wish.share:
            return _enough(fleet, result), tried, len(candidates) < MIX_CANDIDATES
        failed.append(counts)
    return cheapest, tried, len(candidates) < MIX_CANDIDATES


def _mixes(kinds: Sequence[tuple[Kind, int]], below: float) -> Iterator[tuple[int, ...]]:
    """Counts of two or more kinds that cost less than `below` and might hold the load that `count` of each kind alone holds."""
    # Upper bound of the share of the load that one instance holds: with one instance fewer the load was not held.
    worth = [1.0 / (count - 1) if count > 1 else math.inf for _, count in kinds]

    def grow(place: int, counts: tuple[int, ...], spent: float) -> Iterator[tuple[int, ...]]:
        if place == len(kinds):
            enough = sum(n * w for n, w in zip(counts, worth, strict=True) if n) >= 1.0
            if enough and sum(n > 0 for n in counts) > 1:
                yield counts
            return
        price = kinds[place][0].price
        n = 0
        while spent + n * price < below - 1e-9 and n <= kinds[place][1]:
            yield from grow(place + 1, (*counts, n), spent + n * price)
            n += 1

    return grow(0, (), 0.0)


def _price(counts: tuple[int, ...], kinds: Sequence[Kind]) -> float:
    return sum(n * kind.price for n, kind in zip(counts, kinds, strict=True))


def _within(result: Probe) -> str:
    return f"{result.share:.1%}" if result.whole else f"less than {result.share:.1%}"


def _enough(fleet: Fleet, at: Probe) -> Enough:
    return Enough(fleet=fleet.name, instances=fleet.size, price=fleet.price, share=at.share)
