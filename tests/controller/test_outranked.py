"""A full queue: who makes way for whom, what it costs, and what those that go are told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import TenantLimits
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.backlog import Backlog, rank_of
from hmas.controller.scheduling.queue.drain_rate import QueuedWork
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings


def request(number, *, priority=0, at_s=0.0, tenant="a"):
    return Request(id=f"{number:06d}", tenant=tenant, model="m", arrival_s=at_s, prompt_tokens=100, priority=priority)


def believed(importance=0.75, ttft_ms=600_000.0, output=100.0):
    return Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=100), importance=importance, output_tokens=output, ttft_ms=0.0, tpot_ms=10.0)


def build(limit=4, *, tenants=None, policy="fcfs", **more):
    made = Scheduler(
        settings=SchedulerSettings(queue_limit=limit, **more),
        instances=[InstanceSpec(name="i0", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy=policy,
        tenants=tenants,
    )
    made.set_controls("i0", Controls(n_run=1))
    made.submit(request(999_999), believed(), 0.0)
    made.dispatch(0.0)
    return made


def test_an_equal_does_not_take_the_place_of_one_that_waits_in_time():
    made = build()
    for number in range(4):
        made.submit(request(number), believed(), 0.0)
    refusal = made.submit(request(4), believed(), 0.0)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (429, "queue_full")
    assert made.outranked() == []


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ((request(1, priority=1), believed()), (request(9), believed())),
        ((request(1), believed(importance=0.5)), (request(9), believed(importance=0.9))),
        ((request(1), believed(ttft_ms=50.0)), (request(9), believed())),
        # The client's priority comes before importance, importance before hope.
        ((request(1, priority=1), believed(importance=1.0)), (request(9), believed(importance=0.5))),
        ((request(1), believed(importance=0.5)), (request(9), believed(importance=0.9, ttft_ms=50.0))),
    ],
    ids=["priority", "importance", "overdue", "priority-first", "importance-before-hope"],
)
def test_one_that_ranks_better_takes_the_place_of_the_worst(worse, better):
    made = build()
    for number in (0, 2, 3):
        made.submit(request(number, priority=-1), believed(importance=0.9), 0.0)
    made.submit(*worse, 0.0)
    made.dispatch(1.0)
    assert not isinstance(made.submit(*better, 1.0), Refusal)
    (dropped,) = made.outranked()
    assert (dropped.entry.request.id, dropped.ended.kind) == ("000001", OutcomeKind.SHED)
    assert (dropped.refusal.status, dropped.refusal.code) == (429, "outranked")
    assert 1.0 <= dropped.refusal.retry_after_s <= 60.0
    assert "dropped after 1.0 s in the queue: it is full" in dropped.refusal.message
    assert made.outranked() == made.drop_due(1.0) == []
    made.check_conservation()
    # Worse ones and equals of the worst are refused now.
    assert isinstance(made.submit(request(10, priority=5), believed(), 1.0), Refusal)


def test_it_can_be_switched_off():
    made = build(limit=1, evict_lower_ranked=False)
    made.submit(request(1, priority=9), believed(), 0.0)
    assert isinstance(made.submit(request(2), believed(), 0.0), Refusal)


def test_of_equals_the_newest_goes_and_gets_its_tokens_back():
    made = build(limit=3, tenants={"a": TenantLimits(tokens_per_minute=6000)})
    for number in range(3):
        made.submit(request(number, priority=5), believed(), 0.0)
    left = made.rates("a", 0.0)["tokens"].remaining
    made.submit(request(9, tenant="b"), believed(), 0.0)
    (dropped,) = made.outranked()
    assert dropped.entry.request.id == "000002"
    assert made.rates("a", 0.0)["tokens"].remaining == left + 200


def test_what_is_not_asked_for_is_told_with_the_next_tick():
    made = build(limit=1)
    made.submit(request(1, priority=5), believed(), 0.0)
    made.submit(request(2), believed(), 0.0)
    assert [one.entry.request.id for one in made.expire(0.1)] == ["000001"]


def test_late_requests_of_a_tenant_at_its_limit_are_shed_too():
    made = build(limit=100, tenants={"a": TenantLimits(max_running=1)}, overdue="shed")
    for number in range(20):
        made.submit(request(number), believed(ttft_ms=50.0), 0.0)
    assert len(made.expire(1.0)) == 20
    made.check_conservation()


ranked = st.tuples(st.integers(-3, 3), st.floats(0.5, 1.0), st.booleans(), st.floats(0, 5000))
steps = st.lists(st.tuples(st.integers(0, 15), st.sampled_from(["put", "put", "discard"]), ranked), max_size=80)


@given(steps)
def test_the_backlog_is_what_a_list_would_say(script):
    backlog, work = Backlog(), QueuedWork()
    plain: dict[str, tuple] = {}
    order = left_us = 0
    for number, what, (priority, importance, overdue, output) in script:
        name = f"{number:06d}"
        if what == "put":
            order += 1
            asked = request(number, priority=priority)
            if name in plain:
                asked = plain[name][3].request
            entry = QueueEntry(request=asked, estimates=believed(importance, output=output), seq=number)
            late = overdue or (name in plain and plain[name][0][2])
            if name in plain and late and not plain[name][0][2]:
                left_us += plain[name][2]
            work_us = max(1, int(1000.0 * entry.estimates.total_ms))
            plain[name] = (rank_of(asked, importance, overdue=late), order, work_us, entry)
            backlog.put(entry, work, overdue=late)
        else:
            gone = plain.pop(name, None)
            if gone is not None and not gone[0][2]:
                left_us += gone[2]
            backlog.discard(name)
        assert len(backlog) == len(plain)
        assert work.ready_us == sum(one[2] for one in plain.values() if not one[0][2])
        assert work.left_us == left_us
        worst = max(plain.values(), key=lambda one: one[:2], default=None)
        assert backlog.worst() == (None if worst is None else (worst[0], worst[3].request.id))


@settings(max_examples=40)
@given(
    script=st.lists(
        st.tuples(
            st.integers(-2, 2), st.sampled_from([0.5, 0.75, 1.0]), st.floats(20, 3000), st.sampled_from(["come", "come", "end", "tick"])
        ),
        max_size=80,
    ),
    policy=st.sampled_from(["fcfs", "edf", "wfq"]),
    overdue=st.sampled_from(["keep", "demote", "shed"]),
)
def test_nobody_is_lost_and_nobody_gives_way_to_a_worse_one(script, policy, overdue):
    made = build(limit=5, policy=policy, overdue=overdue)
    entries: dict[str, QueueEntry] = {}
    now_s = 0.0
    for number, (priority, importance, ttft_ms, what) in enumerate(script):
        now_s += 0.05
        if what == "come":
            asked, estimates = request(number, priority=priority, at_s=now_s), believed(importance, ttft_ms)
            waiting = {request_id: entries[request_id] for request_id in made.queued_ids()}
            answer = made.submit(asked, estimates, now_s)
            if not isinstance(answer, Refusal):
                entries[asked.id] = answer
            for dropped in made.outranked():
                assert dropped.entry.request.id in waiting
                loser = dropped.entry
                assert rank_of(asked, importance, overdue=False) < rank_of(loser.request, loser.estimates.importance, overdue=True)
            if isinstance(answer, Refusal):
                assert all(
                    rank_of(one.request, one.estimates.importance, overdue=False) <= rank_of(asked, importance, overdue=False)
                    for one in waiting.values()
                )
        elif what == "end" and made.running_ids():
            made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s, 1)
            made.dispatch(now_s)
        else:
            made.expire(now_s)
        assert made.counts().queued <= 5
        made.check_conservation()


def test_the_pace_is_that_of_the_last_half_minute():
    work = QueuedWork()
    assert work.per_second(0.0) == 0.0
    work.ready_us = 1
    for step in range(1000):
        now_s = step / 10
        work.left_us += 50 if now_s < 60 else 5
        work.sample(now_s)
    assert work.per_second(99.9) == pytest.approx(50.0, rel=0.05)
    assert work.per_second(200.0) == 0.0


def test_a_refused_client_is_told_the_work_ahead_over_the_pace():
    made = build(limit=40, overdue="keep")
    for number in range(40):
        made.submit(request(number), believed(output=100.0 if number % 2 else 300.0), 0.0)
    made.expire(0.0)
    for step in range(1, 11):
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, step * 1.0, 1)
        made.dispatch(step * 1.0)
        made.expire(step * 1.0)
    # Work of 20 s has left in 10 s; 30 requests wait, half of them of 1 s and half of 3 s.
    assert made.retry_after_s("m", 10.0) == pytest.approx(60.0 / 2.0, rel=0.01)


def test_overdue_ones_that_keep_their_place_are_waited_for():
    for overdue, told_s in (("keep", 60.0), ("demote", 1.0)):
        made = build(limit=40, overdue=overdue)
        for number in range(10):
            made.submit(request(number), believed(ttft_ms=50.0), 0.0)
        made.expire(5.0)
        assert made.retry_after_s("m", 5.0) == told_s
