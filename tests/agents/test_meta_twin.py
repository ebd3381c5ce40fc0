"""The digital twin: the past replayed under candidates, what is made of it, and when it is silent."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from twin_kit import (
    EDF,
    FCFS,
    PLAIN,
    SHORT,
    SJF,
    answered,
    asked,
    blocked,
    lived,
    looked,
    outlook,
    plant,
    situation,
    told_of,
    twin_of,
)
from typing_kit import of_type

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.judge import TOLERANCE, Judge
from hmas.agents.meta.selectors.base import Pending, Proposal
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.agents.meta.twin.candidate_schedule import CAPS, MOST, SELDOM, CandidateSchedule
from hmas.agents.meta.twin.check import Check
from hmas.agents.meta.twin.evidence import BLOCK_SLOTS, FRESH_ROUNDS, HORIZON_S, Evidence, Gain
from hmas.agents.meta.twin.fleet import FleetModel
from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.replay import SLOT_S
from hmas.agents.meta.twin.sample import part_of
from hmas.agents.meta.twin.twin import AIMED, BIAS_MOST, LEAST, Answer, Question, Twin, TwinSettings
from hmas.controller.core.errors import PolicyError
from hmas.controller.core.messages import OPEN_WINDOW
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.engines.sim.profile import faster

# -- replays


def test_the_order_that_saves_the_short_ones_is_found():
    found = {name: looked(Candidate(policy=name)) for name in ("fcfs", "sjf", "two-lane")}
    assert found["sjf"].good > found["fcfs"].good + 0.3
    assert found["two-lane"].good > found["fcfs"].good + 0.2


def test_a_replay_is_the_same_every_time_and_scores_what_came_after_the_lead_in():
    window = blocked()
    assert looked(EDF, window=window) == looked(EDF, window=window)
    late = looked(EDF, window=window, from_s=window[0].request.arrival_s + 30.0)
    assert late.requests == sum(one.request.arrival_s >= window[0].request.arrival_s + 30.0 for one in window)


def test_tenants_count_by_their_weights():
    asked = blocked()
    half_s = asked[len(asked) // 2].request.arrival_s
    # One after the other, so that they do not compete: the queue is long only once the second one comes.
    window = [replace(one, request=replace(one.request, tenant="first" if one.request.arrival_s < half_s else "second")) for one in asked]
    even, weighted = looked(FCFS, window=window), looked(FCFS, window=window, weights={"second": 4.0})
    assert weighted.good < even.good - 0.05, "first come first served misses the second one's targets, and they count more now"


def test_windows_bind_in_a_replay_as_they_do_in_truth():
    tight, open_ = looked(FCFS.window(4)), looked(FCFS.window(OPEN_WINDOW))
    assert tight.good < open_.good - 0.2
    assert looked(FCFS).slots == looked(FCFS.window(32)).slots


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(PolicyError, match="nonsense"):
        looked(Candidate(policy="nonsense"))


def test_a_fleet_of_equals_is_sampled_by_instances_and_one_instance_by_time():
    window = blocked(rate=40.0)
    part = part_of([plant(f"i{n}") for n in range(8)], len(window), len(window) // 4)
    few = part.of(window)
    assert (len(part.plants), part.share) == (2, 0.25)
    assert len(few) == pytest.approx(len(window) / 4, rel=0.1)
    assert few[0].request.arrival_s < window[40].request.arrival_s, "all of the window, not its end"
    assert part_of([plant()], len(window), 100).of(window) == window
    unlike = [plant(), replace(plant("b"), profile=replace(plant().profile, kv_blocks=7))]
    assert part_of(unlike, len(window), 100).share == 1.0


def test_a_fleet_of_two_kinds_is_sampled_by_the_same_share_of_each():
    def of(name, speed, kv_blocks=0):
        profile = faster(plant().profile, speed)
        return replace(plant(name), profile=replace(profile, kv_blocks=kv_blocks or profile.kv_blocks))

    window = blocked(rate=40.0)
    blocks = plant().profile.kv_blocks
    fleet = [of("a", 1.0), of("b", 0.4), of("c", 1.1, blocks + 1), of("d", 0.4, blocks + 2), of("e", 0.95), of("f", 0.45)]
    part = part_of(fleet, len(window), len(window) // 4)
    assert ({one.name for one in part.plants}, part.share) == ({"a", "b"}, 1 / 3), "its fits and caches differ a little"
    assert len(part.of(window)) == pytest.approx(len(window) / 3, rel=0.1)
    assert part_of(fleet[:3], len(window), 100).share == 1.0


# -- evidence


def test_a_gain_needs_more_than_one_burst():
    evidence = Evidence()
    many = 8 * BLOCK_SLOTS + 2
    evidence.add(
        [
            outlook(FCFS, [5.0] * many),
            outlook(EDF, [5.0] * 12 + [10.0] + [5.0] * (many - 13)),
            outlook(SJF, [6.0] * many),
        ]
    )
    lucky, steady = evidence.gain(EDF, FCFS), evidence.gain(SJF, FCFS)
    assert lucky is not None
    assert steady is not None
    assert lucky.share < 2.0 * lucky.error
    assert steady.share == pytest.approx(0.1)
    assert steady.share > 5.0 * steady.error


def test_a_gain_of_three_requests_is_chance_however_evenly_they_lie():
    evidence = Evidence()
    few = [9.0 if place in {9, 19, 29} else 10.0 for place in range(10 * BLOCK_SLOTS)]
    evidence.add([outlook(FCFS, few), outlook(EDF, [10.0] * len(few))])
    found = evidence.gain(EDF, FCFS)
    assert found is not None
    assert 0.0 < found.share < 2.0 * found.error


@pytest.mark.parametrize("weight", [0.01, 1.0, 1000.0])
def test_how_sure_a_gain_is_does_not_depend_on_the_scale_of_weights(weight):
    evidence = Evidence()
    slots = 10 * BLOCK_SLOTS
    told = [outlook(one, [weight * good] * slots, asked_each=weight * 10.0) for one, good in ((FCFS, 5.0), (EDF, 6.0))]
    evidence.add([replace(one, requests=10 * slots) for one in told])
    found = evidence.gain(EDF, FCFS)
    assert found is not None
    assert found.share == pytest.approx(0.1)
    assert found.error == pytest.approx(0.017, abs=0.002)


def test_evidence_is_of_whole_slots_of_the_newest_round_and_gets_old():
    evidence = Evidence()
    evidence.add([outlook(FCFS, [5.0] * 20), outlook(EDF, [5.0] * 20)])
    evidence.add([outlook(FCFS, [5.0] * 20), outlook(EDF, [9.0] * 20)])
    found = evidence.gain(EDF, FCFS)
    assert found is not None
    assert found.share == pytest.approx(0.4), "the newer round's word counts"
    evidence.add([outlook(FCFS, [5.0] * 20, first=100 + int(2 * HORIZON_S / SLOT_S))])
    assert evidence.gain(EDF, FCFS) is None


def test_candidates_are_compared_only_where_the_same_round_replayed_both():
    evidence = Evidence()
    evidence.add([outlook(FCFS, [8.0] * 20), outlook(EDF, [9.0] * 20)])
    # A round later the queue is longer, and all of them look worse: that is no gain of who was replayed before.
    evidence.add([outlook(FCFS, [4.0] * 20), outlook(SJF, [4.0] * 20)])
    ahead, even = evidence.gain(EDF, FCFS), evidence.gain(SJF, FCFS)
    assert ahead is not None
    assert even is not None
    assert ahead.share == pytest.approx(0.1)
    assert even.share == 0.0
    assert evidence.gain(EDF, SJF) is None
    assert [one.policy for one in evidence.fresh()] == ["fcfs", "sjf", "edf"]
    for _ in range(FRESH_ROUNDS):
        evidence.add([outlook(FCFS, [4.0] * 20)])
    assert evidence.fresh() == [FCFS]


def test_hindsight_names_the_best_of_a_span():
    evidence = Evidence()
    evidence.add([outlook(FCFS, [5.0] * 12), outlook(SJF, [8.0] * 12)])
    seen = evidence.hindsight(FCFS, 101 * SLOT_S, 106 * SLOT_S)
    assert seen is not None
    assert (seen.best, seen.best_good, seen.chosen_good) == ("sjf", pytest.approx(0.8), pytest.approx(0.5))
    assert evidence.hindsight(EDF, 101 * SLOT_S, 106 * SLOT_S) is None


# -- the schedule


def found(share: float, error: float = 0.01) -> Gain:
    return Gain(share=share, error=error, good=0.5 + share, other_good=0.5)


def test_every_policy_has_its_turn_and_a_replay_has_few_candidates():
    schedule, seen = CandidateSchedule(), set()
    for _ in range(3 * SELDOM):
        chosen = schedule.choose(EDF, POLICIES, lambda _one, _other: None)
        assert chosen[0] == EDF
        assert len({one.label for one in chosen}) == len(chosen) <= MOST + 1
        seen |= {one.policy for one in chosen}
    assert seen == set(POLICIES)


def test_who_leads_is_always_looked_at_and_the_hopeless_seldom():
    schedule = CandidateSchedule()
    gains = {"slack": found(0.05), "two-lane": found(0.01), "sjf": found(-0.1), "wfq": found(-0.01)}
    times: Counter[str] = Counter()
    for _ in range(24):
        times.update(one.policy for one in schedule.choose(EDF, POLICIES, lambda one, _other: gains.get(one.policy)) if one.n_run == 0)
    assert times["slack"] == 24
    assert times["two-lane"] > 2 * times["sjf"] > 0
    assert times["wfq"] > 2 * times["sjf"]


def test_the_best_static_window_is_searched_for_from_replay_to_replay():
    schedule, best = CandidateSchedule(), CAPS.index(128)

    def gain(one, other):
        worth = {window: -abs(place - best) for place, window in enumerate(CAPS)}
        return found(worth[one.n_run] - worth[other.n_run]) if {one.n_run, other.n_run} <= worth.keys() else None

    looked_at: Sequence[Candidate] = ()
    for _ in range(200):
        looked_at = schedule.choose(EDF, POLICIES, gain)
        plain, other = schedule.plain, CAPS.index(schedule.plain.n_run)
        beside = [one for one in looked_at if one.policy == "fcfs" and one.n_run and one != plain]
        assert all(abs(CAPS.index(one.n_run) - other) == 1 for one in beside), "a neighbour, on the same traffic"
        assert not beside or plain in looked_at
        schedule.learn(looked_at, gain)
    assert schedule.plain.n_run == 128
    assert {one.n_run for one in schedule.choose(schedule.plain, POLICIES, gain)} & {96, 192}, (
        "it is searched on while the baseline itself runs"
    )
    before = schedule.cap
    schedule.learn([EDF], lambda _one, _other: found(1.0))
    assert schedule.cap == before, "a window that was not looked at says nothing"


def test_the_hints_of_what_runs_are_climbed_a_step_at_a_time():
    """From 2 the schedule comes to 12.5 where that is best, and never looks beyond a step at once; the default stays in sight."""
    schedule, current, amounts = CandidateSchedule(), Candidate(policy="robust-edf"), [2.0]

    def worth(one):
        return -abs(one.parameters.get("output_weight", 2.0) - 12.5) / 100.0

    for _ in range(60):
        here = current

        def gain(one, other):
            return found(worth(one) - worth(other)) if one.policy == other.policy == "robust-edf" else None

        chosen = schedule.choose(here, POLICIES, gain)
        steps = [one for one in chosen[1:] if one.policy == "robust-edf" and one.parameters.keys() == {"output_weight"} and one.n_run == 0]
        assert all(one.parameters["output_weight"] / amounts[-1] in (2.5, 0.4) for one in steps)
        best = max(steps, key=worth, default=here)
        if worth(best) > worth(here):
            current = best
            amounts.append(best.parameters["output_weight"])
    assert amounts == [2.0, 5.0, 12.5]
    assert any(Candidate(policy="robust-edf") in schedule.choose(current, POLICIES, gain) for _ in range(SELDOM))


# -- the twin itself


def chosen(twin: Twin, now_s: float, current: Candidate = FCFS) -> Proposal:
    said = TwinSelector(twin, RuleSelector()).propose(situation(now_s, current))
    return said.finish(said.compute()) if isinstance(said, Pending) else said


@pytest.mark.slow
def test_the_twin_proposes_what_would_have_served_better_and_says_how_sure():
    twin, now_s = twin_of(lived(blocked()))
    found = chosen(twin, now_s)
    assert found.source == "twin"
    assert found.candidate.policy in {"sjf", "srtf", "two-lane", "edf", "robust-edf", "llf", "slack"}
    assert "points" in found.reason
    assert found.candidates[0].gain >= max(one.gain for one in found.candidates)
    assert twin.check is not None
    assert abs(twin.check.bias) < 0.02
    # What it proposes is in force then: nothing is sure to be better any more.
    again = chosen(twin, now_s, found.candidate)
    assert again.candidate == found.candidate or again.candidates[0].gain < 0.05


def missed(window) -> list[PastRequest]:
    """The same, if none of those that have ended had been good."""
    return [one if one.good is None else replace(one, good=False) for one in window]


def test_a_twin_whose_replay_is_not_what_happened_is_silent_and_rules_speak():
    calm = [asked(n, 1000.0 + n / 4.0, SHORT) for n in range(400)]
    twin, now_s = twin_of(missed(lived(calm)))
    found = chosen(twin, now_s)
    assert found.source == "rules"
    assert "the twin is silent: in its replay of what ran 0% have missed their targets by now, in truth 99%" in found.reason


@pytest.mark.slow
def test_a_gain_beyond_what_the_replay_is_off_is_spoken_of():
    twin, now_s = twin_of(missed(lived(blocked())))
    found = chosen(twin, now_s)
    assert twin.silence
    assert twin.check is not None
    assert found.source == "twin"
    assert found.candidates[0].gain > abs(twin.check.bias) > BIAS_MOST


def test_what_was_wished_is_wished_on_while_it_is_as_good():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    right = Check(requests=500, everyone=500, replayed=0.5, true=0.5)
    assert answered(selector, now_s, told_of(right, edf=8.0, sjf=7.9)).candidate == EDF
    assert answered(selector, now_s, told_of(right, edf=7.9, sjf=8.0)).candidate == EDF, "as good within its error"
    assert answered(selector, now_s, told_of(right, edf=7.0, sjf=8.0)).candidate == SJF
    assert answered(selector, now_s, told_of(right, edf=8.0, sjf=7.9)).candidate == SJF


def test_a_twin_that_was_never_held_against_the_truth_says_nothing():
    twin, now_s = twin_of(lived(blocked()))
    selector = TwinSelector(twin, RuleSelector())
    found = answered(selector, now_s, told_of(None, edf=9.0))
    assert found.candidate == FCFS
    assert "the twin is silent: no replay has been held against the truth yet" in found.reason


def test_too_little_traffic_is_said():
    twin, now_s = twin_of(blocked()[:20])
    assert "19 requests within" in chosen(twin, now_s).reason


def test_a_twin_learns_what_replays_cost_and_keeps_to_its_budget():
    twin, now_s = twin_of(lived(blocked()), budget_s=0.65)
    question = twin.question((FCFS, EDF), float("-inf"), now_s)
    assert isinstance(question, Question)
    whole = len(question.world.asked)
    twin.take(Answer(outlooks=(looked(FCFS),), check=None, took_s=1.0, requests=whole))
    less = twin.question((FCFS, EDF), float("-inf"), now_s)
    assert isinstance(less, Question)
    # As few as it may be: those that came, and no more of those that were there already.
    affordable = 0.65 * 1000.0 * AIMED / (1000.0 / whole) / 2
    # What comes last comes once more, and of so short a window that is all of it.
    assert 0.7 * affordable < len(less.world.asked) <= 1.5 * affordable < 0.5 * whole


def test_where_replays_are_dear_fewer_candidates_are_looked_at_and_the_window_stays():
    twin, now_s = twin_of(lived(blocked()), budget_s=2.0)
    assert twin.places(now_s) == MOST
    whole = len(of_type(Question, twin.question((FCFS,), float("-inf"), now_s)).world.asked)
    for took_s, places in ((0.1, MOST), (AIMED * 2.0 / 4.5, 4), (100.0, LEAST)):
        # What the whole window takes under one candidate.
        twin.take(Answer(outlooks=(looked(FCFS),), check=None, took_s=took_s, requests=whole))
        assert twin.places(now_s) == places


@pytest.mark.slow
def test_while_nobody_misses_a_target_only_what_runs_and_the_plain_baseline_are_replayed():
    calm, plain = blocked(rate=0.5, seconds=300.0), FCFS.window(32)
    twin, now_s = twin_of(lived(calm), window_s=300.0)
    question = of_type(Question, twin.question((FCFS, EDF, SJF, plain), float("-inf"), now_s, sparing=(plain,)))
    assert [one.candidate for one in question.answer().outlooks] == [FCFS, plain]
    assert [one.candidate for one in replace(question, sparing=None).answer().outlooks] == [FCFS, EDF, SJF, plain]
    twin, now_s = twin_of(lived(blocked()))
    question = of_type(Question, twin.question((FCFS, EDF, SJF, plain), float("-inf"), now_s, sparing=(plain,)))
    assert len(question.answer().outlooks) == 4


@settings(max_examples=40, deadline=None)
@given(gains=st.lists(st.floats(0.0, 10.0), min_size=20, max_size=20), bias=st.floats(-0.5, 0.5))
def test_the_judge_passes_only_what_is_not_expected_to_be_worse(gains, bias):
    twin = Twin(FleetModel(), TwinSettings(admission=PLAIN))
    check = Check(requests=500, everyone=500, replayed=0.5 + bias, true=0.5)
    answer = Answer(outlooks=(outlook(FCFS, [5.0] * 20), outlook(EDF, gains)), check=check, took_s=0.0, requests=400)
    ruling = Judge(twin).rule(FCFS, EDF, answer)
    if abs(check.bias) > BIAS_MOST:
        assert ruling.passes is None
    else:
        found = twin.gain(EDF, FCFS)
        assert found is not None
        assert ruling.passes == (found.share >= -TOLERANCE)
