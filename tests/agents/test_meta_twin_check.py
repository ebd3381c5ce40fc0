"""How far replays of what ran are from what happened, and what the twin makes of that."""

import pytest
from msgspec.structs import replace
from twin_kit import FCFS, PLAIN, blocked, completion, lived, looked, plant, twin_of, world

from hmas.agents.meta.twin.check import CHECKED_MIN, ROUNDS, Check, Checks, held_against_truth
from hmas.agents.meta.twin.fleet import FleetModel
from hmas.agents.meta.twin.replay import replay
from hmas.agents.meta.twin.twin import BIAS_MOST, Answer, Question, Twin, TwinSettings


def test_a_replay_is_held_against_the_truth_only_where_it_ran():
    window = lived(blocked())
    twin, now_s = twin_of(window)
    early = twin.question((FCFS,), float("-inf"), now_s)
    late = twin.question((FCFS,), now_s - 5.0, now_s)
    assert isinstance(early, Question)
    assert isinstance(late, Question)
    assert (early.in_force, late.in_force) == (True, False)
    assert late.answer().check is None
    check = early.answer().check
    assert check is not None
    assert check.slower == pytest.approx(1.0, abs=0.02)
    nothing = held_against_truth(world(blocked()), [])
    assert (nothing.requests, nothing.slower) == (0, 0.0)


def test_who_waits_in_vain_counts_as_missed():
    window = blocked(rate=12.0, seconds=60.0)
    now_s = window[-1].request.arrival_s
    known = lived(window)
    ended = [one for one in known if one.good is not None]
    waiting = [one for one in known if one.good is None and one.dispatched_s > now_s]
    overdue = sum(one.request.arrival_s + one.believed.slo.ttft_ms / 1000.0 <= now_s for one in waiting)
    assert overdue > 100
    of_truth = replay(world(window), FCFS)[1]
    check = held_against_truth(world(known, until_s=now_s, overdue=overdue), of_truth)
    # Here the replay is the truth, so nothing is off.
    assert check.bias == 0.0
    assert check.requests == len(ended) + overdue
    blind = held_against_truth(world(known, until_s=now_s), of_truth)
    assert blind.bias < -0.2, "whoever waits is missing in what has ended"


def test_answers_in_one_piece_are_held_to_the_deadline_that_the_gateway_holds_them_to():
    window = lived([replace(one, request=replace(one.request, stream=False)) for one in blocked(rate=5.0, seconds=60.0)])
    twin, now_s = twin_of(window)
    patient = 0
    for number, one in enumerate(window):
        if one.has_ended:
            came_s, slo = one.request.arrival_s, one.believed.slo
            queue_ms, total_ms = 1000.0 * (one.dispatched_s - came_s), 1000.0 * (one.ended_s - came_s)
            met = total_ms <= slo.ttft_ms + slo.tpot_ms * (one.output_tokens - 1)
            patient += met and queue_ms > slo.ttft_ms
            unseen = dict.fromkeys(("ttft_ms", "service_ttft_ms", "tpot_ms"), -1.0)
            targets = {"ttft_slo_ms": slo.ttft_ms, "tpot_slo_ms": slo.tpot_ms, "predicted_output_tokens": float(one.output_tokens)}
            told = {"queue_ms": queue_ms, "total_ms": total_ms, "slo_met": met, "stream": False}
            twin.traffic.completion(completion(number, came_s, one.output_tokens, **unseen, **targets, **told))
    assert patient > 50, "they waited beyond their TTFT target and came in time as a whole"
    question = twin.question((FCFS,), float("-inf"), now_s)
    assert isinstance(question, Question)
    check = question.answer().check
    assert check is not None
    assert abs(check.bias) < 0.05


def held(requests, missed, truly_missed, *, answers=0, slower=1.0):
    return Check(
        requests=requests,
        everyone=2 * requests,
        replayed=1.0 - missed / (2 * requests),
        true=1.0 - truly_missed / (2 * requests),
        answers=answers,
        replayed_ms=10.0 * answers,
        true_ms=10.0 * slower * answers,
    )


def test_short_replays_are_held_against_the_truth_together():
    checks = Checks()
    few = CHECKED_MIN // 3
    checks.add(held(few, 0, few))
    checks.add(held(few, 0, few))
    assert checks.together() is None
    checks.add(held(few, 3, 3))
    found = checks.together()
    assert found is not None
    assert (found.requests, found.everyone) == (3 * few, 6 * few)
    assert found.bias == pytest.approx(2 * few / (6 * few))
    # What is new comes first, and what is old goes: three good rounds later nothing is left of the bad ones.
    for _ in range(3):
        checks.add(held(few, 3, 3))
    assert checks.together() == held(3 * few, 9, 9)
    checks.add(held(10 * few, 40, 0))
    assert checks.together() == held(10 * few, 40, 0), "a long one needs no other"


def test_what_replays_are_too_fast_by_is_told_once():
    checks = Checks()
    few = CHECKED_MIN // 2
    assert checks.add(held(9, 0, 0, answers=few, slower=1.2)) == 0.0
    assert checks.add(held(9, 0, 0, answers=few, slower=1.4)) == pytest.approx(1.3)
    # Those were made before the correction: they say nothing of replays after it.
    assert checks.add(held(9, 0, 0, answers=few, slower=1.0)) == 0.0
    assert checks.add(held(9, 0, 0, answers=few, slower=1.0)) == pytest.approx(1.0)


def test_rounds_that_say_next_to_nothing_are_not_kept_for_ever():
    checks = Checks()
    checks.add(held(CHECKED_MIN, 0, 20))
    for _ in range(ROUNDS):
        checks.add(held(1, 0, 0))
    assert checks.together() is None


def test_a_twin_whose_replays_are_short_speaks_once_they_agree_together():
    twin = Twin(FleetModel(), TwinSettings(admission=PLAIN))

    def take(check):
        twin.take(Answer(outlooks=(looked(FCFS),), check=check, took_s=0.0, requests=60))
        return twin.silence

    few = CHECKED_MIN // 3
    assert [take(held(few, 0, few)) for _ in range(2)] == ["no replay has been held against the truth yet"] * 2
    assert "0% have missed their targets by now, in truth 50%" in take(held(few, 0, few))
    assert [bool(take(held(few, 1, 1))) for _ in range(3)] == [True, True, False]


def test_a_replay_that_is_too_fast_is_found_out_while_most_still_wait():
    window = blocked(rate=5.0, seconds=60.0)
    now_s = window[-1].request.arrival_s
    true = plant().profile
    fast = replace(true, step_ms=true.step_ms / 3, decode_ms_per_seq=true.decode_ms_per_seq / 3)
    known = lived(window)
    here = world(known, plants=(replace(plant(), profile=fast),), until_s=now_s)
    assert held_against_truth(here, replay(here, FCFS)[1]).bias > BIAS_MOST
