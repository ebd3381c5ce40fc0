"""Lengths, importance, SLO and the agent around them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.perception import lengths as lengths_module
from agents.perception.agent import make_agent
from agents.perception.lengths import PRIOR, LengthStatistics, bucket, demanded_tokens
from agents.perception.model import PerceptionModel, importance_of
from controller.bus.memory_bus import MemoryBus
from controller.config.schema import AgentsConfig, Config, SloConfig
from controller.core.messages import Completion, RequestNotice
from controller.core.slo import slo_for
from controller.core.types import OutcomeKind, TaskType

SUMMARY = "Summarize this article: the council met and talked about the bridge"


def notice(request_id: str = "r", excerpt: str = SUMMARY, **changes) -> RequestNotice:
    fields = {"request_id": request_id, "sent_s": 100.0, "tenant": "t", "model": "m", "prompt_tokens": 300, "excerpt": excerpt}
    return RequestNotice(**(fields | changes))


def completion(request_id: str, output_tokens: int, **changes) -> Completion:
    fields = {
        "request_id": request_id,
        "sent_s": 101.0,
        "tenant": "t",
        "model": "m",
        "outcome": OutcomeKind.COMPLETED,
        "arrival_s": 100.0,
        "policy": "edf",
        "prompt_tokens": 300,
        "output_tokens": output_tokens,
    }
    return Completion(**(fields | changes))


def model(**changes) -> PerceptionModel:
    return PerceptionModel(**({"min_confidence": 0.5, "slo_scale": 1.0} | changes))


def test_features_of_a_clear_request():
    features = model().perceive(notice(max_output_tokens=50), 100.5)
    slo = slo_for(TaskType.SUMMARIZATION, 0.75)
    assert features.task_type is TaskType.SUMMARIZATION
    assert (features.ttft_slo_ms, features.tpot_slo_ms) == (slo.ttft_ms, slo.tpot_ms)
    assert (features.importance, features.sent_s, features.prompt_tokens) == (0.75, 100.5, 300)
    assert features.output_tokens == features.output_tokens_p90 == 50.0


def test_a_declared_target_stands_and_a_missing_one_is_filled_in():
    features = model(slo_scale=2.0).perceive(notice(ttft_slo_ms=123.0), 100.0)
    assert features.ttft_slo_ms == 123.0
    assert features.tpot_slo_ms == slo_for(TaskType.SUMMARIZATION, 0.75, 2.0).tpot_ms


@pytest.mark.parametrize("excerpt", ["", "xyzzy", SUMMARY])
def test_below_the_floor_the_type_is_unknown_and_nothing_is_specialised(excerpt):
    features = model(min_confidence=0.95).perceive(notice(excerpt=excerpt), 100.0)
    assert features.task_type is TaskType.UNKNOWN
    assert features.ttft_slo_ms == slo_for(TaskType.UNKNOWN, 0.75).ttft_ms
    assert features.output_tokens == pytest.approx(PRIOR[TaskType.UNKNOWN].p50)


def test_unknown_requests_get_the_history_of_all_types():
    perception = model()
    for number in range(200):
        perception.perceive(notice(f"r{number}"), 100.0)
        perception.learn(completion(f"r{number}", 40))
    unknown = perception.perceive(notice("u", excerpt=""), 100.0)
    assert unknown.task_type is TaskType.UNKNOWN
    assert unknown.output_tokens == pytest.approx(40, rel=0.2)


@pytest.mark.parametrize(
    ("text", "has_tools", "expected"),
    [("hello", False, 0.75), ("URGENT: the outage is back", False, 0.9), ("no rush, just testing", False, 0.6), ("x", True, 0.8)],
)
def test_importance(text, has_tools, expected):
    assert importance_of(text, has_tools=has_tools) == pytest.approx(expected)


@given(st.text(max_size=300), st.booleans())
def test_importance_is_bounded(text, has_tools):
    assert 0.5 <= importance_of(text, has_tools=has_tools) <= 1.0


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
    for tokens in [500] * 200 + [20] * lengths_module.KEEP:
        statistics.learn(tenant="t", task=TaskType.QA, prompt_tokens=10, output_tokens=tokens)
    assert statistics.estimate(tenant="t", task=TaskType.QA, prompt_tokens=10).p90 == pytest.approx(20, rel=0.15)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(lengths_module, "GROUPS", 50)
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


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("no demand here in 1999", 0),
        ("Write an article of 1,500 words", 2025),
        ("no shorter than 2000 words", 2700),
        ("in less than 100 words", 108),
        ("Answer in two sentences.", 50),
        ("a 5-page report, at least 3 paragraphs", 3250),
        ("write 9999999 words", 32_768),
    ],
)
def test_demands_are_read(text, tokens):
    assert demanded_tokens(text) == pytest.approx(tokens)


def test_a_demand_moves_the_estimate():
    plain = model().perceive(notice(excerpt="Write a story about a fox."), 1.0)
    long = model().perceive(notice(excerpt="Write a story about a fox, no shorter than 8000 words."), 1.0)
    assert long.output_tokens > 2 * plain.output_tokens


def test_buckets_begin_at_their_edges():
    assert [bucket(tokens) for tokens in (0, 63, 64, 255, 256, 16_384)] == [0, 0, 1, 1, 2, 5]


def test_a_completion_counts_once_and_only_when_completed():
    perception = model()
    for number in range(60):
        perception.perceive(notice(f"r{number}"), 100.0)
        perception.learn(completion(f"r{number}", 20))
    before = perception.perceive(notice("x"), 100.0).output_tokens
    for _ in range(60):
        perception.learn(completion("r1", 9000))
        perception.learn(completion("x", 9000, outcome=OutcomeKind.CANCELLED))
        perception.learn(completion("y", 0))
    assert perception.perceive(notice("x"), 100.0).output_tokens == before


async def test_the_agent_learns_from_the_stream_when_it_starts():
    bus = MemoryBus()
    for number in range(100):
        bus.post(completion(f"r{number}", 7, task_type=TaskType.SUMMARIZATION))
    agent = make_agent(Config(agents=AgentsConfig(perception_min_confidence=0.3), slo=SloConfig(scale=3.0)))
    await agent.recover(bus, 100.0)
    (features,) = agent.handle([completion("r0", 7), notice("new")], 100.0)
    assert features.output_tokens == pytest.approx(7, rel=0.3)
    assert features.ttft_slo_ms == slo_for(TaskType.SUMMARIZATION, 0.75, 3.0).ttft_ms
    assert agent.handle([completion("r0", 7)], 100.0) == []
