"""What each scorer scores; every score is from 0 to 1."""

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_kit import State, chosen, entry

from hmas.controller.routing.registry import SCORERS, make_router
from hmas.controller.routing.scored import ScoredRouter
from hmas.controller.routing.scorers.balance import Backlog
from hmas.controller.routing.scorers.session import SESSIONS_MOST, Session, mean_load, under_cap

number, share, speed = st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 50)


@pytest.mark.parametrize("name", SCORERS)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 64), number, number, number, st.floats(0, 1), number, st.floats(0, 50), st.floats(0, 50)), min_size=1
    ),
    prompt=number,
    output=st.floats(0, 1e6),
)
def test_scores_are_from_0_to_1_whatever_the_instances_are_like(name, rows, prompt, output):
    scorer = SCORERS[name]()
    states = [
        State(f"i{place}", n_run, in_flight, tokens, prefill, 0, kv, capacity, prefill_ms, decode_ms)
        for place, (n_run, in_flight, tokens, prefill, kv, capacity, prefill_ms, decode_ms) in enumerate(rows)
    ]
    one = entry(prompt, output=output, session="s", blocks=(1, 2, 3))
    for _ in range(2):
        scores = scorer.score(one, states, 0.0)
        assert len(scores) in {0, len(states)}
        assert all(0.0 <= score <= 1.0 + 1e-9 for score in scores)
        if callable(sent := getattr(scorer, "sent", None)):
            sent(one, "i0", 0.0)


def scores(name: str, *states: State, prompt: int = 100, output: float = 100.0) -> list[float]:
    return SCORERS[name]().score(entry(prompt, output=output), states, 0.0)


def test_queue_is_the_free_share_of_the_window():
    assert scores("queue", State("a"), State("b", in_flight=4), State("c", n_run=100, in_flight=9)) == pytest.approx([0.9, 0.5, 0.9])


def test_kv_is_the_free_share_of_the_fence():
    assert scores("kv", State("a", kv_committed=0.25), State("b", kv_committed=1.0)) == [0.75, 0.0]


def test_speed_counts_where_instances_differ_and_not_where_they_are_alike():
    ahead = State("a", prefill_tokens=2000, decode_token_ms=20.0, prefill_token_ms=0.1)
    assert scores("speed", ahead, State("b", decode_token_ms=30.0, prefill_token_ms=0.5)) == []
    assert scores("speed", ahead, State("b", decode_token_ms=30.1, prefill_token_ms=0.5)) == pytest.approx([1.0, 0.4])
    assert scores("speed", State("a"), State("b", decode_token_ms=20.0)) == [], "one that has measured nothing may be alike"


@given(prompt=number)
def test_speed_is_the_same_for_long_and_short_prompts(prompt):
    states = [State("a", decode_token_ms=20.0, prefill_token_ms=0.1), State("b", decode_token_ms=40.0, prefill_token_ms=0.2)]
    assert scores("speed", *states, prompt=prompt) == [1.0, 0.5]


rows_alike = st.lists(st.tuples(st.integers(0, 20), number, number, st.floats(20, 25), st.floats(0, 5)), min_size=1, max_size=9)


@given(rows=rows_alike, prompt=number)
def test_default_ranks_identical_engines_as_without_the_scorer_of_speed(rows, prompt):
    states = [
        State(f"i{place}", 32, in_flight, tokens, prefill, decode_token_ms=decode_ms, prefill_token_ms=prefill_ms)
        for place, (in_flight, tokens, prefill, decode_ms, prefill_ms) in enumerate(rows)
    ]
    one = entry(prompt)
    ranked = [[choice.instance for choice in make_router(text).rank(one, states, 0.0)] for text in ("default", "default:speed=0")]
    assert ranked[0] == ranked[1]


def test_default_prefers_the_faster_of_two_that_are_about_as_busy():
    fast, slow = (
        State("fast", 32, 3, decode_token_ms=10.0, prefill_token_ms=0.1),
        State("slow", 32, 2, decode_token_ms=20.0, prefill_token_ms=0.2),
    )
    assert chosen(make_router("default"), slow, fast) == "fast"
    fast.in_flight, fast.prefill_tokens = 3, 4000
    assert chosen(make_router("default"), slow, fast) == "slow", "the prompts that it has to compute first take longer"
    fast.in_flight, fast.prefill_tokens = 12, 0
    assert chosen(make_router("default"), slow, fast) == "slow"


def test_alone_is_the_time_without_load():
    fast, slow = State("fast", 9, 8, decode_token_ms=10.0, prefill_token_ms=0.1), State("slow", decode_token_ms=30.0, prefill_token_ms=0.1)
    assert scores("alone", fast, slow, prompt=1000, output=10.0) == pytest.approx([0.5, 0.0])
    assert scores("alone", fast, slow, prompt=10, output=0.0) == pytest.approx([0.0, 0.0])


def test_backlog_falls_with_the_work_that_was_sent_and_rises_when_it_ends():
    backlog = Backlog()
    states = [State("a", 2, decode_token_ms=10.0, prefill_token_ms=0.1), State("b", 2, decode_token_ms=20.0, prefill_token_ms=0.1)]
    one, other = entry(100, output=99.0), entry(100, output=99.0)
    assert backlog.score(one, states, 0.0) == [1.0, 1.0]
    backlog.sent(one, "a", 0.0)
    states[0].in_flight = 1
    # 1,000 ms of work over two places, beside 1,990 ms that the request takes on the slower one.
    assert backlog.score(other, states, 0.0) == pytest.approx([1.0 / (1.0 + 500.0 / 1990.0), 1.0])
    backlog.sent(other, "a", 0.0)
    states[0].in_flight = 2
    assert backlog.score(entry(100, output=99.0), states, 0.0)[0] == pytest.approx(1.0 / (1.0 + 1000.0 / 1990.0))
    backlog.ended(one.request, "a", None)
    states[0].in_flight = 1
    assert backlog.score(entry(100, output=99.0), states, 0.0)[0] == pytest.approx(1.0 / (1.0 + 500.0 / 1990.0))
    backlog.left("a")
    backlog.ended(other.request, "a", None)
    assert backlog.score(entry(100, output=99.0), states, 0.0) == [1.0, 1.0]


def test_backlog_counts_a_request_that_had_no_choice_as_the_mean_of_the_others():
    backlog = Backlog()
    states = [State("a", 1, 2, decode_token_ms=10.0, prefill_token_ms=0.1), State("b", 1, decode_token_ms=10.0, prefill_token_ms=0.1)]
    one = entry(100, output=99.0)
    backlog.score(one, states, 0.0)
    backlog.sent(one, "a", 0.0)
    backlog.sent(entry(100, output=5000.0), "a", 0.0)
    assert backlog.score(entry(100, output=99.0), states, 0.0) == pytest.approx([1.0 / 3.0, 1.0])


def test_workload_balanced_goes_by_work_not_by_the_number_of_requests():
    router = make_router("workload-balanced")
    states = [State("a", 8, decode_token_ms=10.0, prefill_token_ms=0.1), State("b", 8, decode_token_ms=10.0, prefill_token_ms=0.1)]
    assert chosen(router, *states, one=entry(100, output=5000.0)) == "a"
    states[0].in_flight = 1
    for _ in range(4):
        assert chosen(router, *states, one=entry(100, output=100.0)) == "b"
        states[1].in_flight += 1


def test_first_token_goes_by_prompts_ahead_and_speed():
    fast, slow = State("fast", prefill_tokens=900, prefill_token_ms=0.1), State("slow", prefill_token_ms=0.5)
    assert scores("first-token", fast, slow) == pytest.approx([0.5, 1.0])
    # One that has measured nothing counts as the mean.
    assert scores("first-token", State("fast", prefill_token_ms=0.1), State("new"), State("slow", prefill_token_ms=0.3)) == pytest.approx(
        [1.0, 0.5, 1 / 3]
    )
    assert scores("first-token", State("a", prefill_tokens=100), State("b")) == pytest.approx([0.5, 1.0])


def test_completion_prefers_a_fast_busy_instance_to_a_slow_idle_one():
    fast = State("fast", in_flight=5, prefill_token_ms=0.1, decode_token_ms=10.0)
    slow = State("slow", prefill_token_ms=0.1, decode_token_ms=30.0)
    assert scores("completion", fast, slow) == pytest.approx([1.0, 1510 / 3010])


def test_a_session_stays_where_it_was_unless_that_is_much_busier():
    router = make_router("session-affine")
    states = [State("a"), State("b", in_flight=1), State("c", in_flight=1)]
    assert chosen(router, states[1], one=entry(session="s")) == "b"
    assert chosen(router, *states, one=entry(session="s")) == "b"
    assert chosen(router, *states, one=entry(session="s", tenant="another")) == "a", "sessions of tenants are apart"
    states[1].in_flight = 8
    assert chosen(router, *states, one=entry(session="s")) == "a"
    assert chosen(router, *states, one=entry(session="s")) == "a", "the session has moved"


def test_sessions_are_bounded():
    scorer = Session()
    for place in range(SESSIONS_MOST + 100):
        scorer.sent(entry(session=str(place)), "a", 0.0)
    assert len(scorer) == SESSIONS_MOST
    assert list(scorer.favours(entry(session="0"))) == []
    assert list(scorer.favours(entry(session=str(SESSIONS_MOST)))) == ["a"]


def test_affinity_ends_above_one_and_a_half_times_the_mean_load():
    others = [State("b", n_run=100, in_flight=40), State("c", n_run=100, in_flight=40)]
    for in_flight, counts in ((60, True), (90, False)):
        hot = State("a", n_run=100, in_flight=in_flight)
        assert under_cap(hot, mean_load([hot, *others])) is counts


def capability(prompt: int, *states: State, learned: int = 200) -> str:
    """The choice after so many prompts of this length."""
    router = make_router("capability-weighted")
    for _ in range(learned):
        chosen(router, State("other"), one=entry(prompt, output=10))
    return chosen(router, *states, one=entry(prompt, output=10))


def test_capability_weighs_compute_for_short_and_memory_for_long_prompts():
    """Eq. 2: 3 times the compute against 3 times the memory."""
    compute = State("compute", prefill_token_ms=0.1, decode_token_ms=10.0, kv_capacity_tokens=100_000)
    memory = State("memory", prefill_token_ms=0.3, decode_token_ms=10.0, kv_capacity_tokens=300_000)
    assert capability(64, compute, memory) == "compute"
    assert capability(500, compute, memory) == "compute"
    assert capability(3000, compute, memory) == "memory"


def test_capability_settles_at_the_depths_of_eq_5():
    """The weights are equal where the depths differ by Q_max / lambda times the log of the ratio of kappa: 16 ln(2^.7) = 7.8."""
    router = make_router("capability-weighted")
    strong = State("strong", prefill_token_ms=0.1, decode_token_ms=10.0)
    weak = State("weak", prefill_token_ms=0.2, decode_token_ms=20.0)
    for _ in range(30):
        name = chosen(router, strong, weak, one=entry(500))
        (strong if name == "strong" else weak).in_flight += 1
    assert strong.in_flight - weak.in_flight == pytest.approx(7.8, abs=1.5)


def test_capability_leaves_an_instance_whose_cache_does_not_hold_the_p90_of_such_prompts_for_last():
    """Eq. 4, and Eq. 6: as many sequences as the cache holds of the mean context."""
    small = State("small", prefill_token_ms=0.1, decode_token_ms=5.0, kv_capacity_tokens=3000)
    large = State("large", prefill_token_ms=0.4, decode_token_ms=20.0, kv_capacity_tokens=60_000)
    assert capability(100, small, large) == "small"
    assert capability(2900, small, large) == "large"
    small.in_flight = 25
    assert capability(100, small, large) == "large", "0.9 * 3000 / 110 sequences"


def test_a_scorer_that_gives_too_few_scores_is_named():
    class Short:
        name: ClassVar[str] = "short"
        summary: ClassVar[str] = "wrong"

        def score(self, entry, instances, now_s):
            return [1.0]

    with pytest.raises(ValueError, match="scorer 'short' gave 1 scores for 2 instances"):
        list(ScoredRouter("mine", [(Short(), 1.0)]).rank(entry(), [State("a"), State("b")], 0.0))
