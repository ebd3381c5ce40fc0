"""Quotas, shares and caps that come and go while requests wait, run and are charged."""

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import NO_LIMITS, TenantLimits
from hmas.controller.scheduling.admission.token_bucket import TokenBucket
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

BELIEVED = Estimates(slo=Slo(ttft_ms=600_000, tpot_ms=100), output_tokens=100.0, output_tokens_upper=100.0)


def build(policy: str = "fcfs", tenants: dict[str, TenantLimits] | None = None, *, n_run: int = 8) -> Scheduler:
    made = Scheduler(
        settings=SchedulerSettings(queue_limit=100_000),
        instances=[InstanceSpec(name="i0", capacity_n_run=1000)],
        router=make_router("least-loaded"),
        policy=policy,
        tenants=tenants,
    )
    made.set_controls("i0", Controls(n_run=n_run))
    return made


TENANTS: dict[str, str] = {}
"""The tenant of each request by its id."""


def come(made: Scheduler, tenant: str, first: int, number: int, now_s: float = 0.0) -> list[object]:
    TENANTS.update({f"{one:06d}": tenant for one in range(first, first + number)})
    return [
        made.submit(Request(id=f"{one:06d}", tenant=tenant, model="m", arrival_s=now_s, prompt_tokens=100), BELIEVED, now_s)
        for one in range(first, first + number)
    ]


def running(made: Scheduler) -> Counter[str]:
    return Counter(TENANTS[request_id] for request_id in made.running_ids())


def one_after_the_other(made: Scheduler, steps: int, now_s: float) -> None:
    """Ends the oldest in flight and dispatches, so many times."""
    for step in range(steps):
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s + step, 1)
        made.dispatch(now_s + step)


@pytest.mark.parametrize("policy", ["fcfs", "edf", "wfq", "vtc", "two-lane", "mlfq"])
@pytest.mark.parametrize("waiting", [100, 1500])
def test_a_share_that_comes_while_a_burst_waits_holds_for_the_burst(policy: str, waiting: int):
    made = build(policy)
    come(made, "a", 0, waiting)
    come(made, "b", 10_000, waiting)
    made.set_limits("a", TenantLimits(concurrency_share=0.25), 0.0)
    made.dispatch(0.0)
    assert running(made) == {"a": 2, "b": 6}
    made.check_conservation()
    made.set_limits("a", NO_LIMITS, 1.0)
    made.set_limits("b", TenantLimits(max_running=1), 1.0)
    one_after_the_other(made, 8, 2.0)
    assert running(made)["a"] >= 7
    assert running(made).total() == 8
    made.check_conservation()


def test_those_in_flight_count_towards_a_cap_that_comes():
    made = build()
    come(made, "a", 0, 20)
    made.dispatch(0.0)
    made.set_limits("a", TenantLimits(max_running=3), 0.0)
    assert running(made) == {"a": 8}
    one_after_the_other(made, 5, 1.0)
    assert running(made) == {"a": 3}
    one_after_the_other(made, 3, 10.0)
    assert running(made) == {"a": 3}


class _Counting(TenantLimits, frozen=True):
    """Counts how often it is asked whether it bounds slots."""

    asked: ClassVar[list[None]] = []

    @property
    def bounded(self) -> bool:
        self.asked.append(None)
        return self.max_running > 0


def test_a_change_of_limits_costs_the_same_however_many_tenants_have_some():
    made = build(tenants={f"t{number}": _Counting(max_running=1) for number in range(1000)})
    _Counting.asked.clear()
    for number in range(1000):
        made.set_limits(f"t{number}", _Counting(max_running=2), 0.0)
    assert 1000 <= len(_Counting.asked) <= 3000
    assert len(made.tenancy.bounded) == 1000


def test_what_is_in_flight_is_counted_for_those_without_limits_too():
    made = build()
    come(made, "a", 0, 5)
    made.dispatch(0.0)
    assert made.tenancy.running == {"a": 5}
    one_after_the_other(made, 5, 1.0)
    assert made.tenancy.running == {}


def test_a_quota_comes_changes_and_goes():
    made = build()
    assert not any(isinstance(one, Refusal) for one in come(made, "a", 0, 5))
    made.set_limits("a", TenantLimits(tokens_per_minute=400), 0.0)
    *taken, refused = come(made, "a", 10, 3)
    assert not any(isinstance(one, Refusal) for one in taken)
    assert isinstance(refused, Refusal)
    # 400 a minute, used up: 30 s to 200. At 4,000 a minute the same 200 take 3 s: what is used up stays used up.
    assert refused.retry_after_s == pytest.approx(30.0)
    made.set_limits("a", TenantLimits(tokens_per_minute=4000), 0.0)
    (refused,) = come(made, "a", 20, 1)
    assert isinstance(refused, Refusal)
    assert refused.retry_after_s == pytest.approx(3.0)
    made.set_limits("a", NO_LIMITS, 0.0)
    assert made.rates("a", 0.0) == {}
    assert not any(isinstance(one, Refusal) for one in come(made, "a", 30, 50))
    made.check_conservation()


def test_what_was_charged_under_a_quota_that_has_gone_is_forgotten():
    made = build(tenants={"a": TenantLimits(tokens_per_minute=6000)})
    come(made, "a", 0, 5)
    made.dispatch(0.0)
    made.set_limits("a", NO_LIMITS, 0.0)
    for request_id in made.running_ids():
        made.end(request_id, OutcomeKind.COMPLETED, 1.0, 10)
    assert made.tenancy.charged == {}


def test_what_came_before_a_quota_costs_nothing_under_it():
    made = build()
    come(made, "a", 0, 5)
    made.dispatch(0.0)
    made.set_limits("a", TenantLimits(tokens_per_minute=6000), 0.0)
    for request_id in made.running_ids():
        made.end(request_id, OutcomeKind.COMPLETED, 1.0, 10)
    assert made.rates("a", 1.0)["tokens"].remaining == 6000


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(-1e6, 1e6))
def test_a_bucket_of_another_size_is_as_full_as_before_and_owes_what_it_owed(before: float, after: float, taken: float):
    bucket = TokenBucket(before, 10.0, 0.0)
    bucket.take(taken, 0.0)
    level = bucket.level(0.0)
    bucket.resize(after, 5.0, 0.0)
    resized = bucket.level(0.0)
    assert resized <= after * (1 + 1e-9)
    assert resized == pytest.approx(level * after / before if level > 0 else level)
    assert bucket.level(2.0) == pytest.approx(min(after, resized + 10.0))
