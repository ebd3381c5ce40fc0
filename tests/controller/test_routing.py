"""Routers choose among those that can take a request, and say why."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_kit import State, chosen, entry

from hmas.controller.core.errors import PolicyError
from hmas.controller.routing.registry import ROUTERS, WEIGHTS, make_router, read_router, router_text, split_router


@pytest.mark.parametrize("name", ROUTERS)
def test_every_instance_is_ranked_once_with_a_reason(name):
    router = make_router(name)
    for count in (1, 2, 7, 200):
        states = [State(f"i{place}", in_flight=place % 9) for place in range(count)]
        ranked = list(router.rank(entry(), states, 0.0))
        assert sorted(choice.instance for choice in ranked) == sorted(state.name for state in states)
        assert all(choice.reason for choice in ranked)


def test_least_loaded_goes_by_share_of_the_window_then_tokens_then_order():
    router = make_router("least-loaded")
    assert chosen(router, State("small", n_run=4, in_flight=2), State("large", n_run=40, in_flight=8)) == "large"
    assert chosen(router, State("a", in_flight=1, in_flight_tokens=900), State("b", in_flight=1, in_flight_tokens=20)) == "b"
    assert chosen(router, State("b"), State("a")) == "b"


def test_least_loaded_does_not_prefer_the_wider_of_two_windows_by_less_than_a_request():
    """Windows of 19 and 21 with as many in flight: the one with fewer tokens takes it, whichever that is."""
    router = make_router("least-loaded")
    for tokens, name in ((9000, "wide"), (100, "narrow")):
        narrow, wide = (
            State("narrow", n_run=19, in_flight=5, in_flight_tokens=tokens),
            State("wide", n_run=21, in_flight=5, in_flight_tokens=900),
        )
        assert chosen(router, narrow, wide) == name
    assert chosen(router, State("narrow", n_run=19, in_flight=7), State("wide", n_run=21, in_flight=5, in_flight_tokens=900)) == "wide"


def test_least_loaded_compares_unlike_windows_as_numbers():
    """A request is next to nothing in a wide window and all of a narrow one."""
    router = make_router("least-loaded")
    assert chosen(router, State("one", n_run=1), State("wide", n_run=64, in_flight=1, in_flight_tokens=900)) == "wide"
    narrow, wide = State("narrow", n_run=4, in_flight=3, in_flight_tokens=0), State("wide", n_run=64, in_flight=50, in_flight_tokens=90_000)
    assert chosen(router, narrow, wide) == "wide"


@given(loads=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=8), n_run=st.integers(1, 60))
def test_least_loaded_among_equal_windows_takes_the_fewest_in_flight_then_tokens(loads, n_run):
    states = [State(str(place), n_run=n_run, in_flight=count, in_flight_tokens=tokens) for place, (count, tokens) in enumerate(loads)]
    best = min(states, key=lambda state: (state.in_flight, state.in_flight_tokens))
    assert chosen(make_router("least-loaded"), *states) == best.name


@given(loads=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(0, 9)), min_size=1, max_size=8))
def test_least_loaded_never_takes_one_where_another_is_emptier_by_a_request(loads):
    states = [
        State(str(place), n_run=n_run, in_flight=count, in_flight_tokens=tokens) for place, (count, n_run, tokens) in enumerate(loads)
    ]
    taken = next(state for state in states if state.name == chosen(make_router("least-loaded"), *states))
    assert all(taken.in_flight * state.n_run <= (state.in_flight + 1) * taken.n_run for state in states)


def test_round_robin_takes_turns_and_passes_over_the_missing():
    router = make_router("round-robin")
    states = [State("a"), State("b"), State("c")]
    assert [chosen(router, *states) for _ in range(4)] == ["a", "b", "c", "a"]
    assert chosen(router, states[0], states[2]) == "c"
    assert Counter(chosen(router, *states) for _ in range(30)) == {"a": 10, "b": 10, "c": 10}


def test_round_robin_takes_turns_in_each_of_two_models():
    router = make_router("round-robin")
    first, second = [State("a-1"), State("a-2")], [State("b-1"), State("b-2")]
    assert Counter(chosen(router, *states) for _ in range(10) for states in (first, second)) == dict.fromkeys(
        ("a-1", "a-2", "b-1", "b-2"), 5
    )


def test_an_unknown_router_is_refused_with_what_is_allowed():
    with pytest.raises(PolicyError, match=r"'nope'.*least-loaded, round-robin"):
        make_router("nope")


def test_capacity_proportional_keeps_the_shares_of_the_cache_and_spreads_them():
    router = make_router("capacity-proportional")
    states = [State("a", kv_capacity_tokens=5000), State("b", kv_capacity_tokens=3000), State("c", kv_capacity_tokens=1000)]
    taken = [chosen(router, *states) for _ in range(90)]
    for start in range(0, 90, 9):
        assert Counter(taken[start : start + 9]) == {"a": 5, "b": 3, "c": 1}


def test_capacity_proportional_goes_by_windows_where_a_cache_is_unknown():
    router = make_router("capacity-proportional")
    states = [State("a", n_run=6, kv_capacity_tokens=5000), State("b", n_run=3)]
    assert Counter(chosen(router, *states) for _ in range(30)) == {"a": 20, "b": 10}


def test_a_turn_that_was_refused_is_not_lost():
    for name in ("round-robin", "capacity-proportional"):
        router = make_router(name)
        states = [State("a"), State("b"), State("c")]
        for _ in range(5):
            assert [choice.instance for choice in router.rank(entry(), states, 0.0)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("least-loaded:queue=1", r"'least-loaded' is not made of scorers and has no weights; those with weights: default"),
        ("default:cache=1", r"scorer 'cache' is unknown; allowed: queue, kv, first-token"),
        ("default:queue=x", r"weight of 'queue' is 'x'; allowed: 0 to 1000"),
        ("default:queue=nan", r"weight of 'queue' is 'nan'; allowed: 0 to 1000"),
        ("default:queue=-1", r"weight of 'queue' is '-1'"),
        ("latency-aware:first-token=0", "every weight is 0"),
    ],
)
def test_a_router_that_cannot_be_made_says_what_is_allowed(text, message):
    with pytest.raises(PolicyError, match=message):
        make_router(text)


def test_a_weight_in_the_text_replaces_that_of_the_router_and_0_leaves_the_scorer_out():
    assert read_router("default") == ("default", dict(WEIGHTS["default"]))
    assert read_router("default:queue=2:prefix=0:kv=0.5") == (
        "default",
        {"queue": 2.0, "speed": WEIGHTS["default"]["speed"], "session": WEIGHTS["default"]["session"], "kv": 0.5},
    )
    assert split_router(router_text("default", {"queue": 0.1234567891})) == ("default", {"queue": 0.1234567891})


@given(
    loads=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=40),
    name=st.sampled_from(["default", "session-affine", "prefix-aware"]),
)
def test_without_affinity_every_router_with_a_queue_scorer_chooses_as_least_loaded_among_equal_windows(loads, name):
    states = [State(str(place), in_flight=count, in_flight_tokens=tokens) for place, (count, tokens) in enumerate(loads)]
    assert chosen(make_router(name), *states) == chosen(make_router("least-loaded"), *states)


def test_of_many_instances_the_emptiest_and_the_favoured_are_scored():
    router = make_router("session-affine:session=3")
    states = [State(f"i{place:03d}", n_run=100, in_flight=50 + place % 40) for place in range(500)]
    states[77].in_flight = 60
    assert chosen(router, states[77], one=entry(session="s")) == "i077"
    assert chosen(router, *states, one=entry(session="s")) == "i077"
    assert chosen(router, *states, one=entry(session="other")) == "i000"
