"""Quotas: what is let in, what is charged, when to come back; and shares of the windows."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import TenantLimits
from hmas.controller.scheduling.admission.token_bucket import TokenBucket
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

TENANTS: dict[str, str] = {}
"""The tenant of each request by its id."""


def request(number, tenant="a", *, prompt=100, at_s=0.0, cap=None, deadline_s=float("inf"), stream=True):
    TENANTS[f"{number:06d}"] = tenant
    return Request(
        id=f"{number:06d}",
        tenant=tenant,
        model="m",
        arrival_s=at_s,
        prompt_tokens=prompt,
        max_output_tokens=cap,
        deadline_s=deadline_s,
        stream=stream,
    )


def believed(output=100.0):
    return Estimates(slo=Slo(ttft_ms=600_000, tpot_ms=100), output_tokens=output, output_tokens_upper=output)


def build(tenants=None, *, n_run=4, policy="fcfs", instances=1, **more) -> Scheduler:
    specs = [InstanceSpec(name=f"i{number}", capacity_n_run=1000) for number in range(instances)]
    made = Scheduler(
        settings=SchedulerSettings(**more), instances=specs, router=make_router("least-loaded"), policy=policy, tenants=tenants
    )
    for spec in specs:
        made.set_controls(spec.name, Controls(n_run=n_run))
    return made


def limits(**more):
    return {"a": TenantLimits(**more)}


# -- rates ----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 500)), max_size=60))
def test_a_bucket_never_lets_more_through_than_burst_and_rate(claims):
    bucket = TokenBucket(300.0, 10.0, 0.0)
    now_s = let_in = largest = 0.0
    for pause_s, amount in claims:
        now_s += pause_s
        if bucket.wait_s(amount, now_s) == 0.0:
            bucket.take(amount, now_s)
            let_in += amount
            largest = max(largest, amount)
        # A claim above the capacity overdraws it once; what follows waits for that to be filled up.
        assert let_in <= 300.0 + 10.0 * now_s + max(0.0, largest - 300.0) + 1e-6


@given(st.floats(0.1, 900), st.floats(0.1, 900))
def test_after_the_wait_that_is_told_a_bucket_holds_enough_and_not_before(first, second):
    bucket = TokenBucket(300.0, 10.0, 0.0)
    bucket.take(first, 0.0)
    wait_s = bucket.wait_s(second, 0.0)
    if wait_s > 0.01:
        assert bucket.wait_s(second, wait_s - 0.01) > 0.0
    assert bucket.wait_s(second, wait_s + 1e-6) == 0.0


def test_what_passes_the_quota_is_refused_with_the_time_at_which_it_fits():
    made = build(limits(tokens_per_minute=600))
    assert not isinstance(made.submit(request(0), believed(), 0.0), Refusal)
    assert not isinstance(made.submit(request(1, prompt=300), believed(), 0.0), Refusal)
    refusal = made.submit(request(2), believed(), 0.0)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code, refusal.kind) == (429, "tenant_quota", OutcomeKind.REJECTED)
    assert "600 tokens per minute" in refusal.message
    # 10 tokens a second; 200 are wanted and none is left.
    assert refusal.retry_after_s == pytest.approx(20.0)
    assert isinstance(made.submit(request(2), believed(), 19.9), Refusal)
    assert not isinstance(made.submit(request(2), believed(), 20.1), Refusal)
    # Others are not asked.
    assert not isinstance(made.submit(request(3, "b"), believed(), 20.1), Refusal)
    made.check_conservation()


def test_the_clients_cap_bounds_the_charge_and_the_truth_puts_it_right():
    made = build(limits(tokens_per_minute=6000))
    made.submit(request(0, cap=20), believed(), 0.0)
    assert made.rates("a", 0.0)["tokens"].remaining == 6000 - 120
    made.submit(request(1), believed(), 0.0)
    assert made.rates("a", 0.0)["tokens"].remaining == 6000 - 120 - 200
    made.dispatch(0.0)
    made.end("000001", OutcomeKind.COMPLETED, 0.0, output_tokens=10)
    assert made.rates("a", 0.0)["tokens"].remaining == 6000 - 120 - 110
    made.progress("000000", 5, 0.0)
    made.end("000000", OutcomeKind.CANCELLED, 0.0)
    assert made.rates("a", 0.0)["tokens"].remaining == 6000 - 105 - 110
    made.submit(request(2), believed(), 0.0)
    made.end("000002", OutcomeKind.CANCELLED, 0.0)
    assert made.rates("a", 0.0)["tokens"].remaining == 6000 - 105 - 110
    assert made.tenancy.charged == {}


def test_a_request_above_the_burst_goes_when_the_bucket_is_full_and_is_paid_off_later():
    made = build(limits(tokens_per_minute=600, burst_tokens=100))
    assert not isinstance(made.submit(request(0, prompt=400), believed(), 0.0), Refusal)
    refusal = made.submit(request(1, prompt=400), believed(), 0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == pytest.approx(50.0)


def test_requests_per_minute_count_what_was_taken_in_whatever_became_of_it():
    made = build(limits(requests_per_minute=2))
    for number in range(2):
        made.submit(request(number), believed(), 0.0)
        made.end(f"{number:06d}", OutcomeKind.CANCELLED, 0.0)
    refusal = made.submit(request(2), believed(), 0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == pytest.approx(30.0)
    assert "2 requests per minute" in refusal.message
    assert made.rates("a", 0.0)["requests"].remaining == 0
    # A refusal costs nothing.
    assert not isinstance(made.submit(request(2), believed(), 30.1), Refusal)


@pytest.mark.parametrize(
    ("kind", "begun", "left"),
    [
        (OutcomeKind.REJECTED, False, 6000),
        (OutcomeKind.FAILED, False, 6000),
        (OutcomeKind.FAILED, True, 4999),
        (OutcomeKind.CANCELLED, False, 5000),
        (OutcomeKind.TIMED_OUT, False, 5000),
    ],
)
def test_what_an_engine_refuses_or_fails_before_it_answers_is_charged_nothing(kind, begun, left):
    made = build(limits(tokens_per_minute=6000))
    made.submit(request(0, prompt=1000), believed(), 0.0)
    (sent,) = made.dispatch(0.0)
    if begun:
        made.progress(sent.entry.request.id, 1, 0.0)
    made.end(sent.entry.request.id, kind, 0.0)
    assert made.rates("a", 0.0)["tokens"].remaining == left


def test_a_full_queue_charges_nothing():
    made = build(limits(tokens_per_minute=6000, requests_per_minute=100), n_run=1, queue_limit=1)
    made.submit(request(0), believed(), 0.0)
    refusal = made.submit(request(1), believed(), 0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "queue_full"
    assert made.rates("a", 0.0)["tokens"].remaining == 5800
    assert made.rates("a", 0.0)["requests"].remaining == 99


# -- slots ----------------------------------------------------------------------------------------------------------------


def running(made) -> Counter:
    return Counter(TENANTS[request_id] for request_id in made.running_ids())


def fill(made, tenant, first, number):
    return [made.submit(request(one, tenant), believed(), 0.0) for one in range(first, first + number)]


def test_a_tenant_at_its_share_lets_others_go_first_and_uses_what_they_leave():
    made = build(limits(concurrency_share=0.25), n_run=8)
    fill(made, "a", 0, 100)
    fill(made, "b", 100, 3)
    made.dispatch(0.0)
    # Nobody else waits: the rest of the slots is a's.
    assert running(made) == {"b": 3, "a": 5}
    fill(made, "b", 200, 20)
    for number in range(12):
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, 1.0 + number, 1)
        (sent,) = made.dispatch(1.0 + number)
        assert sent.entry.request.tenant == "b" or running(made)["a"] <= 2
    assert running(made) in ({"a": 2, "b": 6}, {"a": 1, "b": 7})
    made.check_conservation()


def test_an_absolute_limit_holds_though_slots_are_free():
    made = build(limits(max_running=2), n_run=8)
    fill(made, "a", 0, 10)
    made.dispatch(0.0)
    assert running(made) == {"a": 2}
    fill(made, "b", 100, 10)
    made.dispatch(0.0)
    assert running(made) == {"a": 2, "b": 6}
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    assert [one.entry.request.id for one in made.dispatch(1.0)] == ["000002"]


def test_a_share_always_holds_one_slot_and_follows_the_windows():
    made = build(limits(concurrency_share=0.1), n_run=4)
    fill(made, "a", 0, 50)
    fill(made, "b", 100, 50)
    made.dispatch(0.0)
    assert running(made) == {"a": 1, "b": 3}
    made.set_controls("i0", Controls(n_run=40))
    made.dispatch(1.0)
    assert running(made) == {"a": 4, "b": 36}


def test_shares_hold_over_several_instances_together():
    made = build(limits(concurrency_share=0.5), n_run=4, instances=3)
    fill(made, "a", 0, 50)
    fill(made, "b", 100, 50)
    made.dispatch(0.0)
    assert running(made) == {"a": 6, "b": 6}


def test_a_queue_full_of_a_capped_tenant_is_not_waded_through():
    made = build(limits(concurrency_share=0.25), n_run=8)
    fill(made, "b", 0, 100)
    many = fill(made, "a", 1000, 6_000)
    made.dispatch(0.0)
    fill(made, "b", 50_000, 100)
    before = sum(entry.held["tenant share"] for entry in many if entry.held)
    for number in range(100):
        now_s = 1.0 + number
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s, 1)
        assert len(made.dispatch(now_s)) == 1
    # A slot puts a few requests aside again, not 6,000.
    assert sum(entry.held["tenant share"] for entry in many if entry.held) - before < 100 * 20
    assert running(made) == {"a": 2, "b": 6}


def test_late_requests_keep_to_the_share_too():
    made = build(limits(concurrency_share=0.25), n_run=8, late_share=1.0)
    hasty = Estimates(slo=Slo(ttft_ms=10, tpot_ms=100))
    for tenant, first in (("a", 0), ("b", 100)):
        for number in range(first, first + 30):
            made.submit(request(number, tenant), hasty, 0.0)
    assert len(made.dispatch(5.0)) == 8
    assert made.snapshot(5.0, "g").overdue == 52
    assert running(made) == {"a": 2, "b": 6}


def test_a_switch_keeps_to_the_limits_and_loses_nobody():
    made = build({"a": TenantLimits(concurrency_share=0.25)}, n_run=8)
    fill(made, "a", 0, 1500)
    fill(made, "b", 2000, 1500)
    made.dispatch(0.0)
    made.set_policy("wfq", 0.0)
    assert made.policy == "wfq"
    assert len(set(made.queued_ids())) == 3000 - 8
    for step in range(40):
        now_s = 0.1 * step
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s, 1)
        assert len(made.dispatch(now_s)) == 1
        assert running(made)["a"] <= 2
        assert running(made).total() == 8
        made.check_conservation()


def flooding(made, now_s):
    return {name for name, load in made.tenants(now_s).items() if load.floods}


def test_answers_that_come_whole_count_as_served():
    """Ten slots serve ten requests a second, each in one, and ten wait. Only those of `a`, a fifth, stream."""
    made = build(n_run=10)
    number, ends_s = 0, dict[str, float]()
    for step in range(100):
        now_s = 0.1 * step
        for _ in range(1 if step else 20):
            tenant = "abbcbabcbc"[number % 10]
            made.submit(request(number, tenant, at_s=now_s, stream=tenant == "a"), believed(), now_s)
            number += 1
        for request_id, end_s in list(ends_s.items()):
            if TENANTS[request_id] == "a":
                made.progress(request_id, round(100 - 100 * (end_s - now_s)), now_s)
            if now_s >= end_s - 1e-9:
                made.end(request_id, OutcomeKind.COMPLETED, now_s, output_tokens=100)
                del ends_s[request_id]
        for one in made.dispatch(now_s):
            # The first ones end one after the other, so that the others do, too.
            ends_s[one.entry.request.id] = now_s + (1.0 if step else 0.1 * (1 + len(ends_s)))
        made.expire(now_s)
    assert made.queued == pytest.approx(10, abs=1)
    assert flooding(made, now_s) == set()


@pytest.mark.parametrize("policy", ["fcfs", "edf", "wfq", "two-lane", "vtc", "mlfq", "lottery", "slack"])
@settings(max_examples=12)
@given(data=st.data())
def test_nothing_is_lost_behind_a_gate_and_no_share_is_passed_while_others_wait(policy, data):
    made = build({"a": TenantLimits(concurrency_share=0.3), "c": TenantLimits(max_running=2)}, n_run=5, policy=policy)
    now_s, number, window = 0.0, 0, 5
    for _ in range(data.draw(st.integers(1, 40))):
        now_s += 0.5
        match data.draw(st.sampled_from(["come", "come", "end", "leave", "revise", "switch", "window"])):
            case "come":
                for _ in range(data.draw(st.integers(1, 12))):
                    made.submit(request(number, data.draw(st.sampled_from("abc")), at_s=now_s), believed(), now_s)
                    number += 1
            case "end" if made.running_ids():
                made.end(data.draw(st.sampled_from(made.running_ids())), OutcomeKind.COMPLETED, now_s, 3)
            case "leave" if made.queued_ids():
                made.end(data.draw(st.sampled_from(made.queued_ids())), OutcomeKind.CANCELLED, now_s)
            case "revise" if made.queued_ids():
                made.revise(data.draw(st.sampled_from(made.queued_ids())), believed(data.draw(st.floats(1, 900))), now_s)
            case "switch":
                made.set_policy(data.draw(st.sampled_from(["fcfs", "edf", "wfq", "sjf"])), now_s)
            case "window":
                window = data.draw(st.integers(1, 9))
                made.set_controls("i0", Controls(n_run=window))
        held = running(made)
        for one in made.dispatch(now_s):
            tenant = one.entry.request.tenant
            held[tenant] += 1
            waiting = {TENANTS[request_id] for request_id in made.queued_ids()}
            share = max(1, int(0.3 * window + 1e-9))
            if tenant == "a" and held["a"] > share:
                assert "b" not in waiting - flooding(made, now_s)
            assert held["c"] <= 2
        made.check_conservation()
        waiting = {TENANTS[request_id] for request_id in made.queued_ids()}
        if sum(held.values()) < window:
            # A tenant that floods leaves room for the others (`FloodReserve`).
            assert waiting <= {"c"} | flooding(made, now_s)
    while made.counts().queued or made.counts().running:
        now_s += 1.0
        made.dispatch(now_s)
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s, 1)
    assert made.counts().ended[OutcomeKind.COMPLETED] + made.counts().ended[OutcomeKind.CANCELLED] == number
