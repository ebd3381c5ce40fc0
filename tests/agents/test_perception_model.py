"""Lengths, importance, SLO and the agent around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.perception.agent import make_agent
from agents.perception.length_statistics import PRIOR
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


def test_a_demand_moves_the_estimate():
    plain = model().perceive(notice(excerpt="Write a story about a fox."), 1.0)
    long = model().perceive(notice(excerpt="Write a story about a fox, no shorter than 8000 words."), 1.0)
    assert long.output_tokens > 2 * plain.output_tokens


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
