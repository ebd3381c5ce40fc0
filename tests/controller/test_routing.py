"""Routers choose among those that can take a request, and say why."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Router
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.routing.registry import ROUTERS, make_router
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@dataclass
class State:
    name: str
    n_run: int = 10
    in_flight: int = 0
    in_flight_tokens: int = 0
    prefill_tokens: int = 0
    awaiting: int = 0
    kv_committed: float = 0.0

    @property
    def sequences(self) -> int:
        return self.in_flight


ENTRY = QueueEntry(
    request=Request(id="r", tenant="t", model="m", arrival_s=0.0, prompt_tokens=1),
    estimates=Estimates(slo=Slo(ttft_ms=1, tpot_ms=1)),
    seq=0,
)


def chosen(router: Router, *states: State) -> str:
    return known(router.choose(ENTRY, states)).instance


@pytest.mark.parametrize("name", ROUTERS)
def test_no_instance_is_no_choice_and_one_is_the_choice(name):
    router = make_router(name)
    assert router.choose(ENTRY, []) is None
    choice = known(router.choose(ENTRY, [State("only")]))
    assert choice.instance == "only"
    assert choice.reason


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


def test_an_unknown_router_is_refused_with_what_is_allowed():
    with pytest.raises(PolicyError, match=r"'nope'.*least-loaded, round-robin"):
        make_router("nope")
