"""What each scorer scores; every score is from 0 to 1."""

from collections.abc import Mapping
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_kit import State, chosen, entry

from hmas.controller.control.estimates import LEAST_ALONE_MS, MAX_MS
from hmas.controller.core.types import Request
from hmas.controller.routing.registry import SCORERS, make_router
from hmas.controller.routing.scored import ScoredRouter
from hmas.controller.routing.scorers.balance import Backlog
from hmas.controller.routing.scorers.load import times_alone
from hmas.controller.routing.scorers.session import SESSIONS_MOST, Session, mean_load, under_cap

number, share, speed = st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 50)
predicted = st.floats(LEAST_ALONE_MS, MAX_MS)


@pytest.mark.parametrize("name", SCORERS)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 64), number, number, number, st.floats(0, 1), number, st.floats(0, 50), st.floats(0, 50)), min_size=1
    ),
    prompt=number,
    output=st.floats(0, 1e6),
    alone=st.dictionaries(st.sampled_from(["i0", "i1", "i2", "gone"]), st.tuples(predicted, predicted)),
)
def test_scores_are_from_0_to_1_whatever_the_instances_are_like(name, rows, prompt, output, alone):
    scorer = SCORERS[name]()
    states = [
        State(f"i{place}", n_run, in_flight, tokens, prefill, 0, kv, capacity, prefill_ms, decode_ms)
        for place, (n_run, in_flight, tokens, prefill, kv, capacity, prefill_ms, decode_ms) in enumerate(rows)
    ]
    one = entry(prompt, output=output, session="s", blocks=(1, 2, 3), alone=alone)
    for _ in range(2):
        scores = scorer.score(one, states, 0.0)
        assert len(scores) in {0, len(states)}
        assert all(0.0 <= score <= 1.0 + 1e-9 for score in scores)
        if callable(sent := getattr(scorer, "sent", None)):
            sent(one, "i0", 0.0)


Alone = Mapping[str, tuple[float, float]]


def scores(name: str, *states: State, prompt: int = 100, output: float = 100.0, alone: Alone | None = None) -> list[float]:
    return SCORERS[name]().score(entry(prompt, output=output, alone=alone), states, 0.0)


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
    backlog.ended(other.request, "a", None)
    assert backlog.score(entry(100, output=99.0), states, 0.0) == [1.0, 1.0]


def test_backlog_keeps_the_work_in_flight_where_an_instance_fails_a_health_check():
    router = ScoredRouter("mine", [(Backlog(), 1.0)])
    states = [State(name, 20, decode_token_ms=10.0, prefill_token_ms=0.1) for name in ("a", "b")]

    def send() -> Request:
        one = entry(100, output=99.0)
        list(router.rank(one, states, 0.0))
        router.sent(one, "a", 0.0)
        return one.request

    def scored() -> dict[str, float]:
        return {choice.instance: choice.scores[0][1] for choice in router.rank(entry(100, output=99.0), states, 0.0)}

    sent = [send() for _ in range(10)]
    states[0].in_flight = 10
    router.left("a")
    of_ten = {"a": pytest.approx(1.0 / 1.5), "b": 1.0}
    assert scored() == of_ten, "10 s over 20 places, beside 1 s"
    sent.append(send())
    router.ended(sent.pop(0), "a", None)
    assert scored() == of_ten
    for request in sent:
        router.ended(request, "a", None)
    assert scored() == {"a": 1.0, "b": 1.0}, "nothing is kept of one that has gone"


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


def test_a_prediction_for_the_request_counts_within_a_factor_of_the_measured_time():
    measured = State("a", prefill_token_ms=0.1, decode_token_ms=10.0)  # 10 ms for the prompt, 1,000 for the output: 1,010 in all

    def counted(*predicted_ms: float) -> float:
        ((prompt_ms,), (token_ms,)) = times_alone(entry(100, output=100.0, alone={"a": (predicted_ms[0], predicted_ms[1])}), [measured])
        assert prompt_ms / token_ms == pytest.approx(predicted_ms[0] / predicted_ms[1]), "both are scaled alike"
        return prompt_ms + 100.0 * token_ms

    assert counted(40.0, 8.0) == pytest.approx(840.0)
    assert counted(40.0, 14.0) == pytest.approx(1440.0)
    assert counted(1e6, 1e6) == pytest.approx(1515.0)
    assert counted(0.001, 0.001) == pytest.approx(1010.0 / 1.5)
    # The first token alone may be far from the speed of mean prompts, if the whole is not.
    assert counted(200.0, 9.0) == pytest.approx(1100.0)


def test_where_nothing_is_measured_or_only_a_part_the_prediction_counts_as_it_is():
    states = [State("none"), State("prefill", prefill_token_ms=5.0), State("decode", decode_token_ms=5.0)]
    alone = {state.name: (40.0, 20.0) for state in states}
    assert times_alone(entry(100, alone=alone), states) == ([40.0] * 3, [20.0] * 3)


def test_an_instance_without_a_prediction_counts_by_its_speeds_and_one_without_either_as_the_mean():
    states = [State("predicted"), State("measured", prefill_token_ms=0.1, decode_token_ms=30.0), State("neither")]
    alone = {"predicted": (40.0, 10.0), "gone": (1.0, 1.0)}
    assert times_alone(entry(100, alone=alone), states) == ([40.0, 10.0, 25.0], [10.0, 30.0, 20.0])
    # Milliseconds of a prediction are not compared with the number of tokens that stands in where nothing at all is known.
    assert times_alone(entry(100, alone=alone), [states[0], states[2]]) == ([40.0] * 2, [10.0] * 2)
    assert times_alone(entry(100), [states[0], states[2]]) == ([100.0] * 2, [1.0] * 2)


def test_alone_and_backlog_and_completion_go_by_predictions():
    a, b = State("a"), State("b")
    alone = {"a": (100.0, 10.0), "b": (200.0, 30.0)}  # 1,100 and 3,200 ms with 100 tokens
    assert scores("alone", a, b, alone=alone) == pytest.approx([1.0 - 1100.0 / 3200.0, 0.0])
    assert scores("completion", a, b, alone=alone) == pytest.approx([1.0, 1100.0 / 3200.0])
    a.in_flight, a.prefill_tokens = 5, 50
    # Half a window and 50 tokens ahead, each of which counts as 1 ms while no speed is known.
    assert scores("completion", a, b, alone=alone) == pytest.approx([1.0, (50.0 + 100.0 + 1500.0) / 3200.0])
    backlog, one = Backlog(), entry(100, alone=alone)
    assert backlog.score(one, [a, b], 0.0) == [1.0, 1.0]
    backlog.sent(one, "a", 0.0)
    assert backlog.score(entry(100, alone=alone), [a, b], 0.0) == pytest.approx([1.0 / (1.0 + 1100.0 / 10 / 3200.0), 1.0])


def test_the_scorers_that_go_by_predictions_say_so():
    a, b = State("a", prefill_token_ms=0.1, decode_token_ms=10.0), State("b", prefill_token_ms=0.1, decode_token_ms=10.0)

    def scored(name: str, alone: Alone) -> list[float]:
        scorer = SCORERS[name]()
        for _ in range(2):  # one request is there already: a backlog
            one = entry(100, alone=alone)
            found = scorer.score(one, [a, b], 0.0)
            if callable(sent := getattr(scorer, "sent", None)):
                sent(one, "a", 0.0)
                a.in_flight = 1
        a.in_flight = 0
        return found

    changed = {name for name in SCORERS if scored(name, {}) != scored(name, {"b": (12.0, 12.0)})}
    assert changed == {name for name, kind in SCORERS.items() if getattr(kind, "uses_times_alone", False)}


def test_workload_balanced_sends_a_request_where_it_is_predicted_to_be_fast_before_any_speed_is_measured():
    alone = {"slow": (300.0, 40.0), "fast": (100.0, 10.0)}
    assert chosen(make_router("workload-balanced"), State("slow"), State("fast"), one=entry(100, alone=alone)) == "fast"
    assert chosen(make_router("workload-balanced"), State("slow"), State("fast"), one=entry(100)) == "slow", "the first of equals"


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


def test_capability_weighs_depths_beyond_q_max_too():
    for deeper in (0, 20_000):
        strong = State("a", 256, 200 + deeper, prefill_token_ms=0.1, decode_token_ms=10.0)
        weaker = State("b", 256, 40 + deeper, prefill_token_ms=0.101, decode_token_ms=10.1)
        found, full = scores("capability", strong, weaker)
        assert (found, full) == (pytest.approx(0.0, abs=1e-4), 1.0)


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
