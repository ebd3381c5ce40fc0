"""Full collections come when it is quiet, and at the latest after ten minutes."""

import gc
from collections.abc import Iterator

import pytest

from hmas.controller.runtime.process import LATEST_S, QUIET_S, WHOLE_S, Collector


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Knot:
    """Dies only by a collection."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


def test_a_full_collection_comes_when_it_is_quiet_and_in_any_case_in_the_end():
    collector = Collector(100.0)
    assert gc.get_freeze_count() > 1000
    Knot()
    gc.collect(1)
    assert not collector.look(100.0 + QUIET_S - 1.0, quiet=True)
    assert not collector.look(100.0 + QUIET_S, quiet=False)
    Knot()
    assert collector.look(100.0 + QUIET_S, quiet=True)
    assert Knot.alive == 0
    assert not collector.look(100.0 + QUIET_S + LATEST_S - 1.0, quiet=False)
    assert collector.look(100.0 + QUIET_S + LATEST_S, quiet=False)


def test_what_was_frozen_is_looked_at_again_every_two_minutes_of_quiet():
    collector = Collector(100.0)
    knot = Knot()
    assert collector.look(100.0 + QUIET_S, quiet=True)
    del knot
    assert collector.look(100.0 + 2 * QUIET_S, quiet=True)
    assert Knot.alive == 1
    assert collector.look(100.0 + WHOLE_S, quiet=True)
    assert Knot.alive == 0


def test_the_oldest_generation_is_never_looked_through_by_itself():
    Collector(0.0)
    before = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(200_000)]
    assert gc.get_stats()[0]["collections"] > 0
    assert gc.get_stats()[2]["collections"] == before
    assert len(kept) == 200_000
