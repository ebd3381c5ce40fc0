"""Evidence of less than a minute: how sure it is, who may be chosen on it, and what the judge makes of none."""

from math import sqrt

import pytest
from twin_kit import EDF, FCFS, PLAIN, answered, blocked, lived, outlook, twin_of

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.judge import Judge
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.agents.meta.twin.candidate_schedule import CandidateSchedule
from hmas.agents.meta.twin.check import Check
from hmas.agents.meta.twin.evidence import Evidence, Gain
from hmas.agents.meta.twin.fleet import FleetModel
from hmas.agents.meta.twin.twin import Answer, Twin, TwinSettings
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY, POLICIES

SHIPPED = Candidate(policy=DEFAULT_POLICY)
HEAVY = Candidate(policy=DEFAULT_POLICY, parameters={"output_weight": 5.0})
WORSE, BETTER = [4.0, 4.0, 5.0, 4.0, 3.0, 4.0], [9.0, 8.0, 9.0, 9.0, 8.0, 9.0]
"""Good requests of ten in each slot; the first and the last slot of a round do not count."""


def gain_of(*places: float) -> Gain:
    evidence = Evidence()
    evidence.add([outlook(FCFS, [5.0] * len(places)), outlook(EDF, [5.0 + more for more in places])])
    found = evidence.gain(EDF, FCFS)
    assert found is not None
    return found


def test_three_slots_give_an_error_and_two_give_none():
    assert (gain_of(0, 4, 4, 0).error, gain_of(0, 4, 4, 0).brief) == (1.0, True)
    found = gain_of(0, 5, 5, 5, 5, 0)
    assert found.brief
    assert found.share > 2.0 * found.error > 0.0
    assert gain_of(0, 4, 3, 4, 0).error < 1.0


def test_a_few_more_good_requests_are_chance():
    found = gain_of(0, 1, 1, 1, 0)
    assert found.share == pytest.approx(0.1)
    assert found.error >= 2.0 * sqrt(0.1 / 30.0) * 0.99, "three requests of thirty"
    assert found.share < 2.0 * found.error


def test_what_lasts_is_not_brief():
    assert not gain_of(*[4.0] * 20).brief


@pytest.mark.parametrize(
    ("candidate", "chosen"), [(SHIPPED, True), (SHIPPED.window(8), False), (EDF, False), (SHIPPED.guarded(0.25), False), (HEAVY, False)]
)
def test_only_what_is_shipped_is_chosen_on_brief_evidence(candidate: Candidate, chosen: bool):
    twin, now_s = twin_of(lived(blocked()))
    check = Check(requests=50, everyone=50, replayed=0.4, true=0.4)
    answer = Answer(outlooks=(outlook(FCFS, WORSE), outlook(candidate, BETTER)), check=check, took_s=0.0, requests=60)
    said = answered(TwinSelector(twin, RuleSelector()), now_s, answer)
    assert (said.candidate == candidate) is chosen


def test_what_is_shipped_is_replayed_until_its_evidence_is_long_and_alone_where_time_is_short():
    brief = Gain(share=-0.5, error=0.1, good=0.1, other_good=0.6, brief=True)
    for known in (None, brief):
        schedule = CandidateSchedule()
        rounds = [schedule.choose(FCFS, POLICIES, lambda *_, known=known: known, places=3) for _ in range(4)]
        assert rounds == [(FCFS, SHIPPED)] * 4
    schedule = CandidateSchedule()
    assert len(schedule.choose(FCFS, POLICIES, lambda *_: Gain(share=-0.5, error=0.1, good=0.1, other_good=0.6), places=3)) >= 3


def test_what_is_shipped_is_replayed_beside_the_plain_baseline_too():
    schedule = CandidateSchedule()
    for _ in range(4):
        assert SHIPPED in schedule.choose(schedule.plain, POLICIES, lambda *_: None, places=3)


def test_a_proposal_is_replayed_again_beside_the_plain_baseline_however_short_time_is():
    schedule, known = CandidateSchedule(), Gain(share=-0.5, error=0.1, good=0.1, other_good=0.6)
    proposed = schedule.plain.under("edf")
    for _ in range(4):
        assert proposed in schedule.choose(schedule.plain, POLICIES, lambda *_: known, proposed, places=2)


def test_the_judge_is_silent_where_too_little_was_replayed():
    twin = Twin(FleetModel(), TwinSettings(admission=PLAIN))
    check = Check(requests=50, everyone=50, replayed=0.5, true=0.5)
    answer = Answer(outlooks=(outlook(FCFS, [5.0] * 4), outlook(EDF, [4.0] * 4)), check=check, took_s=0.0, requests=40)
    ruling = Judge(twin).rule(FCFS, EDF, answer)
    assert ruling.passes is None
    assert "too few requests" in ruling.reason
