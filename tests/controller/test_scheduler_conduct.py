"""The scheduler's promises: conservation, window, fence, deadlines, demotion, retry, the guard; alone and in the simulation."""

import os
import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import LengthBound
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

NAMES = sorted(POLICIES)


def request(number: int, *, at_s: float = 0.0, prompt: int = 100, tenant: str = "a", deadline_s: float = float("inf"), **more) -> Request:
    return Request(id=f"{number:06d}", tenant=tenant, model="m", arrival_s=at_s, prompt_tokens=prompt, deadline_s=deadline_s, **more)


def estimates(*, ttft_ms: float = 4000, tpot_ms: float = 100, output: float = 50, upper: float = 100) -> Estimates:
    return Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms), output_tokens=output, output_tokens_upper=upper, ttft_ms=100, tpot_ms=10)


def scheduler(policy: str = "fcfs", *, instances: int = 1, n_run: int = 2, kv_tokens: int = 0, **more) -> Scheduler:
    specs = [InstanceSpec(name=f"i{i}", capacity_n_run=64, kv_capacity_tokens=kv_tokens, kv_bytes_per_token=10) for i in range(instances)]
    made = Scheduler(settings=SchedulerSettings(**more), instances=specs, router=make_router("least-loaded"), policy=policy)
    for spec in specs:
        made.set_controls(spec.name, Controls(n_run=n_run))
    return made


class Storm(RuleBasedStateMachine):
    """Everything that can be done to a scheduler, in any order."""

    def __init__(self):
        super().__init__()
        self.scheduler = scheduler(instances=2, n_run=3, kv_tokens=2000, queue_limit=20, tpot_guard=0.5, late_service_share=0.5)
        self.now_s = 1000.0
        self.number = 0
        self.queued: set[str] = set()
        self.running: dict[str, str] = {}
        self.ended: set[str] = set()

    def step(self) -> float:
        self.now_s += 0.05
        return self.now_s

    @rule(
        prompt=st.integers(1, 2500),
        ttft_ms=st.sampled_from([100.0, 5000.0]),
        ttl_s=st.sampled_from([0.3, 1e9]),
        tenant=st.sampled_from("abc"),
    )
    def submit(self, prompt, ttft_ms, ttl_s, tenant):
        self.number += 1
        now_s = self.step()
        asked = request(self.number, at_s=now_s, prompt=prompt, tenant=tenant, deadline_s=now_s + ttl_s)
        answer = self.scheduler.submit(asked, estimates(ttft_ms=ttft_ms), now_s)
        if isinstance(answer, Refusal):
            assert answer.status in {400, 429}
            self.ended.add(asked.id)
        else:
            self.queued.add(asked.id)

    @rule()
    def dispatch(self):
        for sent in self.scheduler.dispatch(self.step()):
            request_id = sent.entry.request.id
            assert request_id in self.queued
            self.queued.remove(request_id)
            self.running[request_id] = sent.instance

    @rule()
    def expire(self):
        for dropped in self.scheduler.expire(self.step()):
            assert dropped.refusal.status == 504
            self.queued.remove(dropped.entry.request.id)
            self.ended.add(dropped.entry.request.id)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 200))
    def progress(self, data, tokens):
        self.scheduler.progress(data.draw(st.sampled_from(sorted(self.running))), tokens, self.step())

    @precondition(lambda self: self.running or self.queued)
    @rule(data=st.data(), kind=st.sampled_from([OutcomeKind.COMPLETED, OutcomeKind.CANCELLED, OutcomeKind.FAILED]))
    def end(self, data, kind):
        request_id = data.draw(st.sampled_from(sorted({*self.running, *self.queued})))
        if request_id in self.queued:
            kind = OutcomeKind.CANCELLED
        self.scheduler.end(request_id, kind, self.step(), 5)
        self.running.pop(request_id, None)
        self.queued.discard(request_id)
        self.ended.add(request_id)
        with pytest.raises(SchedulingError):
            self.scheduler.end(request_id, kind, self.step())

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def retry(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        if self.scheduler.retry(request_id, self.step()):
            del self.running[request_id]
            self.queued.add(request_id)
            assert not self.scheduler.retry(request_id, self.step())

    @rule(policy=st.sampled_from(NAMES))
    def switch(self, policy):
        self.scheduler.set_policy(policy, self.step())

    @rule(n_run=st.integers(1, 6), instance=st.sampled_from(["i0", "i1"]))
    def control(self, n_run, instance):
        self.scheduler.set_controls(instance, Controls(n_run=n_run))

    @rule(draining=st.booleans())
    def drain(self, draining):
        self.scheduler.set_draining("i1", draining)

    @rule(add=st.floats(0, 300))
    def bounds(self, add):
        self.scheduler.set_length_bounds([LengthBound(prompt_tokens_below=0, add_tokens=add, samples=10)])

    @precondition(lambda self: self.queued)
    @rule(data=st.data(), ttft_ms=st.sampled_from([50.0, 9000.0]))
    def revise(self, data, ttft_ms):
        assert self.scheduler.revise(data.draw(st.sampled_from(sorted(self.queued))), estimates(ttft_ms=ttft_ms), self.step())

    @invariant()
    def nothing_is_lost_or_counted_twice(self):
        self.scheduler.check_conservation()
        counts = self.scheduler.counts()
        assert counts.queued == len(self.queued)
        assert counts.running == len(self.running)
        assert sum(counts.ended.values()) == len(self.ended)
        assert counts.arrived == self.number


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("policy", NAMES)
def test_the_window_holds_and_a_smaller_one_evicts_nobody(policy):
    made = scheduler(policy, n_run=4)
    for i in range(10):
        made.submit(request(i), estimates(), 0.0)
    assert len(made.dispatch(0.0)) == 4
    made.set_controls("i0", Controls(n_run=1))
    assert made.counts().running == 4
    for i, sent in enumerate(sorted(made.dispatch(0.1), key=lambda d: d.entry.seq)):
        pytest.fail(f"{i}: {sent} went beyond the window")


def test_the_fence_is_never_passed_and_holds_nobody_for_ever():
    made = scheduler(n_run=64, kv_tokens=1000, fence_margin=0.1)
    for i in range(12):
        made.submit(request(i, prompt=200), estimates(upper=100), 0.0)
    # Three of 200 + 100 tokens fit under 900; four would not.
    assert len(made.dispatch(0.0)) == 3
    done = 0
    while made.counts().queued or made.counts().running:
        for request_id in [r for r in (f"{i:06d}" for i in range(12)) if r not in made.queued_ids()]:
            try:
                made.end(request_id, OutcomeKind.COMPLETED, 1.0, 10)
            except SchedulingError:
                continue
            done += 1
            break
        assert made.snapshot(1.0, "g").instances[0].kv_committed <= 1.0
        made.dispatch(1.0)
    assert done == 12


def test_what_can_never_fit_is_refused_with_the_figures():
    made = scheduler(kv_tokens=1000)
    answer = made.submit(request(1, prompt=5000), estimates(), 0.0)
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code) == (400, "context_length_exceeded")
    assert "5000" in answer.message


def test_a_guess_beyond_the_fence_delays_but_does_not_lock_out():
    made = scheduler(kv_tokens=1000, n_run=8)
    made.submit(request(1), estimates(upper=50_000), 0.0)
    assert len(made.dispatch(0.0)) == 1


def test_queue_limit_and_retry_after():
    made = scheduler(queue_limit=3)
    answers = [made.submit(request(i), estimates(), 0.0) for i in range(5)]
    refused = [a for a in answers if isinstance(a, Refusal)]
    assert [a.status for a in refused] == [429, 429]
    assert all(1.0 <= a.retry_after_s <= 60.0 for a in refused)


@pytest.mark.parametrize("overdue", ["keep", "demote", "shed"])
def test_overdue(overdue):
    made = scheduler("fcfs", n_run=1, overdue=overdue)
    made.submit(request(0), estimates(), 0.0)
    assert len(made.dispatch(0.0)) == 1
    made.submit(request(1), estimates(ttft_ms=100), 0.0)
    made.submit(request(2), estimates(ttft_ms=60_000), 0.0)
    dropped = made.expire(1.0)
    assert [d.entry.request.id for d in dropped] == (["000001"] if overdue == "shed" else [])
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    first = made.dispatch(1.0)[0].entry.request.id
    assert first == ("000001" if overdue == "keep" else "000002")


def test_foresight_condemns_only_what_the_prediction_rules_out():
    for share, expected in ((0.0, "000001"), (1.0, "000002")):
        made = scheduler("fcfs", n_run=1, overdue="demote", late_service_share=share)
        # Its first token is due in 80 ms, and is predicted to take 100 ms from dispatch.
        made.submit(request(1, at_s=10.0), estimates(ttft_ms=80), 10.0)
        made.submit(request(2, at_s=10.0), estimates(ttft_ms=60_000), 10.0)
        assert made.dispatch(10.0)[0].entry.request.id == expected


def test_a_deadline_ends_a_waiting_request():
    made = scheduler(n_run=1)
    made.submit(request(0), estimates(), 0.0)
    made.dispatch(0.0)
    made.submit(request(1, deadline_s=5.0), estimates(), 0.0)
    assert made.expire(4.9) == []
    (dropped,) = made.expire(5.1)
    assert (dropped.refusal.kind, dropped.refusal.status) == (OutcomeKind.TIMED_OUT, 504)


def test_a_retry_goes_elsewhere_and_only_once():
    made = scheduler(instances=2, n_run=4)
    made.submit(request(1), estimates(), 0.0)
    (sent,) = made.dispatch(0.0)
    assert made.retry("000001", 0.1)
    (again,) = made.dispatch(0.1)
    assert again.instance != sent.instance
    assert not made.retry("000001", 0.2)


DETERMINISM = """
from hmas.controller.core.types import Controls, Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
profile = load_profile("demo-small")
made = Scheduler(settings=SchedulerSettings(tpot_guard=0.5, late_service_share=0.5), policy="edf", router=make_router("least-loaded"),
    instances=[InstanceSpec(name=n, capacity_n_run=64) for n in "ab"])
for n in "ab":
    made.set_controls(n, Controls(n_run=8))
arrivals = [Arrival(request=Request(id=f"{i:06d}", tenant="abc"[i % 3], model="m", arrival_s=i * 0.07, prompt_tokens=50 + 37 * i % 900),
    estimate=lambda r, t: Estimates(slo=Slo(ttft_ms=2000 + 10 * r.prompt_tokens, tpot_ms=40)),
    output_tokens=1 + i * 13 % 150) for i in range(120)]
result = simulate(arrivals, {n: EngineModel(profile) for n in "ab"}, made)
assert all(a.ttft_ms <= a.total_ms and a.queue_ms <= a.ttft_ms for a in result.records if a.ttft_ms >= 0)
print(result.records, result.counts, result.end_s)
"""


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_whatever_the_hash_seed():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", DETERMINISM], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
