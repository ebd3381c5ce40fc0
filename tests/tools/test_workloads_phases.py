import numpy as np
import pytest

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.loadgen.dataset import load_mixture
from hmas.workloads import TASKS, build
from hmas.workloads.phases import INTERACTIVE, LONG

MIXTURE, _ = load_mixture()


def rates(workload, edges):
    return np.histogram(workload.at_s, bins=edges)[0] / np.diff(edges)


def share(workload, tasks, rows=slice(None)):
    return np.isin(workload.task[rows], [TASKS.index(task) for task in tasks]).mean()


def test_eq_13_steady_surge_and_on_off():
    workload = build("phases:rate=200,seed=2")
    assert workload.duration_s == 600.0
    steady, surge, fluctuating = rates(workload, [0, 200, 400, 600])
    # 24,000 to 56,000 arrivals a phase: one standard deviation is 0.65 % at most.
    assert (steady, surge, fluctuating) == pytest.approx((120.0, 280.0, 200.0), rel=0.026)
    last = rates(workload, np.arange(400, 601, 10))
    assert last[::2].mean() == pytest.approx(360.0, rel=0.02)
    assert last[1::2].mean() == pytest.approx(40.0, rel=0.06)
    assert last[::2].min() > 5 * last[1::2].max()
    assert workload.rate_rps == pytest.approx(200.0, rel=0.015)
    within = workload.at_s[(workload.at_s >= 200) & (workload.at_s < 400)]
    assert np.diff(within).std() / np.diff(within).mean() == pytest.approx(1.0, abs=0.02), "exponential gaps within a phase"


def test_phases_of_another_length_and_lengths_of_one_kind():
    workload = build("phases:rate=100,phase=60,kind=code")
    assert workload.duration_s == 180.0
    assert rates(workload, [0, 60, 120, 180]) == pytest.approx((60.0, 140.0, 100.0), rel=0.07)
    assert np.median(workload.output_tokens) == pytest.approx(13, abs=1)


def test_the_semantic_shift_changes_tasks_and_lengths_but_no_rate():
    workload = build("semantic:rate=60")
    assert rates(workload, [0, 200, 400, 600]) == pytest.approx((60.0, 60.0, 60.0), rel=0.04)
    first, second, third = (slice(*np.searchsorted(workload.at_s, (start, start + 200)).tolist()) for start in (0, 200, 400))
    assert share(workload, INTERACTIVE, first) == 1.0
    assert share(workload, LONG, second) == 1.0
    outputs = [np.median(workload.output_tokens[part]) for part in (first, second, third)]
    assert outputs[1] > 2 * outputs[0]
    spread = [np.log(workload.output_tokens[part]).std() for part in (first, second, third)]
    assert spread[2] > max(spread[:2]), "the mixed regime has the highest variance"
    assert share(workload, [TaskType.CODE_GENERATION], third) > 0.2


def test_the_semantic_shift_takes_a_traces_times(tmp_path):
    path = tmp_path / "a.csv"
    gaps = np.tile([0.1, 0.1, 1.0], 400)
    times = np.cumsum(gaps) - gaps[0]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{t:.3f},100,50\n" for t in times))
    workload = build(f"semantic:{path}?rate=5,phase=50")
    trace = build(f"azure:{path}?rate=5,duration=150")
    assert workload.at_s.tolist() == trace.at_s.tolist()
    assert (workload.prompt_tokens != trace.prompt_tokens).any()
    assert workload.duration_s == 150.0
    with pytest.raises(TraceError, match="more laps"):
        build(f"semantic:{path}?rate=50,phase=50")
    assert build(f"semantic:{path}?rate=50,phase=50,laps=10").rate_rps == pytest.approx(50.0, rel=0.05)


def test_bursts_leave_the_mean():
    workload = build("burst:rate=100,duration=1000,height=4,burst=2,period=20")
    assert workload.rate_rps == pytest.approx(100.0, rel=0.013)
    place = workload.at_s % 20.0
    bursting = (place >= 18.0).sum() / (2.0 * 50)
    resting = (place < 18.0).sum() / (18.0 * 50)
    assert (bursting, resting) == (pytest.approx(400.0, rel=0.02), pytest.approx(100.0 * 0.6 / 0.9, rel=0.02))
    assert share(workload, INTERACTIVE) == pytest.approx(share(build("poisson:rate=100,duration=1000"), INTERACTIVE), abs=0.01)


@pytest.mark.parametrize("options", ["height=20", "burst=20", "burst=30,height=0.1", "height=16,burst=1.3"])
def test_bursts_that_leave_no_base_are_refused(options):
    with pytest.raises(TraceError, match=r"height \* burst / period is .*; allowed: up to 1"):
        build(f"burst:{options}")


def test_a_burst_that_the_end_cuts_short():
    workload = build("burst:rate=100,duration=59,height=4,burst=2,period=20")
    assert rates(workload, [38, 40])[0] > 300
    assert workload.at_s[-1] < 59.0


def test_bursts_far_shorter_than_a_second():
    workload = build("burst:rate=2000,duration=10,height=4,burst=0.02,period=0.1")
    counts = np.histogram(workload.at_s, bins=np.arange(0, 10.0001, 0.02))[0].reshape(-1, 5).sum(axis=0)
    assert counts[4] / counts.sum() == pytest.approx(0.8, abs=0.02)


def test_the_mix_drifts_evenly_at_a_steady_rate():
    workload = build("drift:rate=100,first=0.2,last=0.8")
    assert rates(workload, np.arange(0, 601, 100)) == pytest.approx([100.0] * 6, rel=0.04)
    for start in range(0, 600, 100):
        rows = (workload.at_s >= start) & (workload.at_s < start + 100)
        assert share(workload, LONG, rows) == pytest.approx(0.2 + 0.6 * (start + 50) / 600, abs=0.02)
    tokens = [workload.output_tokens[(workload.at_s >= s) & (workload.at_s < s + 100)].mean() for s in (0, 200, 500)]
    assert tokens == sorted(tokens)


def test_a_shift_is_for_good():
    workload = build("shift:rate=100,duration=400,before=0.5,first=0.1,last=0.6")
    assert rates(workload, [0, 100, 200, 300, 400]) == pytest.approx([50.0, 50.0, 150.0, 150.0], rel=0.05)
    half = int(np.searchsorted(workload.at_s, 200.0))
    assert share(workload, LONG, slice(0, half)) == pytest.approx(0.1, abs=0.02)
    assert share(workload, LONG, slice(half, None)) == pytest.approx(0.6, abs=0.02)


def test_regimes_move_neither_times_nor_importance():
    steady, drifting = build("poisson:rate=40,duration=600,seed=9"), build("drift:rate=40,seed=9")
    assert (steady.at_s == drifting.at_s).all()
    assert (steady.importance == drifting.importance).all()


def test_tasks_within_a_regime_keep_their_weights():
    # 20,000 requests: a share's standard error is 0.0035 at most.
    workload = build("semantic:rate=100,seed=2")
    weights = {task: MIXTURE.kinds["conv"].tasks[task].weight for task in INTERACTIVE}
    first = workload.at_s < 200
    for task, weight in weights.items():
        assert share(workload, [task], first) == pytest.approx(weight / sum(weights.values()), abs=0.015)
