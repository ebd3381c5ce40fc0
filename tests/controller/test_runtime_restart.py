"""The restart rule in virtual time."""

from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.runtime.supervisor import RestartHistory, RestartRule

RULE = RestartRule(first_s=1.0, longest_s=5.0, steady_s=30.0, burst=4, window_s=100.0)


def test_the_wait_doubles_up_to_a_limit_and_then_it_is_given_up():
    history = RestartHistory(RULE)
    assert [history.crashed(float(n), float(n)) for n in range(6)] == [1.0, 2.0, 4.0, 5.0, None, None]


def test_a_steady_run_starts_the_count_again():
    history = RestartHistory(RULE)
    history.crashed(0.0, 0.0)
    assert history.crashed(0.0, 1.0) == 2.0
    assert history.crashed(10.0, 40.0) == 1.0
    assert history.crashed(50.0, 51.0) == 2.0


def test_one_that_was_given_up_gets_one_try_until_a_run_is_steady():
    history = RestartHistory(RULE)
    assert [history.crashed(0.0, 0.0) for _ in range(5)][-1] is None
    assert history.crashed(500.0, 501.0) is None, "the old crashes are forgotten, and yet there is no new series"
    assert history.crashed(1000.0, 1030.0) == 1.0
    assert history.crashed(1031.0, 1032.0) == 2.0


def test_old_crashes_are_forgotten():
    history = RestartHistory(RULE)
    assert all(history.crashed(at - 1.0, at) is not None for at in (0.0, 60.0, 120.0, 180.0, 240.0, 300.0))


@given(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), max_size=60))
def test_waits_are_bounded_and_the_burst_is_the_limit(runs):
    history, now_s = RestartHistory(RULE), 0.0
    crashes: list[float] = []
    given_up = False
    for pause_s, run_s in runs:
        started_s = now_s + pause_s
        now_s = started_s + run_s
        crashes = [at for at in crashes if now_s - at <= RULE.window_s] + [now_s]
        wait_s = history.crashed(started_s, now_s)
        given_up = len(crashes) > RULE.burst or (given_up and now_s - started_s < RULE.steady_s)
        assert (wait_s is None) == given_up
        assert wait_s is None or RULE.first_s <= wait_s <= RULE.longest_s


def test_a_long_series_does_not_overflow():
    history = RestartHistory(RestartRule(burst=100_000, window_s=1e9))
    assert [history.crashed(0.0, 0.0) for _ in range(5000)][-1] == 10.0
