"""What telemetry had told by the time a request was sent: averages by tokens, answers of like length, and who still waits."""

import math

import numpy as np
import pytest
from hmas_lab.llm_pilot.state import LIKE, RECENT, STATE, state_of
from hypothesis import given
from hypothesis import strategies as st


def states(*requests: tuple[float, float, float, float], users: float = 4.0) -> dict[str, np.ndarray]:
    """Of requests given as (sent, first token, end, tokens)."""
    start, first, end, output = np.array(requests, dtype=np.float64).T
    itl = np.where(output > 1, (end - first) / np.maximum(1.0, output - 1.0), math.nan)
    found = state_of(
        users=np.full(len(start), users),
        output=output,
        start_ms=start,
        first_ms=first,
        end_ms=end,
        ttft_ms=first - start,
        itl_ms=itl,
    )
    return {name: found[:, number] for number, name in enumerate(STATE)}


def test_times_between_tokens_count_by_tokens():
    # One step of 900 ms, and a hundred of 10 ms: a token took 19 ms, not 455.
    state = states((0, 100, 1000, 2), (0, 100, 1100, 101), (2000, 2100, 2200, 5))
    assert state["recent_itl"][2] == pytest.approx(math.log((900 + 100 * 10) / 101))
    assert state["long_itl"][2] == state["recent_itl"][2]
    assert state["decoded"][2] == pytest.approx(math.log(3))
    assert np.isnan(state["recent_itl"][:2]).all()


def test_an_answer_is_compared_with_those_of_its_length():
    short = [(100.0 * at, 100.0 * at + 10, 100.0 * at + 60, 2.0) for at in range(LIKE + 2)]
    long = [(100.0 * at, 100.0 * at + 10, 100.0 * at + 10 + 29 * 7.0, 30.0) for at in range(LIKE)]
    state = states(*short, *long, (5000, 5010, 5020, 2), (5000, 5010, 5020, 40), (5000, 5010, 5020, 80))
    assert state["like_itl"][-3:-1] == pytest.approx([math.log(50), math.log(7)])
    assert math.isnan(state["like_itl"][-1]), "no answer that long has ended"


def test_the_oldest_that_waits_and_the_last_token_are_told():
    state = states((0, 500, 900, 9), (100, 150, 900, 9), (200, 700, 900, 9), (600, 650, 900, 9))
    assert math.isnan(state["oldest_waiting"][0])
    assert np.expm1(state["oldest_waiting"][1:]) == pytest.approx([100, 200, 400])
    assert np.isnan(state["since_first"][:2]).all()
    assert np.expm1(state["since_first"][2:]) == pytest.approx([50, 100])
    assert state["waiting_share"].tolist() == [0, 0.25, 0.25, 0.25]


def test_the_newest_first_tokens_weigh_most():
    slow = [(10.0 * at, 10.0 * at + 5, 10.0 * at + 6, 1.0) for at in range(50)]
    fast = [(1000 + 10.0 * at, 1000 + 10.0 * at + 1, 1000 + 10.0 * at + 2, 1.0) for at in range(RECENT)]
    state = states(*slow, *fast, (5000, 5001, 5002, 1))
    assert state["last_ttft"][-1] == pytest.approx(0.0)
    assert state["recent_ttft"][-1] == pytest.approx(0.0)
    assert 0.0 < state["long_ttft"][-1] < math.log(5)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e9), st.floats(1e-3, 1e6), st.floats(0, 1e6), st.integers(1, 500)),
        min_size=1,
        max_size=60,
    )
)
def test_no_log_breaks_it(requests):
    found = states(*((sent, sent + wait, sent + wait + rest + 1e-3, float(tokens)) for sent, wait, rest, tokens in requests))
    for name in ("told", "decoded", "in_flight_share", "waiting_share", "burst_share"):
        assert np.isfinite(found[name]).all()
    assert not any(np.isinf(values).any() for values in found.values())
