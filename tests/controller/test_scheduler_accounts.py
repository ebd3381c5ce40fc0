"""What the scheduler says about a request's end, about instances and about itself."""

import tracemalloc

import msgspec
import pytest
from typing_kit import known

from hmas.controller.core.messages import LengthBound
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo, TaskType
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import TenantLimits
from hmas.controller.scheduling.instances.room import BLOCK_TOKENS
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.controller.scheduling.queue.drain_rate import QueuedWork
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot


def request(number, *, at_s=100.0, prompt=100, **more):
    return Request(id=f"{number:03d}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt, **more)


def believed(ttft_slo_ms=1000.0, tpot_slo_ms=50.0, output=10.0, upper=50.0, total_scale=1.0):
    slo = Slo(ttft_ms=ttft_slo_ms, tpot_ms=tpot_slo_ms)
    return Estimates(slo=slo, output_tokens=output, output_tokens_upper=upper, ttft_ms=100.0 * total_scale, tpot_ms=20.0)


def build(*, n_run=4, policy="fcfs", kv=0, parameters=None, **more) -> Scheduler:
    specs = [InstanceSpec(name="i0", capacity_n_run=32, kv_capacity_tokens=kv, kv_bytes_per_token=2)]
    made = Scheduler(
        settings=SchedulerSettings(fence_margin=0.0, **more),
        instances=specs,
        router=make_router("least-loaded"),
        policy=policy,
        parameters=parameters,
    )
    made.set_controls("i0", Controls(n_run=n_run))
    return made


def test_the_story_of_a_completed_request():
    made = build(kv=1000)
    made.submit(request(0), believed(), 100.0)
    made.submit(request(1), believed(), 100.0)
    made.dispatch(100.5)
    for i in range(5):
        made.progress("001", i + 1, 100.8 + 0.04 * i)
    made.revise("001", believed(output=99.0), 100.9)
    ended = made.end("001", OutcomeKind.COMPLETED, 101.0)
    assert (ended.instance, ended.policy, ended.output_tokens, ended.running_at_dispatch) == ("i0", "fcfs", 5, 1)
    assert ended.queue_ms == pytest.approx(500.0)
    assert ended.ttft_ms == pytest.approx(800.0)
    assert ended.service_ttft_ms == pytest.approx(300.0)
    assert ended.tpot_ms == pytest.approx(40.0)
    assert ended.total_ms == pytest.approx(1000.0)
    assert ended.kv_usage_at_dispatch == pytest.approx(0.15)
    assert ended.predicted.output_tokens == 10.0
    assert ended.slo_met


@pytest.mark.parametrize(
    ("first_s", "every_s", "tokens", "kind", "met"),
    [
        (100.9, 0.04, 4, OutcomeKind.COMPLETED, True),
        (101.1, 0.04, 4, OutcomeKind.COMPLETED, False),
        (100.9, 0.06, 4, OutcomeKind.COMPLETED, False),
        (100.9, 0.0, 1, OutcomeKind.COMPLETED, True),
        (100.9, 0.04, 4, OutcomeKind.FAILED, False),
        (0.0, 0.0, 0, OutcomeKind.COMPLETED, False),
    ],
)
def test_both_targets_have_to_be_met(first_s, every_s, tokens, kind, met):
    made = build()
    made.submit(request(0), believed(), 100.0)
    made.dispatch(100.0)
    for i in range(tokens):
        made.progress("000", i + 1, first_s + i * every_s)
    ended = made.end("000", kind, 102.0)
    assert ended.slo_met is met
    assert (ended.tpot_ms == -1.0) is (tokens < 2)
    assert ended.ttft_ms == pytest.approx(1000.0 * ((first_s if tokens else 102.0) - 100.0)), "the end of a stream without text counts"


def test_the_engines_own_count_of_tokens_counts():
    made = build()
    made.submit(request(0), believed(), 100.0)
    made.dispatch(100.0)
    made.progress("000", 1, 100.1)
    made.progress("000", 3, 100.5)
    ended = made.end("000", OutcomeKind.COMPLETED, 100.6, output_tokens=5)
    assert (ended.output_tokens, ended.tpot_ms) == (5, pytest.approx(100.0))


def test_the_story_of_one_that_was_never_dispatched():
    made = build(overdue="shed")
    made.set_draining("i0", True)
    made.submit(request(0, deadline_s=101.0), believed(ttft_slo_ms=60_000.0), 100.0)
    made.submit(request(1), believed(), 100.0)
    dropped = made.expire(102.0)
    assert [(d.refusal.kind, d.refusal.code) for d in dropped] == [
        (OutcomeKind.TIMED_OUT, "deadline_exceeded"),
        (OutcomeKind.SHED, "slo_unattainable"),
    ]
    for one in dropped:
        assert one.ended.kind is one.refusal.kind
        assert (one.ended.queue_ms, one.ended.ttft_ms, one.ended.instance, one.ended.slo_met) == (-1.0, -1.0, "", False)
        assert one.ended.total_ms == pytest.approx(2000.0)
        assert 1.0 <= one.refusal.retry_after_s <= 60.0
    assert made.counts().ended[OutcomeKind.SHED] == 1


def test_snapshot_tells_queue_and_instances():
    made = build(n_run=2, kv=2000, policy="two-lane", parameters={"threshold_ms": 500.0})
    made.submit(request(0, at_s=100.0), believed(), 100.0)
    made.submit(request(1, at_s=100.0), believed(tpot_slo_ms=10.0), 100.0)
    made.dispatch(100.0)
    made.submit(request(2, at_s=100.5, prompt=300), believed(output=100.0), 100.5)
    made.submit(request(3, at_s=101.0), believed(ttft_slo_ms=60_000.0), 101.0)
    made.revise("003", msgspec.structs.replace(believed(ttft_slo_ms=60_000.0), task_type=TaskType.QA), 101.0)
    for number, every_s in ((0, 0.01), (1, 0.05)):
        for i in range(11):
            made.progress(f"{number:03d}", i + 1, 101.5 + i * every_s)
    snapshot = made.snapshot(102.0, "gate")
    assert (snapshot.queued, snapshot.queued_tokens, snapshot.queued_long, snapshot.overdue) == (2, 400, 1, 1)
    assert snapshot.oldest_wait_ms == pytest.approx(1500.0)
    assert (snapshot.arrived_total, snapshot.dispatched_total, snapshot.policy) == (4, 2, "two-lane")
    (view,) = snapshot.instances
    assert (view.in_flight, view.in_flight_tokens, view.n_run, view.capacity_n_run) == (2, 222, 2, 32)
    assert view.kv_committed == pytest.approx(0.15)
    assert view.tpot_pressure == pytest.approx(5.0, rel=0.01)
    made.check_conservation()
    for number in range(4):
        made.end(f"{number:03d}", OutcomeKind.CANCELLED, 102.0)
    empty = made.snapshot(102.0, "gate")
    assert (empty.queued, empty.queued_tokens, empty.queued_long, empty.overdue, empty.oldest_wait_ms) == (0, 0, 0, 0, 0.0)
    assert (empty.instances[0].in_flight_tokens, empty.instances[0].kv_committed, empty.instances[0].tpot_pressure) == (0, 0.0, 0.0)


def test_the_snapshot_tells_the_weights_that_are_in_force():
    made = build()
    made.set_weights({"gold": 8.0})
    made.set_weights({"silver": 2.0})
    made.set_weights({"silver": 1.0})
    assert made.snapshot(0.0, "g").tenant_weights == {"gold": 8.0}


def test_the_snapshot_tells_which_models_an_instance_serves_unless_they_are_too_many():
    made = build()
    for models, told in ((None, []), ({"n", "m"}, ["m", "n"]), ({f"{number:01000d}" for number in range(3)}, [])):
        made.set_models("i0", None if models is None else frozenset(models))
        assert made.snapshot(101.0, "gate").instances[0].models == told


def test_what_waits_for_its_own_tenants_limit_waits_for_no_instance():
    made = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name=name, capacity_n_run=8) for name in ("a", "b")],
        router=make_router("least-loaded"),
        policy="fcfs",
        tenants={"capped": TenantLimits(max_running=1)},
    )
    for name in ("a", "b"):
        made.set_models(name, frozenset({name}))

    def ask(number: int, model: str, tenant: str) -> dict[str, float]:
        made.submit(msgspec.structs.replace(request(number), model=model, tenant=tenant), believed(), 100.0)
        return {view.name: view.queued_for for view in made.snapshot(100.0, "gate").instances}

    ask(0, "a", "capped")
    made.dispatch(100.0)
    assert ask(1, "b", "capped") == {"a": 0.0, "b": 0.0}
    assert made.dispatch(105.0) == []
    assert ask(2, "b", "free") == {"a": 0.0, "b": 2.0}
    made.end("000", OutcomeKind.COMPLETED, 106.0)
    assert len(made.dispatch(106.0)) == 2


@pytest.mark.parametrize(
    ("serves", "gone", "shares"),
    [
        ({"a": "m", "b": "m"}, "", {"a": 2.0, "b": 2.0}),
        ({"a": "m", "b": "other"}, "", {"a": 4.0, "b": 0.0}),
        ({"a": "m", "b": "m", "c": "other"}, "b", {"a": 4.0, "b": 0.0, "c": 0.0}),
        ({"a": "m", "b": "other"}, "a", {"a": 4.0, "b": 0.0}),  # what waits for engines that take nothing still waits for them
    ],
)
def test_the_snapshot_shares_a_queue_among_the_instances_that_may_take_it(serves, gone, shares):
    made = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name=name, capacity_n_run=8) for name in serves],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    for name, model in serves.items():
        made.set_models(name, frozenset({model}))
    if gone:
        made.set_draining(gone, True)
    for number in range(4):
        made.submit(request(number), believed(), 100.0)
    assert {view.name: view.queued_for for view in made.snapshot(100.0, "gate").instances} == shares


def test_a_stream_that_stands_still_presses_more_and_more():
    made = build()
    made.submit(request(0), believed(tpot_slo_ms=50.0), 100.0)
    made.dispatch(100.0)
    for i in range(10):
        made.progress("000", i + 1, 100.1 + i * 0.02)
    calm, stuck = made.snapshot(100.3, "g").instances[0], made.snapshot(105.0, "g").instances[0]
    assert calm.tpot_pressure == pytest.approx(0.4, rel=0.05)
    assert stuck.tpot_pressure > 5.0


def test_ceilings_and_kv_size_come_from_the_engine_where_it_states_them():
    made = Scheduler(
        settings=SchedulerSettings(fence_margin=0.5),
        instances=[InstanceSpec(name="i0", capacity_n_run=256)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    made.observe(
        EngineSnapshot(engine="i0", taken_s=0.0, healthy=True, max_num_seqs=48, max_num_batched_tokens=2048, kv_capacity_tokens=1000)
    )
    view = made.snapshot(0.0, "g").instances[0]
    assert (view.n_run, view.capacity_n_run, view.max_token_budget) == (48, 48, 2048)
    # A knob turned down is no new ceiling.
    made.observe(EngineSnapshot(engine="i0", taken_s=1.0, healthy=True, max_num_seqs=8, max_num_batched_tokens=512))
    view = made.snapshot(1.0, "g").instances[0]
    assert (view.capacity_n_run, view.max_token_budget) == (48, 2048)
    made.set_controls("i0", Controls(n_run=5))
    made.observe(EngineSnapshot(engine="i0", taken_s=2.0, healthy=True, max_num_seqs=8, max_num_seqs_ceiling=64))
    view = made.snapshot(2.0, "g").instances[0]
    assert (view.n_run, view.capacity_n_run) == (5, 64)
    answer = made.submit(request(0, prompt=1000), believed(), 2.0)
    assert isinstance(answer, Refusal)
    assert answer.code == "context_length_exceeded"


def test_new_bounds_are_booked_for_those_in_flight_too():
    made = build(kv=1000)
    made.submit(request(0), believed(output=10.0, upper=900.0), 100.0)
    made.submit(request(1), believed(output=10.0, upper=100.0), 100.0)
    assert len(made.dispatch(100.0)) == 1
    made.set_length_bounds([LengthBound(prompt_tokens_below=0, add_tokens=40.0, samples=9)])
    assert len(made.dispatch(100.0)) == 1
    assert made.snapshot(100.0, "g").instances[0].kv_committed == pytest.approx(0.3)
    # One that outgrows its bound is booked for what it holds.
    made.progress("000", 300, 101.0)
    assert made.snapshot(101.0, "g").instances[0].kv_committed == pytest.approx(0.55)


def test_an_answer_that_does_not_stream_is_not_counted_twice():
    made = build(kv=10_000)
    made.submit(request(0, stream=False), believed(upper=2_000.0), 100.0)
    made.dispatch(100.0)
    for taken_s, used in ((100.5, 1_100), (100.75, 1_150), (101.0, 2_100)):
        made.observe(EngineSnapshot(engine="i0", taken_s=taken_s, healthy=True, kv_usage=used / 10_000, kv_capacity_tokens=10_000))
        assert made.instances["i0"].fence.committed_bytes == 2 * 2_100
    # What goes beyond its booking is more than was booked.
    made.observe(EngineSnapshot(engine="i0", taken_s=101.25, healthy=True, kv_usage=0.25, kv_capacity_tokens=10_000))
    assert made.instances["i0"].fence.committed_bytes == 2 * (2_500 - BLOCK_TOKENS)


def test_tokens_that_requests_share_are_counted_once_when_two_reports_show_it():
    made = build(kv=2000, fence_overcommit=False)
    for number in range(3):
        made.submit(request(number, prompt=800), believed(), 100.0)
    assert len(made.dispatch(100.0)) == 2
    for number in range(2):
        made.progress(f"{number:03d}", 1, 100.1)
    for taken_s, more in ((100.25, 0), (100.5, 1)):
        made.observe(EngineSnapshot(engine="i0", taken_s=taken_s, healthy=True, kv_usage=0.45, kv_capacity_tokens=2000))
        assert len(made.dispatch(taken_s)) == more


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_position_counts_down_to_the_dispatch(policy):
    made = build(n_run=1, policy=policy)
    for number in range(6):
        made.submit(request(number), believed(), 100.0)
    assert sorted(known(made.position(f"{number:03d}")) for number in range(6)) == list(range(6))
    for _ in range(6):
        first = next(i for i in made.queued_ids() if made.position(i) == 0)
        (sent,) = made.dispatch(100.0)
        assert sent.entry.request.id == first
        assert made.position(first) is None
        made.end(first, OutcomeKind.COMPLETED, 100.0, 1)


def test_retry_after_is_the_queue_over_its_recent_pace():
    made = build(n_run=100)
    assert made.retry_after_s("m", 100.0) == 1.0
    made.set_draining("i0", True)
    for number in range(100):
        made.submit(request(number), believed(ttft_slo_ms=1e9), 100.0)
    assert made.retry_after_s("m", 100.0) == 60.0
    made.set_draining("i0", False)
    for step in range(40):
        made.set_controls("i0", Controls(n_run=step + 1))
        assert len(made.dispatch(100.0 + step * 0.5)) == 1
    # 60 left, two a second.
    assert made.retry_after_s("m", 119.5) == pytest.approx(30.0, rel=0.1)
    assert made.retry_after_s("m", 400.0) == 60.0


def test_the_drain_rate_keeps_a_bounded_past():
    work = QueuedWork()
    work.ready_us = 1
    tracemalloc.start()
    held = []
    for second in range(10_000):
        work.left_us = second
        work.sample(float(second))
        if second in (1000, 9999):
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert work.per_second(9999.5) == pytest.approx(1.0, rel=0.1)
    assert work.per_second(20_000.0) == 0.0
    assert held[1] - held[0] < 10_000


def test_the_snapshot_says_whether_a_router_goes_by_times_without_load():
    made = build()
    made.set_router("m", make_router("workload-balanced"))
    assert not made.snapshot(100.0, "g").wants_times_alone, "there is no choice"
    made.add_instance(InstanceSpec(name="i1", capacity_n_run=4), 100.0)
    assert made.snapshot(100.0, "g").wants_times_alone
    made.set_router("m", make_router("workload-balanced:alone=0:backlog=0:queue=1"))
    assert not made.snapshot(100.0, "g").wants_times_alone
    made.set_router("*", make_router("default:completion=0.1"))
    assert made.snapshot(100.0, "g").wants_times_alone
