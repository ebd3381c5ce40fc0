"""The language model as a selector on a real vLLM: a tiny model of random weights, held to the schema: form without sense."""

import functools
import json
import urllib.request

import pytest
from chat_kit import chat_server, raw
from control_kit import long_view
from typing_kit import of_type

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.base import Pending, Situation
from hmas.agents.meta.selectors.llm import LlmSelector
from hmas.agents.meta.selectors.llm_answer import read
from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.controller.core.types import OutcomeKind
from hmas.controller.scheduling.policies.registry import COMMON_PARAMETERS, POLICIES
from hmas.planning.case import Case
from hmas.planning.fleet import read_fleet
from hmas.planning.running import Run, run_case

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
WARMUP_S = 30.0
LOAD = "gamma:rate=2.6,cv=2.5,duration=160,seed=4242"


def run(selector: dict) -> Run:
    case = Case(workload=LOAD, fleet=read_fleet("1xdemo-small"), policy="edf", agents=("statera", "meta"), meta=selector, warmup_s=WARMUP_S)
    return run_case(case)


def good(done: Run) -> float:
    scored = [record for record in done.records if record.arrival_s >= WARMUP_S]
    return sum(record.outcome is OutcomeKind.COMPLETED and record.slo_met for record in scored) / len(scored)


@functools.cache
def with_rules() -> float:
    return good(run({"meta_selector": "rules"}))


@pytest.mark.parametrize("allowed", [tuple(sorted(POLICIES)), ("edf", "fcfs"), ("fcfs",), ("two-lane",)])
def test_what_it_says_is_of_the_schema(schema_vllm_url, allowed):
    """Every part of the schema is one that the engine's guided decoding takes and holds."""
    asker = LlmSelector(ChatEndpoint(schema_vllm_url, timeout_s=60.0).ask, RuleSelector(), model="tiny")
    edf = Candidate(policy="edf")
    now = Situation(view=long_view(1000.0), current=edf, start=edf, allowed=allowed, since_s=900.0, now_s=1000.0)
    text = of_type(Pending, asker.propose(now)).compute()
    document = json.loads(text)
    assert list(document) == ["reason", "choice", "confidence"]
    choice = read(text).choice
    assert choice.policy in allowed
    assert set(choice.parameters) == {*POLICIES[choice.policy].default_parameters, *COMMON_PARAMETERS}


@pytest.mark.long
def test_a_random_model_costs_nothing(schema_vllm_url):
    done = run({"meta_selector": "llm", "meta_llm_url": schema_vllm_url, "meta_llm_model": "tiny", "meta_llm_timeout_s": 50.0})
    assert not done.violations
    assert good(done) >= with_rules() - 0.01, done.changes


@pytest.mark.long
@pytest.mark.parametrize("turn", [1, 2])
def test_a_random_model_that_says_something_else_each_time_costs_nothing(schema_vllm_url, turn):
    """At a high temperature, behind a proxy that asks for it: each answer another one.

    The dice are the engine's own: on CPU it dies of a request with a seed of its own whose prompt is read in more than one step.
    """
    said = []

    def hot(handler, body):
        asked = json.dumps(body | {"temperature": 2.0}).encode()
        request = urllib.request.Request(f"{schema_vllm_url}/v1/chat/completions", asked, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = response.read()
        said.append(json.loads(answer)["choices"][0]["message"]["content"])
        raw(handler, answer)

    with chat_server(hot) as chat:
        done = run({"meta_selector": "llm", "meta_llm_url": chat.url, "meta_llm_model": "tiny", "meta_llm_timeout_s": 50.0})
    policies = {json.loads(text)["choice"]["policy"] for text in said if text.endswith("}")}
    assert len(policies) > 2, "it does say something else"
    assert not done.violations
    assert good(done) >= with_rules() - 0.01, done.changes
