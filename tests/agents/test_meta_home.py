"""What runs in place of the configured policy has to go on being worth it, and the plain baseline has to win as much as any other."""

import dataclasses

import pytest
from msgspec.structs import replace
from twin_kit import FCFS, SHORT, SJF, answered, asked, lived, outlook, situation, told_of, twin_of

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.base import Pending, Proposal
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.twin import HOME, TwinSelector
from hmas.agents.meta.twin.check import Check
from hmas.agents.meta.twin.evidence import BLOCK_SLOTS
from hmas.agents.meta.twin.twin import MARGIN, Answer

RIGHT = Check(requests=500, everyone=500, replayed=0.5, true=0.5)
SLOTS = 10 * BLOCK_SLOTS
CALM = [asked(n, 1000.0 + n / 4.0, SHORT) for n in range(400)]


def away(answer: Answer) -> Proposal:
    """What a twin makes of an answer while `sjf` runs and `fcfs` is configured."""
    twin, now_s = twin_of(lived(CALM))
    said = TwinSelector(twin, RuleSelector()).propose(situation(now_s, SJF))
    assert isinstance(said, Pending)
    return said.finish(answer)


def told(home: float, stress_replayed: float | None = None) -> Answer:
    """`sjf` serves half in time, and what is configured another share; so under more load, where that is told."""
    answer = told_of(RIGHT)
    outlooks = (outlook(SJF, [5.0] * SLOTS), outlook(FCFS, [10.0 * home] * SLOTS))
    more = () if stress_replayed is None else (outlook(SJF, [5.0] * SLOTS), outlook(FCFS, [10.0 * stress_replayed] * SLOTS))
    return replace(answer, outlooks=outlooks, stress_replayed=more)


@pytest.mark.parametrize(
    ("home", "stress_replayed", "comes_back"),
    [
        (0.5, None, True),
        (0.5, 0.5, True),
        (0.5 - HOME / 2, None, True),
        (0.5 - 2 * HOME, None, False),
        (0.5, 0.5 - 2 * HOME, False),
    ],
)
def test_what_is_configured_comes_back_when_nothing_is_worth_more(home, stress_replayed, comes_back):
    found = away(told(home, stress_replayed))
    assert found.candidate == (FCFS if comes_back else SJF)
    assert ("sjf is worth nothing any more over fcfs, which is configured" in found.reason) is comes_back


def test_in_a_calm_what_is_configured_is_looked_at_all_the_same():
    twin, now_s = twin_of(lived(CALM))
    selector, looked_at = TwinSelector(twin, RuleSelector()), []
    for _ in range(2):
        said = selector.propose(dataclasses.replace(situation(now_s), current=SJF))
        assert isinstance(said, Pending)
        answer = said.compute()
        looked_at += [one.candidate for one in answer.outlooks]
        found = said.finish(replace(answer, check=RIGHT))
    assert FCFS in looked_at
    assert found.candidate == FCFS
    assert Candidate(policy="edf") not in looked_at, "nobody can win"


def test_the_plain_baseline_has_to_win_a_margin_too():
    twin, now_s = twin_of(lived(CALM))
    selector, plain = TwinSelector(twin, RuleSelector()), twin.schedule.plain

    def said(gain: float) -> Proposal:
        answer = told_of(RIGHT)
        return answered(selector, now_s, replace(answer, outlooks=(answer.outlooks[0], outlook(plain, [5.0 + 10.0 * gain] * SLOTS))))

    assert said(0.8 * MARGIN).candidate == FCFS
    assert said(8.0 * MARGIN).candidate == plain
