"""That a random or hostile selector cannot hurt: a real server behind the language model's endpoint, in the closed loop of the simulation.

Every answer that a schema lets through is tried against the rule map under the same load, and everything that a schema does not stop.
"""

import functools
import random
from typing import cast

import pytest
from chat_kit import Behave, answer, chat_server, closed_port, raw, says, text_of
from msgspec.structs import replace

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.judge import Ruling
from hmas.agents.meta.limits import Limits
from hmas.agents.meta.model import MetaModel
from hmas.agents.meta.selectors.base import Proposal
from hmas.agents.meta.twin.evidence import Gain
from hmas.agents.meta.twin.twin import Answer, Twin
from hmas.controller.core.messages import MetaDecision
from hmas.controller.core.types import OutcomeKind
from hmas.controller.scheduling.policies.registry import COMMON_PARAMETERS, POLICIES
from hmas.controller.scheduling.settings import SHIPPED
from hmas.planning.case import Case
from hmas.planning.fleet import read_fleet
from hmas.planning.running import Run, run_case

WARMUP_S = 30.0
# Bursts over a fleet that does not quite hold their mean: the wrong order loses requests.
LOAD = "gamma:rate=3.4,cv=2,duration=200,seed=1"
ADMISSION = replace(SHIPPED, overdue_wait_s=86_400.0)
"""Nobody is shed, so that the order decides who is served in time."""
HURT = 0.01
"""Share of requests that a selector may cost."""


def run(selector: dict, workload: str = LOAD, policy: str = "edf", agents: tuple = ("statera", "meta")) -> Run:
    fleet = read_fleet("1xdemo-small")
    return run_case(
        Case(workload=workload, fleet=fleet, policy=policy, agents=agents, meta=selector, warmup_s=WARMUP_S, admission=ADMISSION)
    )


def good(done: Run) -> float:
    scored = [record for record in done.records if record.arrival_s >= WARMUP_S]
    return sum(record.outcome is OutcomeKind.COMPLETED and record.slo_met for record in scored) / len(scored)


@functools.cache
def with_rules() -> float:
    return good(run({"meta_selector": "rules"}))


def random_words(seed: int) -> Behave:
    """Valid by the schema that comes with the question, and otherwise dice."""
    rng = random.Random(seed)

    def behave(handler, body):
        form = body["response_format"]["json_schema"]["schema"]["properties"]
        choice = rng.choice(form["choice"]["anyOf"])["properties"]
        name = choice["policy"]["enum"][0]
        ranges = {**POLICIES[name].parameter_ranges, **COMMON_PARAMETERS}
        parameters = {
            parameter: f"{rng.uniform(*ranges[parameter]):.4f}" if rng.random() < 0.5 else None
            for parameter in choice["parameters"]["properties"]
        }
        raw(handler, text_of(answer(name, parameters=parameters, confidence=rng.random())))

    return behave


def in_turn(*names: str) -> Behave:
    """Twice the same, so that it is agreed, then another."""
    turn = iter(range(10**9))
    return lambda handler, _body: raw(handler, text_of(answer(names[next(turn) // 2 % len(names)])))


NONSENSE = {
    # The worst by the load's own figures (`test_the_worst_order_does_hurt_where_nobody_guards`), with all the confidence there is.
    **{f"always {name}": says(answer(name)) for name in ("rr", "mlfq", "sjf", "fcfs")},
    "widest parameters": says(answer("sjf", parameters={"aging_ms_per_s": "0.0"})),
    "no guard": says(answer("edf", parameters={"tpot_guard": "0.0"})),
    "hardly a prompt": says(answer("edf", parameters={"tpot_guard": "0.01"})),
    "bypass": says(answer("fcfs", bypass=True)),  # not of the schema
    "random 1": random_words(1),
    "random 2": random_words(2),
    "in turn": in_turn("mlfq", "rr", "edf"),
    "huge parameters": says(answer("sjf", parameters={"aging_ms_per_s": "999999"})),
    "not in the pool": says(answer("nonsense")),
    "10 MB": says("x" * (10 << 20)),
    "html": lambda handler, _: raw(handler, b"<html></html>"),
    "500": lambda handler, _: raw(handler, b"", status=500),
}

LONG = NONSENSE.keys() - {"bypass", "random 1", "not in the pool"}
"""They ask the same of meta as others do, and are left to `make test-long`."""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in NONSENSE])
def test_nonsense_costs_nothing(name):
    with chat_server(NONSENSE[name]) as chat:
        done = run({"meta_selector": "llm", "meta_llm_url": chat.url})
        assert chat.asked
    assert not done.violations
    assert good(done) >= with_rules() - HURT, [(change.at_s, change.after, change.reason) for change in done.changes]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silent", pytest.param("drips", marks=pytest.mark.long), "nobody"])
def test_an_endpoint_that_does_not_answer_costs_nothing(name):
    def silent(chat):
        return lambda _handler, _body: chat.over.wait(30) and None

    def drips(chat):
        def behave(handler, _body):
            handler.send_response(200)
            handler.send_header("Content-Length", "4000")
            handler.end_headers()
            while not chat.over.wait(0.01):
                handler.wfile.write(b" ")

        return behave

    if name == "nobody":
        done = run({"meta_selector": "llm", "meta_llm_url": closed_port()})
    else:
        with chat_server(silent if name == "silent" else drips, needs_chat=True) as chat:
            done = run({"meta_selector": "llm", "meta_llm_url": chat.url, "meta_llm_timeout_s": 0.3})
            assert len(chat.asked) < 8, "left alone after it failed"
    assert not done.violations
    assert good(done) == with_rules()


@pytest.mark.slow
def test_the_worst_order_does_hurt_where_nobody_guards():
    """What the other tests would not notice if no order did harm. Which one does depends on the burst, and on every rule of admission."""
    worst = min(good(run({}, policy=policy, agents=("statera",))) for policy in ("fcfs", "mlfq"))
    assert worst < with_rules() - 1.5 * HURT


@pytest.mark.slow
def test_without_a_judge_a_language_model_is_heard_and_not_followed():
    with chat_server(says(answer("mlfq"))) as chat:
        done = run({"meta_selector": "llm", "meta_llm_url": chat.url, "meta_judge": False})
    assert not done.changes
    assert good(done) == with_rules()


# -- what untrusted selectors have to pass, in meta's model alone


class Wants:
    """A selector that wants one policy."""

    name = "llm"
    trusted = False

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def propose(self, situation):
        return Proposal(candidate=Candidate(policy=self.policy), reason="so", source=self.name)

    def learn(self, reward):
        pass


class Passes:
    """A judge that answers at once: by candidate, what it says of it."""

    def __init__(self, **words: bool | None) -> None:
        self.words = words
        self.asked: list[tuple[str, str]] = []

    def case(self, current, proposed, *_):
        self.asked.append((current.policy, proposed.policy))
        return Ruling(self.words.get(proposed.policy), "so be it")


def course(selector, judge, until_s: float = 200.0) -> list[tuple[float, str]]:
    from control_kit import long_view, short_view

    meta = MetaModel(
        start="edf", pool=POLICIES, limits=Limits(period_s=5.0, dwell_s=20.0, rollback_window_s=10.0), selector=selector, judge=judge
    )
    changes = []
    for step in range(int(until_s / 0.5)):
        now_s = step * 0.5
        for said in [*meta.on_short(short_view(now_s), now_s), *meta.on_long(long_view(now_s), now_s)]:
            if isinstance(said, MetaDecision) and said.changed:
                changes.append((now_s, said.policy))
    return changes


@pytest.mark.parametrize("word", [True, None])
def test_what_is_not_trusted_goes_when_the_rules_choice_is_not_expected_to_be_worse(word):
    changes = course(Wants("sjf"), Passes(sjf=True, edf=word), until_s=60.0)
    assert [policy for _, policy in changes[:2]] == ["sjf", "edf"]
    assert changes[1][0] - changes[0][0] >= 20.0, "not before its dwell time"


def test_what_is_not_trusted_stays_while_the_rules_choice_is_expected_to_be_worse():
    judge = Passes(sjf=True, edf=False)
    assert [policy for _, policy in course(Wants("sjf"), judge)] == ["sjf"]
    assert judge.asked.count(("sjf", "edf")) >= 5, "and it is asked again and again"


def test_what_is_trusted_is_on_no_probation():
    trusted = Wants("sjf")
    trusted.trusted = True
    judge = Passes(sjf=True, edf=True)
    assert [policy for _, policy in course(trusted, judge)] == ["sjf"]


@pytest.mark.parametrize(
    ("share", "error", "passes"), [(0.0, 0.0, False), (0.009, 0.001, False), (0.05, 0.04, False), (0.05, 0.01, True), (-0.1, 0.01, False)]
)
def test_what_is_not_trusted_has_to_be_surely_better(share, error, passes):
    from hmas.agents.meta.judge import Judge

    class Replayed:
        requests = 1000

    class Says:
        silence = caveat = ""

        def take(self, answer):
            pass

        def gain(self, one, other):
            return Gain(share=share, error=error, good=0.5 + share, other_good=0.5)

    ruling = Judge(cast("Twin", Says())).rule(Candidate(policy="edf"), Candidate(policy="sjf"), cast("Answer", Replayed()), sure=True)
    assert ruling.passes is passes
    assert "points" in ruling.reason
