import pytest

from hmas.controller.core.fairness import Fairness, Service, fairness


def steady(tenant, number, *, tokens, waits=100.0):
    """Requests that all wait from the start, served one after the other, a second each."""
    return [Service(tenant, 0.0, float(place), place + 1.0, tokens) for place in range(number)] + [Service(tenant, 0.0, waits, waits, 0.0)]


def test_equal_service_is_fair_and_weights_say_what_is_equal():
    served = steady("a", 50, tokens=10) + steady("b", 50, tokens=30)
    even = fairness(steady("a", 50, tokens=10) + steady("b", 50, tokens=10))
    assert (even.jain, even.max_min, even.contended_s) == (pytest.approx(1.0), pytest.approx(1.0), pytest.approx(100.0))
    uneven = fairness(served)
    assert uneven.max_min == pytest.approx(1 / 3)
    assert uneven.jain == pytest.approx((1 + 3) ** 2 / (2 * (1 + 9)))
    assert uneven.rates == {"a": pytest.approx(5.0), "b": pytest.approx(15.0)}
    assert fairness(served, {"b": 3.0}).jain == pytest.approx(1.0)


def test_who_asks_for_little_is_served_little_by_nobodys_fault():
    # b comes now and then and never waits; only a and c compete.
    light = [Service("b", float(at), float(at), at + 0.1, 5.0) for at in range(0, 100, 10)]
    found = fairness(steady("a", 50, tokens=10) + light + steady("c", 50, tokens=10))
    assert set(found.rates) == {"a", "c"}
    assert found.jain == pytest.approx(1.0)


def test_only_the_time_in_which_both_wait_counts():
    # a has the engine to itself for 50 s before b comes, and is served half as fast from then on.
    a = [Service("a", 0.0, float(at), at + 1.0, 10.0) for at in range(50)]
    a += [Service("a", 0.0, 50.0 + 2 * at, 52.0 + 2 * at, 10.0) for at in range(10)] + [Service("a", 0.0, 70.0, 70.0, 0.0)]
    b = [Service("b", 50.0, 50.0 + 2 * at, 52.0 + 2 * at, 10.0) for at in range(10)] + [Service("b", 50.0, 70.0, 70.0, 0.0)]
    found = fairness(a + b)
    assert found.contended_s == pytest.approx(20.0)
    assert found.rates == {"a": pytest.approx(5.0), "b": pytest.approx(5.0)}


def test_a_tenant_that_starves_is_the_worst():
    starved = [Service("b", 0.0, 100.0, 100.0, 0.0)]
    found = fairness(steady("a", 50, tokens=10) + starved)
    assert (found.max_min, found.jain) == (0.0, pytest.approx(0.5))


def test_a_tenant_that_gets_what_it_asks_for_is_not_the_worst():
    # a floods; every request of b waits a tenth of a second for a slot and then takes a second.
    flood = [Service("a", 0.0, float(at // 8), at // 8 + 1.0, 10.0) for at in range(400)] + [Service("a", 0.0, 100.0, 100.0, 0.0)]
    light = [Service("b", float(at), at + 0.1, at + 1.1, 10.0) for at in range(50)]
    found = fairness(flood + light)
    assert found.contended_s == pytest.approx(5.0)
    assert (set(found.rates), found.jain) == ({"a"}, 1.0)
    # Where each waits for longer than a request takes, it is short of service.
    waiting = [Service("b", float(at), at + 6.0, at + 7.0, 10.0) for at in range(0, 50, 5)]
    assert fairness(flood + waiting).rates["b"] < 0.5 * fairness(flood + waiting).rates["a"]


def test_with_nobody_to_compare_with_all_is_fair():
    assert fairness([]) == Fairness()
    assert fairness(steady("a", 5, tokens=1)).jain == 1.0
