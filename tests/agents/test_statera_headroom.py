"""Statera holds nobody back for nothing: the window below which no target is in danger, and lulls."""

from control_kit import completion, instance, short_view
from hypothesis import given
from hypothesis import strategies as st
from test_statera_plant import taught
from typing_kit import known

from hmas.agents.statera.loops import Load, WindowLoop
from hmas.agents.statera.model import StateraModel
from hmas.agents.statera.recent_misses import InstanceMisses
from hmas.agents.statera.target import VIEWS, SafeConcurrency, best_window


@given(
    base=st.floats(0, 1),
    slope=st.floats(1e-4, 0.2),
    seen=st.lists(st.integers(1, 200), min_size=VIEWS, max_size=3 * VIEWS),
    low=st.floats(0.3, 0.95),
)
def test_up_to_the_headroom_no_affine_plant_leaves_the_band(base, slope, seen, low):
    headroom = SafeConcurrency()
    for n in seen:
        headroom.sample(n, base + slope * n, low)
    u = base + slope * headroom.n_run
    assert u <= max(low, base + slope * min(seen[-VIEWS:])) + 1e-9


def test_it_says_nothing_before_it_has_looked_long_enough_and_after_it_was_told_otherwise():
    headroom = SafeConcurrency()
    for _ in range(VIEWS - 1):
        headroom.sample(10, 0.25, 0.75)
        assert headroom.n_run == 0
    headroom.sample(10, 0.25, 0.75)
    assert headroom.n_run == 30
    headroom.forget()
    assert headroom.n_run == 0


def test_a_jump_of_what_is_in_flight_does_not_count_before_utilization_has_followed():
    headroom = SafeConcurrency()
    for _ in range(VIEWS):
        headroom.sample(10, 0.5, 0.75)
    headroom.sample(100, 0.5, 0.75)
    assert headroom.n_run == 15


def windows(pressure_of, *, violations=0.0, steps=120, start=8):
    """The windows of a queue that never empties on a plant that answers at once."""
    model, n_run, found = StateraModel(period_s=0.25, n_run_start=start), start, []
    for step in range(steps):
        now_s = 0.25 * step
        u = pressure_of(n_run)
        seen = instance(tpot_pressure=u, in_flight=n_run, n_run=n_run, kv_committed=0.1)
        view = short_view(now_s, instances=[seen], queued=50, utilization={"i0": u}, tpot_violation_rate=violations)
        for action in model.observe(view, now_s):
            n_run = action.n_run
        found.append(n_run)
    return found


def test_a_window_that_endangers_nobody_opens():
    assert windows(lambda n: 0.01 * n)[-1] >= 70


def test_missed_targets_close_it_whatever_the_pressure_says():
    assert max(windows(lambda n: 0.001 * n, violations=0.9)) <= 16


def test_a_window_without_danger_beats_the_rate_of_the_outer_loop_but_not_the_rate_limit():
    loop = WindowLoop(1, 8.0, cold_low=4.0)
    loop.update(Load(in_flight=8, waits=False, ceiling=256, safe=200), None, 0.5)
    assert 11 <= loop.n_run(256) <= 12
    loop.update(Load(in_flight=8, waits=False, ceiling=10, safe=200), None, 0.5)
    assert loop.n_run(10) == 10


def test_a_lull_takes_no_window_away_and_the_fit_may():
    calm = taught(base_ms=15.0, slope_ms=0.1, n=8, slos_ms=[200.0])
    assert known(best_window(calm, now_n=120, low=1, high=256)).n_run == 120
    steep = taught(base_ms=15.0, slope_ms=5.0, n=8, slos_ms=[60.0])
    assert known(best_window(steep, now_n=120, low=1, high=256)).n_run <= 12


def test_misses_of_requests_with_several_answers_move_no_window():
    """Nine of ten requests ask for several answers and miss; the pace of the only instance suits the others."""
    one, misses = short_view(10.0, tpot_violation_rate=0.9), InstanceMisses()
    for number in range(10):
        misses.learn(completion(number, 10.0))
        misses.learn(completion(100 + number, 10.0, tpot_ms=80.0, sequences=4))
    assert misses.share(one, 10.0) == 0.0
    assert misses.share(one, 20.0) == 0.9, "once they have left the view, its share counts again"
    for number in range(10):
        misses.learn(completion(number, 20.0, tpot_ms=80.0 if number < 3 else 20.0))
    misses.learn(completion(200, 20.0, tpot_ms=80.0, sequences=4))
    assert misses.share(one, 20.0) == 0.3
