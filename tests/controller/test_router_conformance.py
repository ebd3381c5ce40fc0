"""Every built-in router and scorer passes the checks for authors; wrong ones fail the check that they break."""

import pytest

from hmas.controller.core.placement import Choice
from hmas.controller.routing.registry import ROUTERS, SCORERS, make_router
from hmas.controller.routing.scored import ScoredRouter
from hmas.testing import NonConformance, assert_router_conforms
from hmas.testing.router_conformance import ROUTER_CHECKS, ranking, serving, try_router

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [*ROUTERS, *SCORERS])
def test_what_is_built_in_conforms(name):
    kind = SCORERS.get(name) or ROUTERS[name]
    if kind is ScoredRouter:
        for check in (ranking, serving):
            check(lambda: make_router(name), 1)
    else:
        assert_router_conforms(kind)


class Base:
    name = "wrong"

    def rank(self, entry, instances, now_s):
        return [Choice(one.name, "so") for one in instances]


class Unknown(Base):
    def rank(self, entry, instances, now_s):
        return [Choice("elsewhere", "so")]


class Twice(Base):
    def rank(self, entry, instances, now_s):
        return [*super().rank(entry, instances, now_s), *super().rank(entry, instances, now_s)]


class Mute(Base):
    def rank(self, entry, instances, now_s):
        return [Choice(one.name, "") for one in instances]


class Sorts(Base):
    def rank(self, entry, instances, now_s):
        for one in instances:
            one.in_flight = 0
        return super().rank(entry, instances, now_s)


class Counts(Base):
    made = 0

    def __init__(self):
        Counts.made += 1

    def rank(self, entry, instances, now_s):
        return super().rank(entry, instances[:: -1 if Counts.made % 2 else 1], now_s)


class Waits(Base):
    def rank(self, entry, instances, now_s):
        return []


class Large:
    name = "large"
    summary = "too much"

    def score(self, entry, instances, now_s):
        return [2.0 for _ in instances]


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (Unknown, "ranking", "elsewhere"),
        (Twice, "ranking", "each of them at most once"),
        (Mute, "ranking", "has no reason"),
        (Sorts, "ranking", "changes the instances"),
        (Counts, "determinism", "another ranking"),
        (Waits, "serving", "of 200 requests 0 were served"),
        (Large, "scores", "allowed: one from 0 to 1"),
        (int, "contract", "its name is ''"),
    ],
)
def test_a_wrong_one_fails_the_check_that_it_breaks(kind, check, words):
    failed = {result.check: result.trouble for result in try_router(kind) if result.trouble}
    assert words in failed[check]
    assert failed.keys() <= ROUTER_CHECKS.keys()
    with pytest.raises(NonConformance, match=check):
        assert_router_conforms(kind)
