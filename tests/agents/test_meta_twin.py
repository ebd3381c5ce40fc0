"""The digital twin: steps learnt from counters, the past replayed under candidates, what is made of it, and when it is silent."""

import msgspec
import numpy as np
import pytest
from control_kit import long_view
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import instance_view, system_snapshot

from agents.meta.candidate import Candidate
from agents.meta.judge import TOLERANCE, Judge
from agents.meta.selectors.base import Pending, Proposal, Situation
from agents.meta.selectors.rules import RuleSelector
from agents.meta.selectors.twin import TwinSelector
from agents.meta.twin.evidence import BLOCK_SLOTS, HORIZON_S, Evidence
from agents.meta.twin.fleet import SAMPLES_MIN, FleetModel
from agents.meta.twin.menu import CAPS, FAMILIES, Menu
from agents.meta.twin.plant import Step, StepFit, WorkLog
from agents.meta.twin.replay import SLOT_S, Outlook, Plant, World, replay
from agents.meta.twin.sample import part_of
from agents.meta.twin.traffic import Asked, Traffic
from agents.meta.twin.twin import BIAS_MOST, Answer, Check, Question, Twin, TwinSettings, held_against_truth
from controller.core.errors import PolicyError
from controller.core.messages import OPEN_WINDOW, Completion, ControlAction
from controller.core.types import OutcomeKind, Slo
from controller.scheduling.outcomes import SchedulerSettings
from controller.scheduling.pool import POLICIES
from engines.base import EngineSnapshot
from engines.sim.profile import load_profile

PLAIN = SchedulerSettings(overdue="keep", fence=False)
SHORT, LONG = 40, 1200
FCFS, EDF, SJF = (Candidate(policy=name) for name in ("fcfs", "edf", "sjf"))


def asked(number: int, arrival_s: float, output: int, *, ttft_ms: float = 2000.0, **more) -> Asked:
    fields = {
        "request_id": f"r{number}", "tenant": "t", "model": "m", "arrival_s": arrival_s, "prompt_tokens": 200, "output_tokens": output,
        "believed_tokens": float(output), "upper_tokens": 1.5 * output, "slo": Slo(ttft_ms=ttft_ms, tpot_ms=500.0),
    }  # fmt: skip
    return Asked(**(fields | more))


def blocked(rate: float = 4.0, seconds: float = 120.0, seed: int = 1) -> list[Asked]:
    """Short requests in a hurry behind long ones that are in none."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / rate, int(rate * seconds)))
    return [
        asked(n, 1000.0 + at, LONG, ttft_ms=60_000.0) if n % 5 == 0 else asked(n, 1000.0 + at, SHORT) for n, at in enumerate(times.tolist())
    ]


def plant(name: str = "a", n_run: int = 32) -> Plant:
    return Plant(name=name, profile=load_profile("demo-small"), windows=((0.0, n_run),), ceiling=256)


def world(window=None, **more) -> World:
    window = tuple(window or blocked())
    return World(**({"asked": window, "plants": (plant(),), "settings": PLAIN, "from_s": window[0].arrival_s} | more))


def looked(candidate: Candidate, **more) -> Outlook:
    return replay(world(**more), candidate)[0]


def outlook(candidate: Candidate, good, asked_each: float = 10.0, first: int = 100) -> Outlook:
    slots = {first + place: (value, asked_each) for place, value in enumerate(good)}
    return Outlook(candidate=candidate, requests=round(asked_each * len(slots)), good=sum(good) / (asked_each * len(slots)), slots=slots)


# -- steps


@pytest.mark.parametrize("truth", [Step(base_ms=12.0, seq_ms=0.2, prompt_ms=0.06), Step(base_ms=3.0, seq_ms=0.05, prompt_ms=0.01)])
def test_steps_are_told_apart_from_the_prefills_that_ran_beside(truth):
    """An engine whose load and prompts vary: times per token alone would put the prefills into the step."""
    rng = np.random.default_rng(3)
    fit, now_s, prompt, generated = StepFit(), 0.0, 0, 0
    naive = []
    fit.observe(now_s, prompt, generated)
    for number in range(400):
        n, chunks, start_s, steps = int(rng.integers(1, 40)), 0, now_s, int(rng.integers(20, 60))
        for _ in range(steps):
            chunk = int(rng.integers(200, 800)) if rng.random() < 0.3 else 0
            now_s += (truth.base_ms + truth.seq_ms * n + truth.prompt_ms * chunk) / 1000.0
            prompt, generated, chunks = prompt + chunk, generated + n, chunks + chunk
        took_ms = 1000.0 * (now_s - start_s)
        naive.append(took_ms / steps - truth.seq_ms * n)
        fit.learn(completion(number, start_s, steps + 1, ttft_ms=0.0, total_ms=took_ms))
        fit.observe(now_s, prompt, generated)
    found = fit.step
    assert found is not None
    assert found.samples > 300
    for n, prompt_tokens in ((5, 0), (30, 0), (20, 500)):
        one, true = (step.base_ms + step.seq_ms * n + step.prompt_ms * prompt_tokens for step in (found, truth))
        assert one == pytest.approx(true, rel=0.08), (n, prompt_tokens)
    assert np.mean(naive) > 1.3 * truth.base_ms, "else this test would not tell the two apart"


def test_counters_are_read_between_readings_and_over_restarts():
    log = WorkLog()
    log.add(0.0, 100, 10)
    log.add(1.0, 200, 30)
    log.add(0.5, 999, 999)
    log.add(2.0, 50, 5)
    assert log.between(0.0, 1.0) == pytest.approx((100.0, 20.0))
    assert log.between(0.25, 0.75) == pytest.approx((50.0, 10.0))
    assert log.between(1.0, 2.0) == pytest.approx((50.0, 5.0)), "a counter that fell belongs to a new process"
    assert log.between(-1.0, 1.0) is None
    assert log.between(1.0, 3.0) is None


def test_without_any_completion_a_profile_speaks_or_nobody():
    assert StepFit().step is None
    prior = Step(base_ms=5.0, seq_ms=0.1, prompt_ms=0.02)
    assert StepFit(prior).step == prior


# -- replays


def test_the_order_that_saves_the_short_ones_is_found():
    found = {name: looked(Candidate(policy=name)) for name in ("fcfs", "sjf", "two-lane")}
    assert found["sjf"].good > found["fcfs"].good + 0.3
    assert found["two-lane"].good > found["fcfs"].good + 0.2


def test_a_replay_is_the_same_every_time_and_scores_what_came_after_the_lead_in():
    window = blocked()
    assert looked(EDF, window=window) == looked(EDF, window=window)
    late = looked(EDF, window=window, from_s=window[0].arrival_s + 30.0)
    assert late.requests == sum(one.arrival_s >= window[0].arrival_s + 30.0 for one in window)


def test_tenants_count_by_their_weights():
    window = [msgspec.structs.replace(one, tenant="vip" if one.output_tokens == SHORT else "batch") for one in blocked()]
    even, weighted = looked(FCFS, window=window), looked(FCFS, window=window, weights={"vip": 4.0})
    assert weighted.good < even.good - 0.05, "first come first served misses the short ones' targets, and theirs count more now"


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
    assert few[0].arrival_s < window[40].arrival_s, "all of the window, not its end"
    assert part_of([plant()], len(window), 100).of(window) == window
    unlike = [plant(), msgspec.structs.replace(plant("b"), models=frozenset({"other"}))]
    assert part_of(unlike, len(window), 100).share == 1.0


def test_what_a_span_finds_there_comes_with_it():
    traffic = Traffic()
    waits = completion(1, 100.0, 500, queue_ms=20_000.0, total_ms=40_000.0, ttft_slo_ms=15_000.0)
    runs = completion(2, 100.0, 500, queue_ms=0.0, total_ms=20_000.0)
    gone = completion(3, 100.0, 500, queue_ms=0.0, total_ms=9_000.0)
    later = completion(4, 111.0, 500)
    for one in (waits, runs, gone, later):
        traffic.completion(one)
    found = {one.request_id: one for one in traffic.carried(110.0)}
    assert found.keys() == {"r1", "r2"}
    assert all(one.arrival_s == 110.0 for one in found.values())
    assert (found["r1"].prompt_tokens, found["r1"].output_tokens, found["r1"].slo.ttft_ms) == (200, 500, 5_000.0)
    assert (found["r2"].prompt_tokens, found["r2"].output_tokens) == (1, 250)


# -- evidence


def test_a_gain_needs_more_than_one_burst():
    evidence = Evidence()
    many = 8 * BLOCK_SLOTS + 2
    evidence.add(outlook(FCFS, [5.0] * many))
    evidence.add(outlook(EDF, [5.0] * 12 + [10.0] + [5.0] * (many - 13)))
    evidence.add(outlook(SJF, [6.0] * many))
    lucky, steady = evidence.gain(EDF, FCFS), evidence.gain(SJF, FCFS)
    assert lucky is not None
    assert steady is not None
    assert lucky.share < 2.0 * lucky.error
    assert steady.share == pytest.approx(0.1)
    assert steady.share > 10.0 * steady.error


def test_evidence_is_of_whole_slots_of_the_newest_replay_and_gets_old():
    evidence = Evidence()
    evidence.add(outlook(FCFS, [5.0] * 20))
    evidence.add(outlook(EDF, [5.0] * 20))
    evidence.add(outlook(EDF, [9.0] * 20))
    found = evidence.gain(EDF, FCFS)
    assert found is not None
    assert found.share == pytest.approx(0.4), "the newer replay's word counts"
    evidence.add(outlook(FCFS, [5.0] * 20, first=100 + int(2 * HORIZON_S / SLOT_S)))
    assert evidence.gain(EDF, FCFS) is None
    evidence.forget()
    assert evidence.gain(FCFS, FCFS) is None


def test_hindsight_names_the_best_of_a_span():
    evidence = Evidence()
    evidence.add(outlook(FCFS, [5.0] * 12))
    evidence.add(outlook(SJF, [8.0] * 12))
    seen = evidence.hindsight(FCFS, 101 * SLOT_S, 106 * SLOT_S)
    assert seen is not None
    assert (seen.best, seen.best_good, seen.chosen_good) == ("sjf", pytest.approx(0.8), pytest.approx(0.5))
    assert evidence.hindsight(EDF, 101 * SLOT_S, 106 * SLOT_S) is None


# -- the menu


def test_every_policy_has_its_turn_and_families_are_always_there():
    menu, seen = Menu(), set()
    for _ in range(2 * len(POLICIES)):
        chosen = menu.choose(EDF, POLICIES, lambda _one, _other: None)
        assert chosen[0] == EDF
        assert {one.policy for one in chosen} >= set(FAMILIES)
        assert len({one.label for one in chosen}) == len(chosen) <= len(FAMILIES) + 6
        seen |= {one.policy for one in chosen}
    assert seen == set(POLICIES)


def test_the_best_static_window_is_searched_for_from_replay_to_replay():
    menu, best = Menu(), CAPS.index(128)

    class Found:
        def __init__(self, share):
            self.share, self.error = share, 0.01

    def gain(one, other):
        worth = {window: -abs(place - best) for place, window in enumerate(CAPS)}
        return Found(worth[one.n_run] - worth[other.n_run])

    for _ in range(20):
        menu.learn(gain)
    assert menu.plain.n_run == 128


# -- what it stands on


def completion(number: int, arrival_s: float, output: int, **more) -> Completion:
    fields = {
        "request_id": f"r{number}", "sent_s": arrival_s + 3.0, "tenant": "t", "model": "m", "outcome": OutcomeKind.COMPLETED,
        "arrival_s": arrival_s, "policy": "edf", "instance": "a", "prompt_tokens": 200, "output_tokens": output, "queue_ms": 10.0,
        "ttft_ms": 300.0, "service_ttft_ms": 120.0, "tpot_ms": 20.0, "total_ms": 300.0 + 20.0 * output, "ttft_slo_ms": 800.0,
        "tpot_slo_ms": 60.0, "predicted_output_tokens": 70.0, "running": 5, "slo_met": True,
    }  # fmt: skip
    return Completion(**(fields | more))


def engine(now_s: float, prompt: int = 0, generated: int = 0, **more) -> EngineSnapshot:
    told = {"kv_usage": 0.1, "kv_capacity_tokens": 64_000, "prompt_tokens_total": prompt, "generation_tokens_total": generated}
    return EngineSnapshot(**({"engine": "a", "taken_s": now_s, "healthy": True} | told | more))


def told(now_s: float, engine_snapshot: EngineSnapshot | None = None, **more):
    view = {
        "name": "a",
        "in_flight": 6,
        "in_flight_tokens": 1500,
        "n_run": 12,
        "kv_committed": 0.1,
        "tpot_pressure": 0.2,
        "capacity_n_run": 64,
    }
    return system_snapshot(instance_view(**(view | {"engine": engine_snapshot} | more)), sent_s=now_s)


def served_fleet(rate_s: float = 0.02) -> tuple[FleetModel, float]:
    """A fleet whose one engine makes a token for each of 10 sequences every 20 ms."""
    fleet, now_s = FleetModel(), 100.0
    fleet.observe(told(now_s, engine(now_s)))
    for number in range(2 * SAMPLES_MIN):
        start_s, now_s = now_s, now_s + 50 * rate_s
        fleet.learn(completion(number, start_s, 51, ttft_ms=0.0, total_ms=50 * rate_s * 1000.0))
        fleet.observe(told(now_s, engine(now_s, 0, 500 * (number + 1))))
    return fleet, now_s


def test_an_instance_is_known_by_its_profile_or_by_what_it_has_shown():
    fleet = FleetModel()
    assert fleet.plants(0.0, 60.0) == ([], "no snapshot of the fleet for a while")
    fleet.observe(told(0.0, engine(0.0)))
    assert "speed of a is not known" in fleet.plants(0.0, 60.0)[1]
    fleet, now_s = served_fleet()
    (found,), why = fleet.plants(now_s, 60.0)
    assert why == ""
    assert found.profile.step_ms + 10 * found.profile.decode_ms_per_seq == pytest.approx(20.0, rel=0.05)
    assert (found.windows[-1][1], found.ceiling) == (12, 64)
    known = FleetModel({"a": load_profile("demo-small")})
    known.observe(told(0.0))
    assert known.plants(0.0, 60.0)[0][0].profile == load_profile("demo-small")


def test_a_drained_or_dead_instance_is_not_replayed():
    fleet, now_s = served_fleet()
    fleet.observe(told(now_s + 0.1, engine(now_s + 0.1, healthy=False)))
    assert fleet.plants(now_s + 0.1, 60.0) == ([], "no engine is healthy")


def test_stateras_windows_are_replayed_as_they_were_given():
    fleet, now_s = served_fleet()
    for at_s, n_run in ((now_s - 90.0, 99), (now_s - 60.0, 10), (now_s - 30.0, 30)):
        fleet.regulated(ControlAction(sent_s=at_s, instance="a", n_run=n_run))
    (found,), _ = fleet.plants(now_s, 60.0)
    assert [n_run for _, n_run in found.windows] == [10, 30]
    regulated = Candidate(policy="edf")
    assert [found.window(regulated, now_s - ago_s) for ago_s in (80.0, 45.0, 10.0)] == [10, 10, 30]
    assert found.window(regulated.window(OPEN_WINDOW), now_s) == found.ceiling


def test_a_window_that_moved_binds_in_the_replay_when_it_did():
    moved = msgspec.structs.replace(plant(), windows=((0.0, 256), (1040.0, 4), (1080.0, 256)))
    wide, tight, found = (looked(FCFS, plants=(one,)) for one in (plant(n_run=256), plant(n_run=4), moved))
    assert tight.good < found.good - 0.05
    assert found.good < wide.good - 0.05


def test_a_found_disagreement_in_speed_is_taken_over_within_bounds():
    fleet, _ = served_fleet()
    fleet.correct(1.21)
    assert fleet.stretch == pytest.approx(1.21**0.2)
    for _ in range(50):
        fleet.correct(10.0)
    assert fleet.stretch == pytest.approx(2.0)


def test_what_has_ended_has_its_true_length_and_is_bounded():
    traffic = Traffic(limit=10)
    for number in range(100):
        traffic.completion(completion(number, 100.0 + number, 500))
    assert len(traffic) == 10
    window = traffic.window(0.0, 1e9, 100)
    assert [one.request_id for one in window] == [f"r{n}" for n in range(90, 100)]
    assert (window[0].output_tokens, window[0].good, window[0].known) == (500, True, True)


# -- the twin itself


def twin_of(window, **more) -> tuple[Twin, float]:
    """A twin that has seen the window served by `demo-small`."""
    twin = Twin(
        FleetModel({"a": load_profile("demo-small")}), TwinSettings(**({"admission": PLAIN, "window_s": 120.0, "budget_s": 20.0} | more))
    )
    for one in window:
        twin.traffic._keep(one)
    now_s = window[-1].arrival_s
    twin.hear(told(now_s, n_run=32, capacity_n_run=32))
    return twin, now_s


def lived(window) -> list[Asked]:
    """The window as it ended under first come first served."""
    _, records = replay(world(window), FCFS)
    of = {record.request_id: record for record in records}
    return [
        msgspec.structs.replace(
            one,
            good=of[one.request_id].slo_met,
            served_tpot_ms=max(0.0, of[one.request_id].tpot_ms),
            known=True,
            dispatched_s=one.arrival_s + of[one.request_id].queue_ms / 1000.0,
            ended_s=one.arrival_s + of[one.request_id].total_ms / 1000.0,
        )
        for one in window
    ]


def situation(now_s: float, current: Candidate = FCFS, since_s: float = float("-inf")) -> Situation:
    return Situation(
        view=long_view(now_s, policy=current.policy),
        current=current,
        start=FCFS,
        allowed=tuple(sorted(POLICIES)),
        since_s=since_s,
        now_s=now_s,
    )


def chosen(twin: Twin, now_s: float, current: Candidate = FCFS) -> Proposal:
    said = TwinSelector(twin, RuleSelector()).propose(situation(now_s, current))
    return said.finish(said.compute()) if isinstance(said, Pending) else said


def test_the_twin_proposes_what_would_have_served_better_and_says_how_sure():
    twin, now_s = twin_of(lived(blocked()))
    found = chosen(twin, now_s)
    assert found.source == "twin"
    assert found.candidate.policy in {"sjf", "srtf", "two-lane", "edf", "llf", "slack"}
    assert "points" in found.reason
    assert found.candidates[0].gain >= max(one.gain for one in found.candidates)
    assert twin.check is not None
    assert abs(twin.check.bias) < 0.02
    # What it proposes is in force then: nothing is sure to be better any more.
    again = chosen(twin, now_s, found.candidate)
    assert again.candidate == found.candidate or again.candidates[0].gain < 0.05


def test_a_twin_whose_replay_is_not_what_happened_is_silent_and_rules_speak():
    window = [msgspec.structs.replace(one, good=not one.good) for one in lived(blocked())]
    twin, now_s = twin_of(window)
    found = chosen(twin, now_s)
    assert found.source == "rules"
    assert "the twin is silent: its replay of what ran has" in found.reason


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
    assert len(less.world.asked) < whole / 2


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


@settings(max_examples=40, deadline=None)
@given(gains=st.lists(st.floats(0.0, 10.0), min_size=20, max_size=20), bias=st.floats(-0.5, 0.5))
def test_the_judge_passes_only_what_is_not_expected_to_be_worse(gains, bias):
    twin = Twin(FleetModel(), TwinSettings(admission=PLAIN))
    check = Check(requests=500, replayed=0.5 + bias, true=0.5, slower=1.0)
    answer = Answer(outlooks=(outlook(FCFS, [5.0] * 20), outlook(EDF, gains)), check=check, took_s=0.0, requests=400)
    ruling = Judge(twin).rule(FCFS, EDF, answer)
    if abs(check.bias) > BIAS_MOST:
        assert ruling.passes is None
    else:
        found = twin.gain(EDF, FCFS)
        assert found is not None
        assert ruling.passes == (found.share >= -TOLERANCE)
