"""A policy that cannot take over the requests that wait, such as a plugin that loses one."""

from pathlib import Path

from gateway_kit import eventually, running

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import ControlAction
from hmas.controller.gateway.control_loop import apply
from hmas.controller.scheduling.scheduler import Scheduler


async def test_a_policy_that_cannot_take_over_the_queue_is_told_once_and_tried_again(tmp_path: Path, monkeypatch):
    tries = 0

    def give_up(*_: object, **__: object) -> bool:
        nonlocal tries
        tries += 1
        raise SchedulingError("3 requests were lost")

    monkeypatch.setattr(apply, "AGAIN_S", 0.05)
    forced = {"policy": "sjf", "reason": "r"}
    async with running(tmp_path) as rig:
        before = rig.gateway.scheduler.policy
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "set_policy", give_up)
            answer = await rig.admin("POST", "/admin/policy", forced)
            assert (answer.status, answer.json["name"]) == (200, before)
            rig.bus.post(ControlAction(sent_s=rig.gateway.clock.now_s(), instance="sim-1", n_run=3))
            await eventually(lambda: rig.gateway.scheduler.snapshot(rig.gateway.clock.now_s(), "g").instances[0].n_run == 3)
            seen = tries
            await eventually(lambda: tries > seen + 1)
            assert [(event["subject"], event["reason"]) for event in rig.events("policy.refused")] == [("sjf", "3 requests were lost")]
            assert rig.events("policy") == [], "no change is told that was not made"
            assert (await rig.admin("DELETE", "/admin/policy")).status == 200
            await rig.admin("POST", "/admin/policy", forced)
            assert len(rig.events("policy.refused")) == 2, "it was wanted anew"
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        assert [event["source"] for event in rig.events("policy")] == ["operator"]
