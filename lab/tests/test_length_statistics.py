"""Length statistics by group."""

import math

import numpy as np
import pytest
from hmas_lab.lengths import statistics as module
from hmas_lab.lengths.statistics import LengthStatistics, bucket
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.perception.lengths.priors import PRIOR
from hmas.controller.core.types import TaskType


def test_lengths_follow_what_a_tenants_tasks_produce():
    statistics = LengthStatistics()
    rng = np.random.default_rng(3)
    for _ in range(300):
        for tenant, mean in (("short", 20), ("long", 900)):
            tokens = max(1, int(mean * rng.lognormal(0, 0.3)))
            statistics.learn(tenant=tenant, task=TaskType.QA, prompt_tokens=100, output_tokens=tokens)
    short = statistics.estimate(tenant="short", task=TaskType.QA, prompt_tokens=100)
    long = statistics.estimate(tenant="long", task=TaskType.QA, prompt_tokens=100)
    assert short.p50 == pytest.approx(20, rel=0.35)
    assert short.p90 == pytest.approx(20 * math.exp(0.3 * 1.2816), rel=0.35)
    assert long.p50 == pytest.approx(900, rel=0.35)


def test_a_strange_tenant_gets_the_task_and_a_strange_task_the_prior():
    statistics = LengthStatistics()
    for _ in range(100):
        statistics.learn(tenant="a", task=TaskType.QA, prompt_tokens=100, output_tokens=10)
    stranger = statistics.estimate(tenant="b", task=TaskType.QA, prompt_tokens=100).p50
    assert stranger == pytest.approx(10, rel=0.2)
    essay = statistics.estimate(tenant="a", task=TaskType.ESSAY_GENERATION, prompt_tokens=100)
    assert essay.p50 == pytest.approx(PRIOR[TaskType.ESSAY_GENERATION].p50)
    assert essay.p90 == pytest.approx(PRIOR[TaskType.ESSAY_GENERATION].p90)


def test_a_shift_is_followed_within_the_memory():
    statistics = LengthStatistics()
    for tokens in [500] * 200 + [20] * module.KEEP:
        statistics.learn(tenant="t", task=TaskType.QA, prompt_tokens=10, output_tokens=tokens)
    assert statistics.estimate(tenant="t", task=TaskType.QA, prompt_tokens=10).p90 == pytest.approx(20, rel=0.15)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "GROUPS", 50)
    statistics = LengthStatistics()
    for number in range(500):
        statistics.learn(tenant=f"tenant {number}", task=TaskType.QA, prompt_tokens=100, output_tokens=5)
    assert len(statistics) <= 50


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from(TaskType), st.integers(0, 10**6), st.integers(1, 10**6)), max_size=60
    ),
    st.sampled_from(["a", "c", ""]),
    st.sampled_from(TaskType),
    st.integers(0, 10**6),
    st.floats(0, 1e5),
)
def test_quantiles_are_positive_finite_and_ordered(history, tenant, task, prompt_tokens, demanded):
    statistics = LengthStatistics()
    for who, what, prompt, output in history:
        statistics.learn(tenant=who, task=what, prompt_tokens=prompt, output_tokens=output)
    length = statistics.estimate(tenant=tenant, task=task, prompt_tokens=prompt_tokens, demanded=demanded)
    assert 0 < length.p50 <= length.p90 < 1e9


def test_buckets_begin_at_their_edges():
    assert [bucket(tokens) for tokens in (0, 63, 64, 255, 256, 16_384)] == [0, 0, 1, 1, 2, 5]
