"""What differs between two sets of settings reaches the scheduler, once, and whatever becomes of the policy."""

from unittest import mock

import pytest
from test_queue_changes import believed, request
from typing_kit import of_type

from hmas.controller.control.apply import apply_directives
from hmas.controller.control.resolve import Ceiling, Configured, Directives, Received, resolve
from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import ControlAction, LengthBound, MetaDecision, OverrideNotice
from hmas.controller.core.types import Controls
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

CEILINGS = {"a": Ceiling(32, 2048), "b": Ceiling(8)}
EDF = Configured(policy="edf", n_run=0)


def build(policy: str = "edf", parameters: dict[str, float] | None = None) -> Scheduler:
    return Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name=name, capacity_n_run=ceiling.n_run) for name, ceiling in CEILINGS.items()],
        router=make_router("least-loaded"),
        policy=policy,
        parameters=parameters,
    )


def at(now_s: float = 101.0, *, meta=None, statera=None, configured=EDF, **held) -> Directives:
    override = OverrideNotice(sent_s=100.0, author="ana", reason="night", **held)
    return resolve(configured, CEILINGS, meta, statera or {}, override, now_s=now_s, stale_after_s=15)


def decided(policy: str, **fields) -> Received[MetaDecision]:
    return Received(100.0, MetaDecision(sent_s=100.0, decision_id="d1", policy=policy, previous="edf", reason="tails", **fields))


def acted(name: str, n_run: int, **fields) -> dict[str, Received[ControlAction]]:
    return {name: Received(100.0, ControlAction(sent_s=100.0, instance=name, n_run=n_run, **fields))}


def applied(scheduler: Scheduler, before: Directives, after: Directives) -> tuple[bool, list[tuple[str, Controls]]]:
    told: list[tuple[str, Controls]] = []
    changed = apply_directives(
        scheduler, before, after, names=after.instances, now_s=101.0, on_controls=lambda name, controls: told.append((name, controls))
    )
    return changed, told


def test_only_what_differs_is_applied():
    scheduler, before = build(), at()
    after = at(statera=acted("a", 4), draining=["b"])
    changed, told = applied(scheduler, before, after)
    assert (changed, [(name, controls.n_run) for name, controls in told]) == (False, [("a", 4)])
    assert [(view.n_run, view.draining) for view in scheduler.snapshot(101.0, "g").instances] == [(4, False), (8, True)]
    assert applied(scheduler, after, after) == (False, [])


def test_a_change_of_policy_or_of_parameters_is_told():
    scheduler, before = build(), at()
    after = at(meta=decided("two-lane", parameters={"threshold_ms": 900.0}))
    assert applied(scheduler, before, after) == (True, [])
    assert (scheduler.policy, scheduler.parameters["threshold_ms"]) == ("two-lane", 900.0)
    again = at(meta=decided("two-lane", parameters={"threshold_ms": 800.0}))
    assert applied(scheduler, after, again)[0]


def test_configured_parameters_stay_until_meta_sets_its_own_and_return_when_it_is_silent():
    configured = Configured(policy="two-lane", n_run=0, parameters={"threshold_ms": 900.0})
    scheduler, before = build("two-lane", {"threshold_ms": 900.0}), at(configured=configured)
    after = at(configured=configured, statera=acted("a", 4))
    assert not applied(scheduler, before, after)[0]
    meta = decided("sjf")
    led = at(configured=configured, meta=meta)
    assert applied(scheduler, after, led)[0]
    silent = at(200.0, configured=configured, meta=meta)
    assert applied(scheduler, led, silent)[0]
    assert (scheduler.policy, scheduler.parameters["threshold_ms"]) == ("two-lane", 900.0)


def test_a_policy_that_is_given_up_keeps_nothing_else_back(monkeypatch):
    scheduler, before = build(), at()
    bound = LengthBound(prompt_tokens_below=0, add_tokens=40, samples=10)
    after = at(meta=decided("sjf"), statera=acted("a", 4, length_bounds=[bound]), draining=["b"], tenant_weights={"t": 2.0})

    def give_up(*_):
        raise SchedulingError("requests were lost")

    monkeypatch.setattr(Scheduler, "set_policy", give_up)
    with pytest.raises(SchedulingError, match="requests were lost"):
        applied(scheduler, before, after)
    assert [(view.n_run, view.draining) for view in scheduler.snapshot(101.0, "g").instances] == [(4, False), (8, True)]
    assert scheduler.policy == "edf"


def test_metas_router_reaches_the_scheduler_and_goes_again():
    configured = Configured(policy="edf", n_run=0, routers={"*": "least-loaded"})
    scheduler, before = build(), at(configured=configured)
    led = at(configured=configured, meta=decided("edf", router="prefix-aware"))
    silent = at(200.0, configured=configured, meta=decided("edf", router="prefix-aware"))
    reads_blocks = [scheduler.wants_blocks]
    for was, now in ((before, led), (led, silent)):
        assert not applied(scheduler, was, now)[0], "the policy is the same"
        reads_blocks.append(scheduler.wants_blocks)
    assert reads_blocks == [False, True, False], "only routers with the scorer prefix do"


def test_weights_of_many_tenants_are_applied_in_one_pass_over_the_queue():
    scheduler = build()
    entries = [of_type(QueueEntry, scheduler.submit(request(number, 0.0, tenants=3), believed(1), 0.0)) for number in range(6)]
    after = at(tenant_weights={"t1": 2.0, "t2": 3.0})
    with mock.patch.object(WaitQueue, "reweigh", autospec=True, side_effect=WaitQueue.reweigh) as reweigh:
        applied(scheduler, at(), after)
        assert [entry.weight for entry in entries] == [1.0, 2.0, 3.0] * 2
        assert reweigh.call_count == 1
        applied(scheduler, after, at(tenant_weights={"t2": 3.0}))
        assert [entry.weight for entry in entries] == [1.0, 1.0, 3.0] * 2
        applied(scheduler, at(draining=["b"]), at())
        assert reweigh.call_count == 2, "no weight has changed"
