import msgspec
import pytest

from hmas.demo.calibration import KNEE_SHARE, Variant, calibrate, middle_rps, run_virtual, sweep
from hmas.demo.settings import DemoSettings, demo_arrivals
from hmas.engines.sim.profile import faster, load_profile
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.score import score
from hmas.planning.backends import on_cores

MIXTURE, PROMPTS = load_mixture()
SETTINGS = DemoSettings(periods=1, period_s=4.0, backlog_requests=120)


@pytest.fixture(scope="module")
def calibration():
    return calibrate(SETTINGS, MIXTURE, PROMPTS, on_cores(1))


@pytest.fixture(scope="module")
def swept(arrivals):
    return sweep(arrivals, SETTINGS, on_cores(1), (8, 24, 48))


@pytest.fixture(scope="module")
def arrivals(calibration):
    return demo_arrivals(SETTINGS.workload(mean_rps=calibration.mean_rps, slo_scale=calibration.slo_scale), MIXTURE, PROMPTS)


def test_operating_point_follows_from_the_curve(calibration):
    best = max(point.throughput_rps for point in calibration.curve)
    assert calibration.capacity_rps == best
    assert calibration.mean_rps == pytest.approx(SETTINGS.load * best)
    assert calibration.knee.throughput_rps >= KNEE_SHARE * best
    smaller = [point for point in calibration.curve if point.n_run < calibration.knee.n_run]
    assert all(point.throughput_rps < KNEE_SHARE * best for point in smaller)


def test_tpot_targets_stay_away_from_the_knee(calibration, arrivals):
    targets = [a.slo.tpot_ms for a in arrivals if a.declares]
    assert sum(targets) / len(targets) == pytest.approx(SETTINGS.tpot_headroom * calibration.knee.tpot_ms, rel=0.1)


def test_capacity_does_not_depend_on_the_runs_seed(calibration):
    again = calibrate(msgspec.structs.replace(SETTINGS, seed=99), MIXTURE, PROMPTS, on_cores(1))
    assert again == calibration


def test_virtual_runs_are_repeatable_and_faster_engines_are_faster(arrivals):
    variant = Variant(name="x", n_run=16)
    profile = SETTINGS.engine_profile()
    first, end_s = run_virtual(arrivals, profile, variant, engines=2)
    assert (first, end_s) == run_virtual(arrivals, profile, variant, engines=2)
    assert {r.outcome for r in first} == {"completed"}
    assert [r.output_tokens for r in first] == [a.output_tokens for a in arrivals]
    _, slow_end_s = run_virtual(arrivals, load_profile(SETTINGS.profile), variant, engines=2)
    assert slow_end_s > end_s
    assert faster(profile, 2.0).step_ms == profile.step_ms / 2.0


def test_sweep_takes_the_best_of_what_it_tried(arrivals, swept):
    points, best = swept
    for overdue in ("keep", "shed"):
        mine = [p for p in points if p.overdue == overdue]
        assert max(p.goodput_rate for p in mine) == next(p.goodput_rate for p in mine if p.n_run == best[overdue])
    results, end_s = run_virtual(arrivals, SETTINGS.engine_profile(), Variant(name="x", n_run=best["shed"], overdue="shed"), engines=2)
    figures = score(results, warmup_s=SETTINGS.warmup_s, arrivals_end_s=SETTINGS.duration_s, run_end_s=end_s)
    assert figures.goodput_rate == pytest.approx(max(p.goodput_rate for p in points if p.overdue == "shed"), abs=1e-4)


def test_the_default_is_worse_than_a_tuned_window_at_this_load(arrivals, swept):
    points, _ = swept
    results, end_s = run_virtual(arrivals, SETTINGS.engine_profile(), Variant(name="engine-default"), engines=2)
    default = score(results, warmup_s=SETTINGS.warmup_s, arrivals_end_s=SETTINGS.duration_s, run_end_s=end_s)
    assert 0.2 < default.goodput_rate < max(p.goodput_rate for p in points)


def test_middle_throughput_ignores_filling_and_emptying():
    steady = [float(i) for i in range(100)]
    late = [*steady[:90], *(1000.0 + i for i in range(10))]
    assert middle_rps(steady) == pytest.approx(1.0)
    assert middle_rps(late) == pytest.approx(1.0)
    assert middle_rps([]) == middle_rps([5.0]) == 0.0
