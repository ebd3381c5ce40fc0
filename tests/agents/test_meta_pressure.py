"""Who leads is replayed under more load, too: what wins only as long as no more comes is not put in force."""

import pytest
from msgspec.structs import replace
from twin_kit import EDF, FCFS, SHORT, SJF, answered, asked, blocked, lived, looked, outlook, situation, told_of, twin_of, world

from agents.meta.selectors.base import Pending
from agents.meta.selectors.rules import RuleSelector
from agents.meta.selectors.twin import TwinSelector
from agents.meta.twin.evidence import BLOCK_SLOTS
from agents.meta.twin.menu import MOST
from agents.meta.twin.pressure import PRESSURE, pressed
from agents.meta.twin.twin import Answer, Check, Question
from controller.core.messages import OPEN_WINDOW

RIGHT = Check(requests=500, replayed=0.5, true=0.5, slower=1.0)


def under_pressure(answer: Answer, **good: float) -> Answer:
    """The same answer, with so many of ten requests a slot good under more load; five where nothing else is said."""
    slots = 10 * BLOCK_SLOTS
    candidates = {"fcfs": FCFS, "edf": EDF, "sjf": SJF}
    return replace(answer, pressed=tuple(outlook(candidates[name], [value] * slots) for name, value in {"fcfs": 5.0, **good}.items()))


def test_more_load_is_a_quarter_more_of_the_same_from_where_it_is_scored():
    window = blocked(rate=20.0)
    here = world(window, from_s=window[len(window) // 2].request.arrival_s)
    more = pressed(here)
    times = [one.request.arrival_s for one in more.asked]
    assert times == sorted(times)
    added = [one for one in more.asked if one.request.id.endswith("*")]
    scored = sum(one.request.arrival_s >= here.from_s for one in here.asked)
    assert len(added) == len(more.asked) - len(here.asked) == pytest.approx(PRESSURE * scored, rel=0.15)
    assert min(one.request.arrival_s for one in added) >= here.from_s
    assert len({one.request.id for one in more.asked}) == len(more.asked)
    assert pressed(here) == more, "always the same ones"


def test_a_window_that_is_just_wide_enough_shows_under_more_load():
    window = [asked(n, 1000.0 + n / 8.0, SHORT, ttft_ms=1000.0) for n in range(480)]
    here = world(window)
    narrow, open_ = FCFS.window(12), FCFS.window(OPEN_WINDOW)
    assert looked(narrow, window=window).good > 0.99
    assert looked(open_, window=window).good > 0.99
    more = pressed(here)
    assert looked(open_, window=more.asked).good > 0.99
    assert looked(narrow, window=more.asked).good < 0.5


def test_who_leads_is_pressed_the_next_time_and_a_round_is_no_longer_for_it():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    assert answered(selector, now_s, told_of(RIGHT, edf=8.0)).candidate == EDF
    said = selector.propose(situation(now_s))
    assert isinstance(said, Pending)
    answer = said.compute()
    assert [one.candidate for one in answer.pressed] == [FCFS, EDF]
    assert len(answer.outlooks) + len(answer.pressed) <= MOST + 1
    assert answer.replayed > answer.requests * len(answer.outlooks)


def test_what_would_be_worse_if_more_came_is_not_wished_and_the_next_best_is():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    first = told_of(RIGHT, edf=8.0, sjf=7.0)
    assert answered(selector, now_s, first).candidate == EDF
    held = answered(selector, now_s, under_pressure(first, edf=4.0))
    assert held.candidate == SJF
    assert "sjf 70.2% good" in held.reason
    both = answered(selector, now_s, under_pressure(first, edf=4.0, sjf=4.0))
    assert both.candidate == FCFS
    assert "edf 80.2% good against 50.0%" in both.reason
    assert "if 25% more came, -10.0" in both.reason
    # It goes on being pressed, and is wished again once it stands that.
    said = selector.propose(situation(now_s))
    assert isinstance(said, Pending)
    assert answered(selector, now_s, under_pressure(first, edf=5.0)).candidate == EDF


def test_a_question_presses_nobody_where_nobody_leads():
    twin, now_s = twin_of(lived(blocked()))
    question = twin.question((FCFS, EDF), float("-inf"), now_s)
    assert isinstance(question, Question)
    assert question.answer().pressed == ()
