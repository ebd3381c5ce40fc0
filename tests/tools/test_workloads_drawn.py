import hashlib

import msgspec
import numpy as np
import pytest

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import slo_for
from hmas.loadgen.arrivals import ArrivalSpec, renewal_times
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.requests import draw_requests, whole_mixture
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import WorkloadSpec, draw_shapes, generate
from hmas.workloads import TASKS, build

MIXTURE, _ = load_mixture()


def dispersion(times, duration_s, bin_s):
    """Variance over mean of the counts in bins: 1 for Poisson at every bin width."""
    counts = np.histogram(times, bins=np.arange(0.0, duration_s + bin_s / 2, bin_s))[0]
    return counts.var() / counts.mean()


def gap_cv(times):
    gaps = np.diff(times)
    return gaps.std() / gaps.mean()


def test_poisson_has_its_rate_and_the_variance_of_poisson():
    workload = build("poisson:rate=50,duration=1000,seed=3")
    # 50,000 arrivals: the count's standard deviation is 224, that of the dispersion over 1,000 bins 0.045.
    assert len(workload) == pytest.approx(50_000, abs=4 * 224)
    assert gap_cv(workload.at_s) == pytest.approx(1.0, abs=0.02)
    assert dispersion(workload.at_s, 1000.0, 1.0) == pytest.approx(1.0, abs=0.18)
    assert workload.duration_s == 1000.0


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_renewal_gaps_have_the_stated_mean_and_cv(cv):
    times = renewal_times(100.0, cv, 2000.0, stream(5, "arrivals"))
    assert len(times) / 2000.0 == pytest.approx(100.0, rel=4 * cv / np.sqrt(200_000))
    assert gap_cv(times) == pytest.approx(cv, rel=0.06)
    # Over windows much longer than a burst a renewal process's dispersion goes to its squared CV.
    assert dispersion(times, 2000.0, 5.0) == pytest.approx(cv**2, rel=0.35)


def test_a_bursty_process_starts_in_the_middle_not_with_a_burst():
    counts = [len(renewal_times(1.0, 5.0, 50.0, stream(seed, "arrivals"))) for seed in range(2000)]
    # Var(N) is near cv^2 * 50, so the mean over 2,000 has a standard error of about 0.8. Starting with a whole gap would give 62.
    assert np.mean(counts) == pytest.approx(50.0, abs=3.2)


def test_columns_are_the_very_shapes_that_the_demo_draws():
    count, seed = 4000, 7
    shapes = draw_shapes(WorkloadSpec(arrivals=ArrivalSpec(mean_rps=1.0, duration_s=1.0), seed=seed, context_tokens=10**7), MIXTURE, count)
    drawn = draw_requests(MIXTURE, count, seed, [whole_mixture(MIXTURE)])
    assert [s.task for s in shapes] == [TASKS[t] for t in drawn.task]
    assert [s.max_tokens for s in shapes] == drawn.max_tokens.tolist()
    # The rank is read off a grid: a value that lies on the edge between two whole numbers may fall on the other.
    for mine, theirs in ((drawn.prompt_tokens, "prompt_tokens"), (drawn.output_tokens, "output_tokens")):
        apart = np.abs(mine - np.array([getattr(s, theirs) for s in shapes]))
        assert apart.max() <= 1
        assert (apart > 0).mean() < 0.01


def test_lengths_follow_the_published_quantiles_and_classes_their_weights():
    for kind, prompts, outputs in (("conv", (1015, 4086), (114, 447)), ("code", (1463, 7154), (13, 87))):
        workload = build(f"poisson:rate=400,duration=100,kind={kind}")
        assert np.percentile(workload.prompt_tokens, [50, 95]) == pytest.approx(prompts, rel=0.06)
        assert np.percentile(workload.output_tokens, [50, 95]) == pytest.approx(outputs, rel=0.06)
        weights = {task: spec.weight for task, spec in MIXTURE.kinds[kind].tasks.items()}
        for task, weight in weights.items():
            share = (workload.task == TASKS.index(task)).mean()
            assert share == pytest.approx(weight / sum(weights.values()), abs=0.01)


def test_slo_is_table_6_by_importance_and_scale():
    workload = build("poisson:rate=20,duration=50,slo_scale=0.5")
    for row in range(len(workload)):
        slo = slo_for(TASKS[workload.task[row]], float(workload.importance[row]), 0.5)
        assert (workload.slo_ttft_ms[row], workload.slo_tpot_ms[row]) == (slo.ttft_ms, slo.tpot_ms)
    assert workload.importance.mean() == pytest.approx(0.75, abs=0.02)
    assert set(build("poisson:rate=20,duration=5,ttft_ms=500,tpot_ms=40").slo_ttft_ms.tolist()) == {500.0}


def test_the_demo_draws_what_it_always_drew():
    """A digest of whole arrivals, text and all, under the pinned numpy: the demo's published figures rest on them."""
    spec = WorkloadSpec(arrivals=ArrivalSpec(mean_rps=6.0, duration_s=30.0), seed=11, context_tokens=8192)
    rows = msgspec.to_builtins(generate(spec, *load_mixture()))
    # Fields that came later and that this load does not use.
    assert {(row.pop("declares"), row.pop("body")) for row in rows} == {(True, None)}
    drawn = msgspec.json.encode(rows)
    assert hashlib.sha256(drawn).hexdigest() == "41000daff14e0d382a17f9a2604946db8738a97d25e320249c2a6424f182d756"


def same(a, b, *fields):
    return all((getattr(a, f) == getattr(b, f)).all() for f in fields)


def test_each_purpose_has_its_own_stream():
    base = build("poisson:rate=10,duration=60,seed=4")
    denser = build("poisson:rate=40,duration=60,seed=4").rows(0, len(base))
    lengths = ("prompt_tokens", "output_tokens", "task", "tenant", "importance")
    assert same(base, denser, *lengths), "a higher rate moves no length"
    assert denser.at_s == pytest.approx(base.at_s / 4)
    assert same(base, build("poisson:rate=10,duration=60,seed=4,kind=code"), "at_s", "importance"), "other lengths move no time"
    assert same(base, build("poisson:rate=10,duration=60,seed=4,slo_scale=3"), "at_s", *lengths)
    bursty = build("gamma:rate=40,cv=3,duration=60,seed=4")
    fewer = min(len(base), len(bursty))
    assert same(base.rows(0, fewer), bursty.rows(0, fewer), *lengths)
    other = build("poisson:rate=10,duration=60,seed=5")
    assert other.at_s[0] != base.at_s[0]


def test_a_count_ends_a_workload():
    workload = build("poisson:rate=40,count=1000")
    assert len(workload) == 1000
    assert workload.rate_rps == pytest.approx(40.0, rel=0.15)
    assert (workload.at_s == build("poisson:rate=40,duration=600").at_s[:1000]).all(), "the same draws"
    assert len(build("gamma:rate=40,cv=4,count=1000")) == 1000
    assert len(build("poisson:rate=40,count=1000,duration=1")) < 60


def test_fixed_lengths():
    workload = build("poisson:rate=10,duration=10,prompt=777,output=5000")
    assert set(workload.prompt_tokens.tolist()) == {777}
    assert set(workload.output_tokens.tolist()) == {5000}


def test_lengths_of_a_file_are_resampled_in_pairs(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "".join(f"{n},{n * 2}\n" for n in range(100, 200)))
    workload = build(f"poisson:rate=50,duration=20,lengths={path}")
    assert (workload.output_tokens == 2 * workload.prompt_tokens).all()
    assert len(set(workload.prompt_tokens.tolist())) > 90
    with pytest.raises(TraceError, match="no such file"):
        build(f"poisson:lengths={tmp_path / 'none.csv'}")


def test_a_context_cuts_as_the_demo_cuts():
    workload = build("poisson:rate=100,duration=50,context=2048")
    assert (workload.prompt_tokens + workload.max_tokens <= 2048).all()
    assert (workload.output_tokens <= 512).all()
    assert workload.prompt_tokens.max() == int(2048 * 0.95) - 512
