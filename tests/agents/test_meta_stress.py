"""Who leads is replayed under more load, too: what wins only as long as no more comes is not put in force."""

import dataclasses

import pytest
from msgspec.structs import replace
from twin_kit import EDF, FCFS, SHORT, SJF, answered, asked, blocked, lived, looked, outlook, situation, told_of, twin_of, world

from hmas.agents.meta.selectors.base import Pending
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.agents.meta.twin.candidate_schedule import MOST
from hmas.agents.meta.twin.check import Check
from hmas.agents.meta.twin.evidence import BLOCK_SLOTS, FRESH_ROUNDS
from hmas.agents.meta.twin.replay import STRESS, stressed
from hmas.agents.meta.twin.twin import Answer
from hmas.controller.core.messages import OPEN_WINDOW

RIGHT = Check(requests=500, everyone=500, replayed=0.5, true=0.5)


def under_stress(answer: Answer, **good: float) -> Answer:
    """The same answer, with so many of ten requests a slot good under more load; five where nothing else is said."""
    slots = 10 * BLOCK_SLOTS
    candidates = {"fcfs": FCFS, "edf": EDF, "sjf": SJF}
    return replace(
        answer, stress_replayed=tuple(outlook(candidates[name], [value] * slots) for name, value in {"fcfs": 5.0, **good}.items())
    )


def test_more_load_is_a_quarter_more_of_the_same_from_where_it_is_scored():
    window = blocked(rate=20.0)
    here = world(window, from_s=window[len(window) // 2].request.arrival_s)
    more = stressed(here)
    times = [one.request.arrival_s for one in more.asked]
    assert times == sorted(times)
    added = [one for one in more.asked if one.request.id.endswith("*")]
    scored = sum(one.request.arrival_s >= here.from_s for one in here.asked)
    assert len(added) == len(more.asked) - len(here.asked) == pytest.approx(STRESS * scored, rel=0.15)
    assert min(one.request.arrival_s for one in added) >= here.from_s
    assert len({one.request.id for one in more.asked}) == len(more.asked)
    assert stressed(here) == more, "always the same ones"


def test_a_window_that_is_just_wide_enough_shows_under_more_load():
    window = [asked(n, 1000.0 + n / 8.0, SHORT, ttft_ms=1000.0) for n in range(480)]
    here = world(window)
    narrow, open_ = FCFS.window(12), FCFS.window(OPEN_WINDOW)
    assert looked(narrow, window=window).good > 0.99
    assert looked(open_, window=window).good > 0.99
    more = stressed(here)
    assert looked(open_, window=more.asked).good > 0.99
    assert looked(narrow, window=more.asked).good < 0.5


def asked_of(selector: TwinSelector, now_s: float, **more) -> Answer:
    """What the selector has replayed."""
    said = selector.propose(dataclasses.replace(situation(now_s), **more))
    assert isinstance(said, Pending)
    return said.compute()


@pytest.mark.slow
def test_who_leads_is_pressed_the_next_time_and_a_round_is_hardly_longer_for_it():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    alone = asked_of(selector, now_s)
    assert alone.stress_replayed == ()
    assert answered(selector, now_s, told_of(RIGHT, edf=8.0)).candidate == EDF
    answer = asked_of(selector, now_s)
    assert [one.candidate for one in answer.stress_replayed] == [FCFS, EDF]
    assert EDF in [one.candidate for one in answer.outlooks]
    assert answer.replayed <= answer.requests * (MOST + 1.5)
    twin.take(replace(answer, took_s=answer.replayed / 1000.0))
    assert twin.request_ms == pytest.approx(1.0)


@pytest.mark.slow
def test_who_may_not_be_chosen_is_not_pressed():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    answered(selector, now_s, told_of(RIGHT, edf=8.0))
    assert asked_of(selector, now_s, allowed=("fcfs", "sjf")).stress_replayed == ()


@pytest.mark.slow
def test_what_would_be_no_better_if_more_came_is_not_wished_and_the_next_best_is():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    first = told_of(RIGHT, edf=8.0, sjf=7.0)
    assert answered(selector, now_s, first).candidate == EDF
    held = answered(selector, now_s, under_stress(first, edf=4.0))
    assert held.candidate == SJF
    assert "sjf 70.2% good" in held.reason
    assert "edf, which is ahead, would be no better if 25% more came: -10.0" in held.reason
    both = answered(selector, now_s, under_stress(first, edf=4.0, sjf=5.0))
    assert both.candidate == FCFS
    # Who leads goes on being pressed, and is wished again once it stands that.
    assert [one.candidate for one in asked_of(selector, now_s).stress_replayed] == [FCFS, EDF]
    again = answered(selector, now_s, under_stress(first, edf=5.5))
    assert again.candidate == EDF
    assert "if 25% more came, +5.0" in again.reason


def test_a_silent_twin_says_what_it_set_aside():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    off = told_of(Check(requests=500, everyone=500, replayed=0.7, true=0.5), edf=8.0)
    found = answered(selector, now_s, under_stress(off, edf=4.0))
    assert found.source == "rules"
    assert "edf, which is ahead, would be no better" in found.reason


def test_stress_of_some_rounds_ago_says_nothing_any_more():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    first = told_of(RIGHT, edf=8.0)
    assert answered(selector, now_s, under_stress(first, edf=4.0)).candidate == FCFS
    for _ in range(FRESH_ROUNDS - 1):
        assert answered(selector, now_s, first).candidate == FCFS
    found = answered(selector, now_s, first)
    assert found.candidate == EDF, "it will be pressed before it can be wished again"
    assert "more came" not in found.reason


def test_too_few_slots_under_stress_are_no_word_against_anyone():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    first = told_of(RIGHT, edf=8.0)
    few = replace(first, stress_replayed=(outlook(FCFS, [5.0] * 4), outlook(EDF, [4.0] * 4)))
    assert answered(selector, now_s, few).candidate == EDF
