"""Open requests about which perception was not asked: the twin knows how many there are, and nothing more."""

import pytest
from msgspec.structs import replace
from twin_kit import FCFS, asked, blocked, lived, twin_of
from typing_kit import known, of_type

from hmas.agents.meta.twin.past_requests import PastRequest, Traffic
from hmas.agents.meta.twin.twin import Question


def asked_about(window: list[PastRequest], one_of: int) -> list[PastRequest]:
    """The ended ones, one of so many of the open ones, and none for 0."""
    still = [one for one in window if not one.has_ended]
    return [*(one for one in window if one.has_ended), *(still[one_of // 2 :: one_of] if one_of else ())]


def test_a_replay_has_the_queue_of_an_overload_though_few_were_asked_about():
    window = lived(blocked(rate=12.0, seconds=60.0))
    questions = []
    for one_of in (1, 7):
        twin, now_s = twin_of(window, asked_about(window, one_of))
        questions.append(of_type(Question, twin.question((FCFS,), float("-inf"), now_s)))
    whole, sampled = questions
    assert whole.world.overdue == sampled.world.overdue > 100
    assert len(whole.world.asked) == pytest.approx(len(sampled.world.asked), rel=0.05)
    true, found = (question.answer() for question in questions)
    assert known(true.check).bias == pytest.approx(0.0, abs=0.03)
    assert known(found.check).bias == pytest.approx(0.0, abs=0.05)
    assert found.outlooks[0].good == pytest.approx(true.outlooks[0].good, abs=0.03)


def test_where_no_open_request_is_known_none_of_them_is_held_against_the_replay():
    window = lived(blocked(rate=12.0, seconds=60.0))
    twin, now_s = twin_of(window, asked_about(window, 0))
    assert of_type(Question, twin.question((FCFS,), float("-inf"), now_s)).world.overdue == 0.0


def test_stand_ins_are_spread_over_the_time_of_the_known_and_none_are_needed_where_all_are_known():
    traffic = Traffic(limit=8)
    assert traffic.stand_ins(5, 110.0) == []
    for number, arrival_s in enumerate((100.0, 104.0)):
        traffic.keep(asked(number, arrival_s, 50))
    traffic.keep(replace(asked(2, 101.0, 50), ended_s=103.0))
    assert traffic.stand_ins(2, 110.0) == traffic.stand_ins(0, 110.0) == []
    found = traffic.stand_ins(6, 110.0)
    assert [one.request.arrival_s for one in found] == [101.0, 103.0, 105.5, 108.5]
    assert [one.request.id for one in found] == ["r0~0", "r0~1", "r1~2", "r1~3"]
    assert len(traffic.stand_ins(1_000, 110.0)) == 8
    assert [one.request.id for one in traffic.there(105.0, found)] == ["r0", "r0~0", "r0~1", "r1"]
    assert [one.request.id for one in traffic.window(103.0, 106.0, 9, found)] == ["r0~1", "r1", "r1~2"]
