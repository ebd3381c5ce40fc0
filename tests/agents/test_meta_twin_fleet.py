"""What the twin stands on: steps learnt from counters, the fleet as it is, the traffic of late."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import instance_view, system_snapshot
from msgspec.structs import replace
from scipy.optimize import nnls  # type: ignore[import-untyped]  # it ships no types
from twin_kit import EDF, FCFS, PLAIN, answered, asked, blocked, completion, engine, looked, plant, served_fleet, told, told_of, world
from typing_kit import known, of_type

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.agents.meta.twin.fleet import FleetModel
from hmas.agents.meta.twin.past_requests import Traffic
from hmas.agents.meta.twin.plant import CountedSteps
from hmas.agents.meta.twin.replay import replay
from hmas.agents.meta.twin.sample import part_of
from hmas.agents.meta.twin.twin import Question, Twin, TwinSettings
from hmas.controller.control.agent_scores import WINDOWS
from hmas.controller.control.apply import with_settings
from hmas.controller.control.resolve import META, STATERA, Ceiling, Configured, Received, resolve
from hmas.controller.core.messages import OPEN_WINDOW, ControlAction, MetaDecision, OverrideNotice, SystemSnapshot
from hmas.controller.core.statistics.step_fit import Step, least_squares
from hmas.controller.core.types import Controls, Slo
from hmas.controller.scheduling.settings import SchedulerSettings
from hmas.engines.base import EngineSnapshot
from hmas.engines.sim.profile import load_profile


@pytest.mark.parametrize("truth", [Step(base_ms=12.0, seq_ms=0.2, prompt_ms=0.06), Step(base_ms=3.0, seq_ms=0.05, prompt_ms=0.01)])
def test_steps_are_told_apart_from_the_prefills_that_ran_beside(truth):
    """An engine whose load and prompts vary: times per token alone would put the prefills into the step."""
    rng = np.random.default_rng(3)
    fit, now_s, prompt, generated = CountedSteps(), 0.0, 0, 0
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


def test_several_answers_say_nothing_of_a_step():
    fit, now_s = CountedSteps(), 0.0
    fit.observe(now_s, 0, 0)
    for number in range(50):
        fit.learn(completion(number, now_s, 102, sequences=2, ttft_ms=0.0, total_ms=1000.0))
        now_s += 1.0
        fit.observe(now_s, 0, 100 * (number + 1))
    assert fit.step is None


def test_answers_that_were_read_in_one_lot_do_not_outweigh_all_others():
    fit, now_s, generated = CountedSteps(), 0.0, 0
    fit.observe(now_s, 0, generated)

    def serve(steps: int, step_ms: float, read_ms: float | None = None) -> None:
        nonlocal now_s, generated
        now_s, generated = now_s + steps * step_ms / 1000.0, generated + steps
        took_ms = steps * step_ms if read_ms is None else read_ms
        fit.learn(completion(generated, now_s - took_ms / 1000.0, steps + 1, ttft_ms=0.0, total_ms=took_ms))
        now_s += 1e-6
        fit.observe(now_s, 0, generated)

    for _ in range(100):
        serve(63, 20.0)
    serve(63, 20.0, read_ms=1.0)
    assert known(fit.step).samples == 100, "no engine is as fast as that"
    serve(19, 20.0, read_ms=12.0)
    assert known(fit.step).decode_ms(1.0) == pytest.approx(20.0, rel=0.1)
    # An engine that has become faster is followed all the same.
    for _ in range(300):
        serve(63, 2.0)
    assert known(fit.step).decode_ms(1.0) == pytest.approx(2.0, rel=0.15)


def test_without_any_completion_no_step_is_known():
    assert CountedSteps().step is None


def test_an_instance_is_known_by_its_profile_or_by_what_it_has_shown():
    fleet = FleetModel()
    assert fleet.plants(0.0, 60.0) == ([], "no snapshot of the fleet for a while")
    fleet.observe(told(0.0, engine(0.0)))
    assert "speed of a is not known" in fleet.plants(0.0, 60.0)[1]
    fleet, now_s = served_fleet()
    (found,), why = fleet.plants(now_s, 60.0)
    assert why == ""
    assert found.profile.step_ms + 10 * found.profile.decode_ms_per_seq == pytest.approx(20.0, rel=0.05)
    assert (found.regulated[-1][1].n_run, found.ceiling) == (12, 64)
    known = FleetModel(lambda _name: load_profile("demo-small"))
    known.observe(told(0.0))
    assert known.plants(0.0, 60.0)[0][0].profile == load_profile("demo-small")


def test_an_engine_that_served_nothing_of_late_does_not_silence_the_twin():
    fleet, now_s = served_fleet()
    both = told(now_s, engine(now_s, 0, 30_000))

    def seen(**more):
        fleet.observe(replace(both, instances=[*both.instances, instance_view("spare", **more)]))
        plants, why = fleet.plants(now_s, 60.0)
        return [one.name for one in plants], why

    assert seen(in_flight=0) == (["a"], "")
    assert seen(in_flight=1) == ([], "the speed of spare is not known yet")
    fleet.learn(completion(1, now_s - 30.0, 51, instance="spare"))
    assert seen(in_flight=0) == ([], "the speed of spare is not known yet")
    now_s += 61.0
    both = replace(both, sent_s=now_s)
    assert seen(in_flight=0) == (["a"], "")


BLIND = {"in_flight": 3, "engine": EngineSnapshot(engine="b", taken_s=0.0, healthy=True)}


def beside(models: list[str], others: list[str]) -> tuple[FleetModel, float]:
    """A fleet with one engine that is known, and one without counters that serves, too."""
    fleet, now_s = served_fleet()
    known_engine = told(now_s, engine(now_s, 0, 30_000), models=models)
    fleet.observe(replace(known_engine, instances=[*known_engine.instances, instance_view("b", models=others, **BLIND)]))
    return fleet, now_s


@pytest.mark.parametrize(("models", "others"), [([], []), (["m"], ["m", "n"]), (["m"], [])])
def test_an_engine_without_counters_is_replayed_as_like_a_known_one_of_its_models(models, others):
    fleet, now_s = beside(models, others)
    (one, other), why = fleet.plants(now_s, 60.0)
    assert (one.name, other.name, why) == ("a", "b", "")
    assert one.profile == other.profile
    assert fleet.assumed.startswith("the speed of b is not known: it reports no counters")
    assert fleet.assumed.endswith("it is taken as like the others")
    fleet.observe(told(now_s, engine(now_s, 0, 30_000)))
    assert fleet.plants(now_s, 60.0)[1] == fleet.assumed == ""


def test_an_engine_without_counters_that_is_like_no_other_is_left_out_with_its_requests():
    fleet, now_s = beside(["m"], ["n"])
    assert [one.name for one in fleet.plants(now_s, 60.0)[0]] == ["a"]
    assert fleet.assumed.endswith("its requests are left out")
    twin = Twin(fleet, TwinSettings(admission=PLAIN, window_s=60.0))
    for number in range(400):
        one = asked(number, now_s - 70.0 + number / 6.0, 10)
        twin.traffic.keep(replace(one, request=replace(one.request, model="mnnn"[number % 4])))
    fleet.overdue = 200
    found = of_type(Question, twin.question([FCFS], 0.0, now_s))
    assert {one.request.model for one in found.world.asked} == {"m"}
    assert found.world.overdue == pytest.approx(50, abs=2)
    twin.silence = ""
    assert fleet.assumed in answered(TwinSelector(twin, RuleSelector()), now_s, told_of(None, edf=6.0)).reason


def test_an_engine_with_counters_silences_the_twin_for_no_longer_than_a_window():
    fleet, now_s = served_fleet()
    for later_s, found in ((0.0, []), (59.0, []), (61.0, ["a", "b"])):
        both = told(now_s + later_s, engine(now_s + later_s, 0, 30_000))
        fleet.observe(replace(both, instances=[*both.instances, instance_view("b", in_flight=1)]))
        assert [one.name for one in fleet.plants(now_s + later_s, 60.0)[0]] == found


def test_without_any_known_engine_the_twin_is_silent():
    fleet = FleetModel()
    fleet.observe(replace(told(0.0), instances=[instance_view("b", **BLIND)]))
    assert fleet.plants(0.0, 60.0) == ([], "the speed of b is not known: it reports no counters, and so needs `engines[].profile`")


def test_a_drained_or_dead_instance_is_not_replayed():
    fleet, now_s = served_fleet()
    fleet.observe(told(now_s + 0.1, engine(now_s + 0.1, healthy=False)))
    assert fleet.plants(now_s + 0.1, 60.0) == ([], "no engine is healthy")


def test_an_instances_lead_goes_with_it_into_the_replay():
    crowd = [asked(number, 1000.0, 2, ttft_ms=1000.0) for number in range(100)]
    patient = [asked(number, 1000.0, 2, ttft_ms=60_000.0) for number in range(100, 110)]
    sure, waited_ms = SchedulerSettings(late_confidence=0.9, fence=False), {}
    for told_ms in (0.0, 200.0, 1e9):
        fleet = FleetModel(lambda _name: load_profile("demo-small"))
        fleet.observe(told(0.0, first_token_overhead_ms=told_ms, n_run=1))
        plants, _ = fleet.plants(0.0, 60.0)
        records = replay(world(crowd + patient, plants=tuple(plants), settings=sure), FCFS)[1]
        waited_ms[told_ms] = min(record.queue_ms for record in records if known(record.slo).ttft_ms > 1000.0)
    # The patient go first once the rest of the crowd is too late: that is sooner where first tokens take their time. Nonsense is ignored.
    assert waited_ms[0.0] == waited_ms[1e9] > waited_ms[200.0] + 50.0


def test_windows_are_replayed_as_they_were_active():
    fleet, now_s = FleetModel(lambda _name: load_profile("demo-small")), 100.0
    for ago_s, n_run in ((90.0, 99), (60.0, 10), (45.0, 10), (30.0, 30), (0.0, 30)):
        fleet.observe(told(now_s - ago_s, n_run=n_run, guard=n_run / 100.0))
    (found,), _ = fleet.plants(now_s, 60.0)
    assert [controls.n_run for _, controls in found.regulated] == [10, 30]
    regulated = Candidate(policy="edf")
    taken = [found.controls(regulated, now_s - ago_s) for ago_s in (80.0, 45.0, 10.0)]
    assert taken == [Controls(n_run=n_run, guard=n_run / 100.0) for n_run in (10, 10, 30)]
    # A candidate's own window takes the place of the active one, and nothing else.
    assert found.controls(regulated.window(OPEN_WINDOW), now_s) == Controls(n_run=found.ceiling, guard=0.3)


CONFIGURED = Configured(policy="fcfs", n_run=0)
CEILING = {"a": Ceiling(64)}


def settled(now_s: float, *, decision=None, aside=(), statera_s=math.inf, **held) -> SystemSnapshot:
    """What a gateway reports whose agents and operators have said this; statera gave a window of 10 at `statera_s`."""
    action = Received(min(now_s, statera_s), ControlAction(sent_s=now_s, instance="a", n_run=10, guard=0.5))
    meta = (
        None if decision is None else Received(now_s, MetaDecision(sent_s=now_s, decision_id="1", policy="fcfs", previous="", **decision))
    )
    notice = OverrideNotice(sent_s=now_s, **held)
    found = resolve(CONFIGURED, CEILING, meta, {"a": action}, notice, now_s=now_s, stale_after_s=15.0, aside=aside)
    controls = found.instances["a"].controls
    return with_settings(told(now_s, n_run=controls.n_run, guard=controls.guard), found)


STATERAS, OPEN = Controls(n_run=10, guard=0.5), Controls(n_run=64)


@pytest.mark.parametrize(
    ("said", "own", "under_32"),
    [
        ({}, STATERAS, 32),
        ({"aside": {(STATERA, WINDOWS)}}, OPEN, 32),
        ({"statera_s": 50.0}, OPEN, 32),
        ({"decision": {"n_run": 32}}, STATERAS, 32),
        ({"decision": {"n_run": 32}, "aside": {(STATERA, WINDOWS)}}, OPEN, 32),
        ({"decision": {"n_run": 32}, "aside": {(META, WINDOWS)}}, STATERAS, 10),
        ({"decision": {"bypass": True}}, OPEN, 32),
        ({"knobs": {"a": {"n_run": 7}}}, Controls(n_run=7, guard=0.5), 7),
    ],
)
def test_a_replay_has_the_windows_that_are_in_force(said, own, under_32):
    fleet = FleetModel(lambda _name: load_profile("demo-small"))
    fleet.observe(settled(100.0, **said))
    (found,), _ = fleet.plants(100.0, 60.0)
    assert found.controls(FCFS, 100.0) == own
    assert found.controls(FCFS.window(32), 100.0).n_run == under_32


def test_a_share_of_the_guard_that_was_set_explicitly_has_no_factor():
    fleet = FleetModel(lambda _name: load_profile("demo-small"))
    fleet.observe(told(0.0, n_run=64, guard=0.0))
    assert fleet.plants(0.0, 60.0)[0][0].regulated == ((0.0, OPEN),)


def test_a_share_of_the_guard_that_the_gateway_sets_aside_is_not_replayed():
    tight = Candidate(policy="fcfs", parameters={"tpot_guard": 0.01})
    strict = replace(PLAIN, tpot_guard=0.5)
    strained = [replace(one, believed=replace(one.believed, slo=Slo(ttft_ms=2000.0, tpot_ms=25.0))) for one in blocked()]
    shares = [
        looked(one, window=strained, settings=strict, drops_share=drops).good
        for one, drops in ((FCFS, False), (tight, False), (tight, True))
    ]
    assert shares[0] == shares[2] != shares[1]


def test_an_instance_that_serves_another_model_is_measured_anew():
    fleet, now_s = served_fleet()
    for models, is_known in ((["m"], True), (["m", "n"], True), ([], True), (["o"], False)):
        fleet.observe(told(now_s, engine(now_s, 0, 30_000), models=models))
        assert bool(fleet.plants(now_s, 60.0)[0]) == is_known, models


def test_a_window_that_moved_binds_in_the_replay_when_it_did():
    given = tuple((at_s, Controls(n_run=n_run)) for at_s, n_run in ((0.0, 256), (1040.0, 4), (1080.0, 256)))
    moved = replace(plant(), regulated=given)
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
    assert [one.request.id for one in window] == [f"r{n}" for n in range(90, 100)]
    assert (window[0].output_tokens, window[0].good, window[0].served_tpot_ms > 0.0) == (500, True, True)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(*[st.floats(-5.0, 5.0)] * 4), min_size=4, max_size=8))
def test_least_squares_without_negatives_is_what_scipy_finds(rows):
    data = np.asarray(rows)
    system = data[:, :3].T @ data[:, :3] + 0.1 * np.eye(3)
    right = data[:, :3].T @ data[:, 3]
    factor = np.linalg.cholesky(system).T
    expected, _ = nnls(factor, np.linalg.solve(factor.T, right))
    assert least_squares(system, right) == pytest.approx(expected, abs=1e-6)


def serving(name: str, *models: str):
    return replace(plant(name), models=frozenset(models) or None)


def test_an_instance_is_replayed_with_the_models_that_it_serves():
    few = [asked(number, 1000.0 + number, 10) for number in range(40)]
    records = replay(world(few, plants=(serving("a", "m"), serving("b", "n"))), FCFS)[1]
    assert {record.instance for record in records} == {"a"}
    fleet = FleetModel(lambda _name: load_profile("demo-small"))
    for models, found in ((["m", "n"], frozenset({"m", "n"})), ([], None)):
        fleet.observe(told(0.0, models=models))
        assert fleet.plants(0.0, 60.0)[0][0].models == found


def test_instances_of_other_models_stand_for_no_other_and_what_nobody_serves_is_left_out():
    many = [asked(number, 1000.0 + number, 10) for number in range(400)]
    assert part_of([serving("a", "m"), serving("b", "m")], 400, 200).share == 0.5
    assert part_of([serving("a", "m"), serving("b", "n")], 400, 200).share == 1.0
    assert part_of([serving("a", "m"), replace(serving("b", "m"), held=True)], 400, 200).share == 1.0
    assert part_of([serving("a", "m"), serving("b", "n")], 400, 200).of(many) == many
    assert part_of([serving("a", "n"), serving("b")], 400, 200).of(many) == many
    assert part_of([serving("a", "n")], 400, 200).of(many) == []


@pytest.mark.parametrize(("forced", "n_run"), [(["knobs"], 12), (["knobs:a"], 12), (["knobs:b", "budget:a"], 64)])
def test_where_an_operator_holds_the_window_no_candidate_has_another(forced, n_run):
    fleet = FleetModel(lambda _name: load_profile("demo-small"))
    fleet.observe(replace(told(0.0), forced=forced))
    plants, _ = fleet.plants(0.0, 60.0)
    assert plants[0].controls(EDF.window(64), 0.0).n_run == n_run


def test_a_part_of_the_fleet_has_its_part_of_the_queue():
    settings = TwinSettings(admission=replace(PLAIN, queue_limit=1000), window_s=120.0, budget_s=0.5)
    twin = Twin(FleetModel(lambda _name: load_profile("demo-small")), settings)
    window = blocked(rate=40.0)
    for one in window:
        twin.traffic.keep(one)
    now_s = window[-1].request.arrival_s
    twin.observe(system_snapshot(*(instance_view(f"i{number}", n_run=32) for number in range(8)), sent_s=now_s))
    found = of_type(Question, twin.question((FCFS,), float("-inf"), now_s)).world
    assert 1 <= len(found.plants) < 8
    assert found.settings.queue_limit == 125 * len(found.plants)
