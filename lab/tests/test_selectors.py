"""The study of meta's selectors: its moments, what counts as right, a model that answers or does not, and its table."""

import msgspec
import pytest
from control_kit import long_view
from hmas_lab.selectors.answers import ALWAYS, BEST, MODEL, RANDOM, STAYS, ask_each, document_of, right, tells
from hmas_lab.selectors.moments import POOL, Moment, WatchingSteering, expected
from hmas_lab.selectors.tables import body

from hmas.agents.meta.candidate import candidate
from hmas.agents.meta.selectors.base import Proposal, Situation
from hmas.agents.meta.selectors.llm_answer import AnswerError
from hmas.controller.core.messages import CandidateOutlook
from hmas.planning.case import AGENTS, Case
from hmas.planning.fleet import read_fleet
from hmas.planning.running import run_case

GOOD = {"fcfs": 0.5, "robust-edf": 0.9, "sjf": 0.895, "two-lane": 0.7, "wfq": 0.6}


class Clock:
    """Each reading is half a second after the last."""

    def __init__(self):
        self.read_s = 0.0

    def now_s(self):
        self.read_s += 0.5
        return self.read_s


def moment(current="fcfs", expects=None, workload=1):
    runs = candidate(current)
    kept = Proposal(candidate=runs, reason="", source="rules")
    situation = Situation(view=long_view(100.0), current=runs, start=runs, allowed=POOL, since_s=0.0, now_s=100.0)
    return Moment(workload, situation, kept, kept, GOOD if expects is None else expects, GOOD)


def says(policy):
    return msgspec.json.encode({"reason": "so", "choice": {"policy": policy, "parameters": {}}, "confidence": 1.0}).decode()


def test_right_is_what_gives_as_much_as_the_best_less_one_in_a_hundred():
    assert [name for name in POOL if right(GOOD, name)] == ["robust-edf", "sjf"]
    assert tells(moment())
    assert not tells(moment(expects={"fcfs": 0.5}))


def test_a_model_is_asked_at_every_moment_and_what_cannot_be_used_counts_as_the_rules():
    replies = iter([says("sjf"), "no json", says("fcfs"), says("mlfq")])

    def ask(body):
        assert b'"model":"small"' in body
        return next(replies)

    found = [moment(), moment("robust-edf"), moment(expects={}), moment()]
    answers = ask_each(found, ask, Clock(), "small")
    assert [one.policy for one in answers] == ["sjf", "", "fcfs", ""]
    assert "not of the schema" in answers[1].reason
    assert {one.took_s for one in answers} == {0.5}
    document = document_of(found, answers, "small")
    assert (document["usable"], document["twin_moments"], document["needed"], document["workloads"]) == (2, 3, 3, 1)
    rows = {one["selector"]: one for one in document["summary"]}
    assert rows[MODEL]["chosen"] == {"fcfs": 2, "sjf": 1, "robust-edf": 1}
    assert (rows[MODEL]["by_twin"], rows[MODEL]["in_the_end"], rows[MODEL]["where_needed"]) == (0.6667, 0.5, 0.3333)
    assert rows[STAYS]["where_needed"] == 0.0
    assert (rows[ALWAYS]["in_the_end"], rows[BEST]["good"]) == (1.0, 0.9)
    assert rows[RANDOM]["in_the_end"] == 0.4
    assert rows[RANDOM]["good"] == pytest.approx(sum(GOOD.values()) / 5, abs=1e-4)


def test_an_endpoint_that_does_not_answer_is_told():
    def ask(_body):
        raise AnswerError("no answer in time")

    (answer,) = ask_each([moment()], ask, Clock(), "")
    assert answer.policy == ""
    assert "no answer in time" in answer.reason


def test_what_the_twin_expects_is_read_without_windows():
    outlooks = (
        CandidateOutlook(policy="fcfs", n_run=8, good=0.9),
        CandidateOutlook(policy="fcfs", good=0.4),
        CandidateOutlook(policy="sjf"),
    )
    said = Proposal(candidate=candidate("fcfs"), reason="", source="twin", candidates=outlooks)
    assert expected(said) == {"fcfs": 0.4, "sjf": 0.0}


def test_the_table_names_model_moments_and_times():
    found = [moment(), moment("sjf", workload=2)]
    text = body(document_of(found, ask_each(found, lambda _body: says("sjf"), Clock(), ""), "small"))
    assert "small at 2 moments of 2 simulated loads: 2 answers can be used; time per answer p50 0.5 s" in text
    assert "| language model | sjf 2 | 100% | 100% | 100% | 89.5% |" in text
    assert "| the best in the end | robust-edf 2 |" in text


def test_a_run_is_watched_and_not_changed():
    case = Case(
        workload="poisson:rate=9,duration=60,slo_scale=0.5",
        fleet=read_fleet("1xdemo-small"),
        policy="fcfs",
        agents=AGENTS,
        meta={"meta_selector": "twin", "meta_policies": ",".join(POOL)},
        seed=3,
    )
    steering = WatchingSteering(case)
    run = run_case(case, steering=steering)
    assert run.changes == []
    assert len(steering.seen) >= 3
    assert {seen.situation.current.policy for seen in steering.seen} == {"fcfs"}
    assert set(expected(steering.seen[-1].twin)) >= {"fcfs", "robust-edf"}
