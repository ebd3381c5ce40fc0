from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.arrivals import ArrivalSpec, arrival_times
from hmas.loadgen.dataset import load_mixture, quantile, rank
from hmas.loadgen.streams import Draws, stream
from hmas.loadgen.workload import WorkloadSpec, draw_shapes, fit, generate, pick

MIXTURE, PROMPTS = load_mixture()


def spec(seed=1, rate=8.0, duration=10.0, **kwargs):
    return WorkloadSpec(arrivals=ArrivalSpec(mean_rps=rate, duration_s=duration), seed=seed, context_tokens=16384, **kwargs)


def test_same_seed_same_workload_and_another_seed_another():
    first, again, other = (generate(spec(seed), MIXTURE, PROMPTS) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_changing_one_purpose_leaves_the_others():
    base = draw_shapes(spec(), MIXTURE, 200)
    more = draw_shapes(spec(rate=80.0), MIXTURE, 900)
    assert more[:200] == base, "a higher load draws the same requests, only more of them"
    loose = generate(spec(slo_scale=2.0), MIXTURE, PROMPTS)
    tight = generate(spec(slo_scale=1.0), MIXTURE, PROMPTS)
    assert [a.messages for a in loose] == [a.messages for a in tight]
    assert [a.at_s for a in loose] == [a.at_s for a in tight]
    assert all(a.slo.ttft_ms > b.slo.ttft_ms for a, b in zip(loose, tight, strict=True))


def test_lengths_follow_the_published_statistics():
    shapes = draw_shapes(spec(), MIXTURE, 20_000)
    for kind, prompt_median, prompt_p95, output_median, output_p95 in (("conv", 1015, 4086, 114, 447), ("code", 1463, 7154, 13, 87)):
        prompts = [s.prompt_tokens for s in shapes if s.kind == kind]
        outputs = [s.output_tokens for s in shapes if s.kind == kind]
        assert np.percentile(prompts, 50) == pytest.approx(prompt_median, rel=0.12)
        assert np.percentile(prompts, 95) == pytest.approx(prompt_p95, rel=0.05)
        assert np.percentile(outputs, 50) == pytest.approx(output_median, rel=0.12)
        assert np.percentile(outputs, 95) == pytest.approx(output_p95, rel=0.12)


def test_the_task_type_says_something_about_the_output():
    shapes = [s for s in draw_shapes(spec(), MIXTURE, 5000) if s.kind == "conv"]
    by_task = {task: np.median([s.output_tokens for s in shapes if s.task == task]) for task in {s.task for s in shapes}}
    assert (
        by_task[TaskType.EXTRACTION] < by_task[TaskType.DIALOGUE] < by_task[TaskType.LETTER_DRAFTING] < by_task[TaskType.ESSAY_GENERATION]
    )
    logs = np.log([s.output_tokens for s in shapes])
    known = np.log([by_task[s.task] for s in shapes])
    assert np.corrcoef(logs, known)[0, 1] > 0.6


def test_prompts_have_the_length_they_state_and_close_to_the_drawn_one():
    arrivals = generate(spec(rate=20.0), MIXTURE, PROMPTS)
    shapes = draw_shapes(spec(), MIXTURE, len(arrivals))
    for arrival, shape in zip(arrivals, shapes, strict=True):
        assert arrival.prompt_tokens == estimate_tokens(arrival.messages[0].content)
        if shape.prompt_tokens > 120:
            assert arrival.prompt_tokens == pytest.approx(shape.prompt_tokens, rel=0.1, abs=12)


def test_every_task_type_has_templates_and_no_slot_is_left_open():
    assert set(PROMPTS.tasks) == set(TaskType) - {TaskType.UNKNOWN}
    for arrival in generate(spec(rate=30.0), MIXTURE, PROMPTS):
        assert "{topic}" not in arrival.messages[0].content
        assert "{person}" not in arrival.messages[0].content


def test_slo_is_table_6_by_importance_and_scale():
    for arrival in generate(spec(slo_scale=0.5), MIXTURE, PROMPTS):
        assert 0.5 <= arrival.importance <= 1.0
        assert arrival.slo == slo_for(arrival.task_type, arrival.importance, 0.5)


def test_the_declared_cap_is_the_same_for_all_of_a_kind():
    caps = {(a.kind, a.max_tokens) for a in generate(spec(rate=20.0), MIXTURE, PROMPTS)}
    assert caps == {("conv", 1024), ("code", 2048)}


def test_outputs_can_be_cut():
    shapes = draw_shapes(spec(max_output_tokens=100), MIXTURE, 500)
    whole = draw_shapes(spec(), MIXTURE, 500)
    assert [s.output_tokens for s in shapes] == [min(100, s.output_tokens) for s in whole]
    assert {s.max_tokens for s in shapes} == {100}


@given(st.integers(1, 20_000), st.integers(1, 4000), st.integers(256, 20_000))
def test_fit_leaves_room_in_the_context(prompt, output, context):
    shape = fit(draw_shapes(spec(), MIXTURE, 1)[0]._replace(prompt_tokens=prompt, output_tokens=output), context)
    assert 1 <= shape.output_tokens <= shape.max_tokens
    assert shape.prompt_tokens >= 1
    assert shape.prompt_tokens + shape.max_tokens <= context


def test_bursts_have_the_stated_mean_and_factors():
    times = arrival_times(ArrivalSpec(mean_rps=200.0, duration_s=100.0, period_s=10.0), stream(3, "arrivals"))
    assert len(times) == pytest.approx(20_000, rel=0.03)
    high = sum((t % 10.0) < 5.0 for t in times)
    assert high / len(times) == pytest.approx(0.9, abs=0.01)
    assert list(times) == sorted(times)


def test_factors_that_break_the_mean_are_refused():
    with pytest.raises(ValueError, match=r"high \+ low must be 2"):
        arrival_times(ArrivalSpec(mean_rps=1.0, duration_s=1.0, high=3.0, low=0.2), stream(1, "arrivals"))


@settings(max_examples=50)
@given(st.integers(0, 1000), st.floats(0.5, 50.0), st.floats(0.5, 60.0), st.sampled_from(["poisson", "bursty"]))
def test_times_lie_in_order_within_the_duration(seed, rate, duration, process):
    times = arrival_times(ArrivalSpec(mean_rps=rate, duration_s=duration, process=process), stream(seed, "arrivals"))
    assert all(0.0 <= t <= duration for t in times)
    assert list(times) == sorted(times)


def test_a_denser_load_is_the_same_arrivals_squeezed():
    slow = arrival_times(ArrivalSpec(mean_rps=1.0, duration_s=100.0, process="poisson"), stream(5, "arrivals"))
    fast = arrival_times(ArrivalSpec(mean_rps=2.0, duration_s=50.0, process="poisson"), stream(5, "arrivals"))
    assert np.allclose(slow / 2.0, fast)


def test_rank_inverts_quantile():
    table = MIXTURE.kinds["conv"].output_tokens
    for u in (0.05, 0.3, 0.5, 0.9):
        assert rank(table, float(quantile(table, np.array([u]))[0])) == pytest.approx(u, abs=0.02)


def test_pick_keeps_the_shares():
    counts = Counter(pick({"a": 1.0, "b": 3.0}, u) for u in stream(1, "x").random(4000))
    assert counts["b"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert pick({"a": 1.0, "b": 3.0}, 1.0) == "b"


def test_draws_are_bounded_and_repeatable():
    first, second = Draws(stream(1, "t")), Draws(stream(1, "t"))
    values = [first.below(7) for _ in range(2000)]
    assert values == [second.below(7) for _ in range(2000)]
    assert set(values) == set(range(7))
