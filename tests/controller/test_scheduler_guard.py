"""The TPOT guard."""

import pytest
from typing_kit import known

from hmas.controller.core.errors import PolicyError, SchedulingError
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.tpot_guard import TpotGuard
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings


def build(share=0.5, instances=1, overdue="keep", **more) -> Scheduler:
    specs = [InstanceSpec(name=f"i{i}", capacity_n_run=64) for i in range(instances)]
    return Scheduler(
        settings=SchedulerSettings(tpot_guard=share, overdue=overdue, **more),
        instances=specs,
        router=make_router("least-loaded"),
        policy="fcfs",
    )


def submit(made, number, *, prompt=1000, output=50.0, tpot_slo_ms=40.0, ttft_ms=200.0, at_s=0.0, ttft_slo_ms=1e6, **more):
    request = Request(id=f"{number:03d}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt, **more)
    slo = Slo(ttft_ms=ttft_slo_ms, tpot_ms=tpot_slo_ms)
    made.submit(request, Estimates(slo=slo, output_tokens=output, ttft_ms=ttft_ms, tpot_ms=20.0), at_s)


def decode(made, number, *, from_s, tokens, every_s=0.02, start=1):
    for i in range(tokens):
        now_s = from_s + i * every_s
        made.progress(f"{number:03d}", start + i, now_s)
        if i % 10 == 9:
            made.expire(now_s)


def ids(sent):
    return [one.entry.request.id for one in sent]


def test_a_prompt_waits_while_its_prefill_would_cost_someone_the_target():
    made = build()
    submit(made, 0)
    assert ids(made.dispatch(0.0)) == ["000"]
    # First token after 200 ms for 1000 tokens: 0.2 ms a token is what the instance has shown.
    decode(made, 0, from_s=0.2, tokens=1)
    submit(made, 1, prompt=4000)
    # Room at the start: 40 * 49 - 49 * 20 = 980 ms; half of it is less than the 800 ms of the new prompt.
    assert made.dispatch(0.2) == []
    submit(made, 2, prompt=2000)
    assert ids(made.dispatch(0.2)) == ["002"]


def test_several_answers_have_the_room_of_one():
    made = build()
    submit(made, 0, output=100.0, sequences=2)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=2, every_s=0.0)
    submit(made, 1, prompt=4000)
    # As for one answer of 50 tokens: half of 980 ms is less than 800.
    assert made.dispatch(0.2) == []
    submit(made, 2, prompt=2000)
    assert ids(made.dispatch(0.2)) == ["002"]


def test_room_grows_with_every_token_that_comes_faster_than_the_target():
    made = build()
    submit(made, 0, output=200.0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=100, every_s=0.005)
    submit(made, 1, prompt=10_000)
    # 100 tokens at 5 ms instead of 40: over 3 s have been saved up, 2 s are needed of half of all that is left.
    assert ids(made.dispatch(0.7)) == ["001"]


def test_off_means_off_and_can_be_switched():
    made = build(0.0)
    submit(made, 0)
    submit(made, 1, prompt=100_000)
    assert len(made.dispatch(0.0)) == 2
    made = build(0.5)
    submit(made, 0)
    submit(made, 1, prompt=100_000, ttft_ms=20_000.0)
    assert len(made.dispatch(0.0)) == 1
    assert made.snapshot(0.0, "g").instances[0].guard_enabled
    made.set_tpot_guard(0.0)
    assert len(made.dispatch(0.0)) == 1
    assert not made.snapshot(0.0, "g").instances[0].guard_enabled
    made.set_policy("fcfs", 0.0, {"tpot_guard": 0.2})
    assert made.snapshot(0.0, "g").instances[0].guard_enabled, "by whoever names a share"
    with pytest.raises(SchedulingError, match="tpot_guard"):
        made.set_tpot_guard(1.5)


def test_an_idle_instance_takes_every_request():
    made = build()
    submit(made, 0, prompt=1_000_000, ttft_ms=1e6, tpot_slo_ms=0.001)
    assert ids(made.dispatch(0.0)) == ["000"]


def test_who_has_lost_his_target_is_not_protected():
    made = build()
    submit(made, 0, tpot_slo_ms=5.0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=20, every_s=0.05)
    submit(made, 1, prompt=50_000, tpot_slo_ms=100.0)
    assert ids(made.dispatch(1.2)) == ["001"]


def test_an_answer_that_is_not_streamed_has_no_tpot_to_protect():
    made = build()
    submit(made, 0, stream=False, tpot_slo_ms=1.0)
    made.dispatch(0.0)
    submit(made, 1, prompt=50_000)
    assert ids(made.dispatch(0.1)) == ["001"]


def test_a_request_waits_for_a_pace_that_keeps_its_own_target_unless_there_is_none():
    made = build(instances=1)
    submit(made, 0, tpot_slo_ms=1000.0, output=500.0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=80, every_s=0.01)
    decode(made, 0, from_s=1.1, tokens=80, every_s=0.05, start=81)
    submit(made, 1, prompt=10, tpot_slo_ms=30.0)
    # It decodes at about 45 ms now and has shown 10 ms: this target can be met later.
    assert made.dispatch(5.2) == []
    submit(made, 2, prompt=10, tpot_slo_ms=5.0)
    # This one can never be met: no reason to wait.
    assert ids(made.dispatch(5.2)) == ["002"]


@pytest.mark.parametrize(("rise_ms", "joins"), [(0.05, True), (1.2, False)])
def test_a_target_just_above_the_pace_suffices_where_sequences_cost_little(rise_ms, joins):
    made = build()
    (one,) = made.instances.values()
    for number in range(400):
        one.pace.decoded(30.0 + rise_ms * (number % 40 - 20), 1.0 + number % 40, 8.0)
    for number in range(20):
        submit(made, number, prompt=10, tpot_slo_ms=1000.0, output=500.0)
    assert len(made.dispatch(0.0)) == 20
    submit(made, 20, prompt=10, tpot_slo_ms=31.0)
    assert ids(made.dispatch(0.1)) == ["020"] * joins


def test_it_does_not_wait_for_a_pace_that_only_chance_brings():
    made = build()
    (one,) = made.instances.values()
    for number in range(400):
        one.pace.decoded(8.0 if number % 10 == 0 else 30.0, 1.0 + number % 3, 4.0)
    submit(made, 0, tpot_slo_ms=15.0)
    assert ids(made.dispatch(0.0)) == ["000"]
    decode(made, 0, from_s=0.03, tokens=1)
    submit(made, 1, prompt=10, tpot_slo_ms=15.0)
    assert ids(made.dispatch(0.05)) == ["001"], "with one in flight or with none it takes 28 ms a token"
    request = Request(id="next", tenant="t", model="m", arrival_s=0.05, prompt_tokens=10)
    other = QueueEntry(request=request, estimates=Estimates(slo=Slo(ttft_ms=1e6, tpot_ms=50.0)), seq=9)
    assert TpotGuard(0.5).suits_all(other, one), "nor does a full fence protect what is lost in any case"


def test_it_gives_way_after_three_seconds_to_those_in_time():
    made = build()
    submit(made, 0, output=1e6, tpot_slo_ms=21.0)
    made.dispatch(0.0)
    made.progress("000", 1, 0.2)
    submit(made, 1, prompt=10**9, ttft_ms=1e9)
    submit(made, 2, prompt=10**9, ttft_ms=1e9)
    went_s = [0.2 + tick * 0.1 for tick in range(80) for _ in made.dispatch(0.2 + tick * 0.1)]
    assert went_s == pytest.approx([3.3, 6.4], abs=0.2)


def decodes_slower(made):
    """An instance that decodes at about 50 ms a token until 5.1 s; it has shown 10 ms."""
    submit(made, 0, tpot_slo_ms=1000.0, output=500.0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=80, every_s=0.01)
    decode(made, 0, from_s=1.1, tokens=80, every_s=0.05, start=81)


def with_room_for_one(made):
    """An instance with room for 980 ms of prefill, half of which one prompt may take; 4,000 tokens take 800 ms."""
    submit(made, 0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=1)


@pytest.mark.parametrize("overdue", ["demote", "shed"])
def test_at_its_last_moment_a_request_joins_where_it_costs_nobody_a_target(overdue):
    made = build(overdue=overdue)
    with_room_for_one(made)
    submit(made, 1, prompt=4000, ttft_slo_ms=200.0, at_s=0.2)
    assert made.dispatch(0.2) == []
    # It takes more than its share; but now the other choice is to be late for certain.
    assert ids(made.dispatch(0.35)) == ["001"]


@pytest.mark.parametrize(("tpot_slo_ms", "joins"), [(30.0, False), (50.0, True)])
def test_at_its_last_moment_too_it_waits_where_it_has_no_chance_to_keep_its_target(tpot_slo_ms, joins):
    made = build()
    decodes_slower(made)
    submit(made, 1, prompt=10, tpot_slo_ms=tpot_slo_ms, ttft_slo_ms=1000.0, at_s=5.2)
    assert made.dispatch(5.2) == []
    # The pace is 52 ms. Some requests get less than that, and the one in flight keeps its target beside this one.
    assert ids(made.dispatch(6.15)) == ["001"] * joins


@pytest.mark.parametrize(("ratios", "spare", "joins"), [((1.0,), 9.0, False), ((0.7, 1.0), 9.0, True), ((0.7, 1.0), 1.0005, False)])
def test_at_its_last_moment_it_joins_where_it_rather_keeps_its_target_than_costs_another_one(ratios, spare, joins):
    made = build()
    decodes_slower(made)
    instance = made.instances["i0"]
    for _ in range(32):
        for ratio in ratios:
            instance.pace.foresight.ratios.add(ratio)
    # At 6.15 s the other has so many times what its last 340 of 500 tokens take. A prompt of 200 ms leaves it half of its chance, or all.
    instance.running["000"].tpot_slo_ms = (spare * 340 * known(instance.token_ms) + 5950.0) / 499
    submit(made, 1, prompt=1000, tpot_slo_ms=40.0, ttft_slo_ms=1000.0, at_s=5.2)
    assert ids(made.dispatch(6.15)) == ["001"] * joins


@pytest.mark.parametrize(("tpot_slo_ms", "joins"), [(30.0, False), (100.0, True)])
def test_an_overdue_request_joins_only_at_a_pace_that_suits_its_target(tpot_slo_ms, joins):
    made = build(overdue="demote")
    decodes_slower(made)
    submit(made, 1, prompt=10, tpot_slo_ms=tpot_slo_ms, ttft_slo_ms=100.0, at_s=5.2)
    # It is overdue from 5.3 s on, and the one in flight would keep its target beside it.
    assert ids(made.dispatch(6.0)) == ["001"] * joins


def test_a_target_of_less_than_a_tick_is_always_at_its_last_moment():
    made = build()
    with_room_for_one(made)
    submit(made, 1, prompt=4000, ttft_slo_ms=90.0, at_s=0.2)
    assert ids(made.dispatch(0.2)) == ["001"]


def test_at_its_last_moment_too_it_waits_where_it_would_cost_another_the_target():
    made = build()
    submit(made, 0, output=60.0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=1)
    submit(made, 1, prompt=10_000, ttft_slo_ms=1000.0, at_s=0.2)
    assert made.dispatch(1.15) == []


def test_a_denial_long_past_makes_nobody_give_way():
    made = build()
    submit(made, 0, output=1e6, tpot_slo_ms=21.0)
    made.dispatch(0.0)
    made.progress("000", 1, 0.2)
    submit(made, 1, prompt=10**9, ttft_ms=1e9)
    assert made.dispatch(0.3) == []
    made.end("001", OutcomeKind.CANCELLED, 0.4)
    submit(made, 2, prompt=10**9, ttft_ms=1e9)
    went_s = [60.0 + tick * 0.1 for tick in range(80) for _ in made.dispatch(60.0 + tick * 0.1)]
    assert went_s == pytest.approx([63.1], abs=0.2)


def test_a_prefill_that_is_done_is_not_waited_for():
    made = build()
    submit(made, 0, prompt=10, output=100.0, tpot_slo_ms=1000.0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.1, tokens=1)
    submit(made, 1, prompt=500, output=1000.0, tpot_slo_ms=1000.0)
    submit(made, 2, prompt=500, output=1000.0, tpot_slo_ms=1000.0)
    assert ids(made.dispatch(0.2)) == ["001", "002"]
    # By what the instance has shown, 1000 tokens take 10 s. The first tokens come early: nothing is pending any more.
    submit(made, 3, prompt=4600, output=1000.0, tpot_slo_ms=1000.0)
    assert made.dispatch(0.3) == []
    decode(made, 1, from_s=0.4, tokens=1)
    assert made.dispatch(0.4) == []
    decode(made, 2, from_s=0.4, tokens=1)
    assert ids(made.dispatch(0.4)) == ["003"]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_flooded_instance_does_not_pass_for_a_slow_one(quiet):
    """It works at 100 ms a token. Where a prompt is always being read, nobody knows what it could do: who needs 40 ms waits for that."""
    made = build()
    submit(made, 0, prompt=100, tpot_slo_ms=1000.0)
    made.dispatch(0.0)
    if not quiet:
        submit(made, 1, prompt=100, tpot_slo_ms=1000.0)
        assert ids(made.dispatch(0.0)) == ["001"]
    decode(made, 0, from_s=0.1, tokens=40, every_s=0.1)
    submit(made, 2, prompt=10, tpot_slo_ms=40.0)
    assert ids(made.dispatch(4.1)) == (["002"] if quiet else [])
    # Nor for ever: the guard gives way.
    later = [name for tick in range(32) for name in ids(made.dispatch(4.1 + 0.1 * tick))]
    assert later == ([] if quiet else ["002"])


def test_a_prefill_beside_another_teaches_nothing():
    made = build(0.0)
    submit(made, 0)
    submit(made, 1)
    made.dispatch(0.0)
    decode(made, 0, from_s=9.0, tokens=1)
    decode(made, 1, from_s=9.0, tokens=1)
    assert made.instances["i0"].pace.prefill_ms(1000, 55.0) == 55.0


def test_the_share_is_a_hint_of_any_policy_and_goes_before_what_is_configured():
    made = build(0.5)
    assert made.tpot_guard == 0.5
    assert made.set_policy("edf", 0.0, {"tpot_guard": 0.2})
    assert (made.tpot_guard, made.parameters["tpot_guard"]) == (0.2, 0.2)
    assert not made.set_policy("edf", 0.0, {"tpot_guard": 0.2})
    made.set_tpot_guard(0.7)
    assert made.tpot_guard == 0.2
    assert made.set_policy("edf", 0.0)
    assert (made.tpot_guard, "tpot_guard" in made.parameters) == (0.7, False)
    assert made.set_policy("two-lane", 0.0, {"tpot_guard": 0.1, "threshold_ms": 900.0})
    assert (made.tpot_guard, made.parameters["threshold_ms"]) == (0.1, 900.0)
    with pytest.raises(PolicyError, match=r"'tpot_guard' of policy 'edf' is 1\.5; allowed: a number from 0 to 1"):
        made.set_policy("edf", 0.0, {"tpot_guard": 1.5})
    assert (made.policy, made.tpot_guard) == ("two-lane", 0.1)


def test_an_instance_has_a_factor_of_its_own_on_the_share():
    made = build(instances=2)
    made.set_controls("i0", Controls(n_run=64, guard=0.2))
    for number in range(2):
        submit(made, number)
    assert len(made.dispatch(0.0)) == 2
    for number in range(2):
        decode(made, number, from_s=0.2, tokens=1)
    # A room of 980 ms, half of which is more than the 400 ms of these prompts; a tenth is not.
    submit(made, 2, prompt=2000)
    submit(made, 3, prompt=2000)
    assert [(one.entry.request.id, one.instance) for one in made.dispatch(0.2)] == [("002", "i1")]
    assert [view.guard for view in made.snapshot(0.2, "g").instances] == [0.2, 1.0]
    # Whoever names the share means it: no factor goes on it.
    made.set_policy("fcfs", 0.2, {"tpot_guard": 0.5})
    assert [(one.entry.request.id, one.instance) for one in made.dispatch(0.2)] == [("003", "i0")]
    assert [view.guard for view in made.snapshot(0.2, "g").instances] == [0.0, 0.0]
    made.set_policy("fcfs", 0.2)
    assert [view.guard for view in made.snapshot(0.2, "g").instances] == [0.2, 1.0]
    for guard in (0.0, 1.5):
        with pytest.raises(SchedulingError, match=r"guard of instance 'i0' is .*; allowed: above 0 to 1"):
            made.set_controls("i0", Controls(n_run=64, guard=guard))


def test_a_hint_of_the_share_holds_from_the_start():
    made = Scheduler(
        settings=SchedulerSettings(tpot_guard=0.5),
        instances=[InstanceSpec(name="i0", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="edf",
        parameters={"tpot_guard": 0.1},
    )
    assert made.tpot_guard == 0.1


def test_nobody_is_condemned_by_a_prediction_slower_than_what_was_shown():
    made = Scheduler(
        settings=SchedulerSettings(overdue="shed", late_service_share=1.0),
        instances=[InstanceSpec(name="i0", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    made.set_controls("i0", Controls(n_run=1))
    submit(made, 0, ttft_slo_ms=5000.0)
    made.dispatch(0.0)
    decode(made, 0, from_s=0.2, tokens=1)
    submit(made, 1, ttft_slo_ms=1000.0, ttft_ms=3000.0)
    assert made.expire(0.75) == []
    assert [d.entry.request.id for d in made.expire(0.85)] == ["001"]


def test_a_flood_takes_little_of_the_room_of_others_and_is_not_protected_from_them():
    instance = Instance(InstanceSpec(name="i0", capacity_n_run=64), fenced=False, margin=0.0)
    guard = TpotGuard(1.0)

    def entry(tenant, prompt):
        request = Request(id=f"{tenant}{prompt}", tenant=tenant, model="m", arrival_s=0.0, prompt_tokens=prompt, stream=True)
        estimates = Estimates(slo=Slo(ttft_ms=1e6, tpot_ms=40.0), output_tokens=50.0, ttft_ms=0.2 * prompt, tpot_ms=20.0)
        return QueueEntry(request=request, estimates=estimates, seq=prompt)

    def admits(prompt, tenant, flooding):
        return guard.admits(entry(tenant, prompt), instance, 0.0, late=False, flooding=flooding)

    # The room of this request is (40 - 20) * 49 = 980 ms, and a token of a prompt takes 0.2 ms.
    instance.start(entry("t", 1000), 1050, "fcfs", 0.0)
    assert admits(4000, "other", frozenset())
    assert not admits(6000, "other", frozenset())
    assert not admits(4000, "other", {"other"})
    assert not admits(760, "other", {"other"})
    assert admits(720, "other", {"other"})
    # A second request of that tenant changes the state; now it is the one that floods.
    instance.start(entry("t", 1001), 1051, "fcfs", 0.0)
    assert admits(6000, "other", {"t"})
