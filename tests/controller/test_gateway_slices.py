"""What the gateway does in slices between everything else: changes of a long queue, and bursts whose time has come."""

import asyncio
from pathlib import Path
from unittest import mock

import msgspec
from gateway_kit import chat, eventually, gateway_config, running

from hmas.cli.policy import policy_line
from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.scheduling.queue import policy_switch as queues

ONE_AT_A_TIME = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02, overdue="keep")


async def test_a_policy_comes_in_slices_and_everybody_is_served(tmp_path: Path):
    with mock.patch.object(queues, "AT_ONCE", 0):
        async with running(tmp_path, scheduler=ONE_AT_A_TIME) as rig:
            scheduler = rig.gateway.scheduler
            blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
            await eventually(lambda: rig.sims[0].model.running == 1)
            waiting = [asyncio.create_task(rig.post(chat(f"waits {number}", tokens=1))) for number in range(40)]
            await eventually(lambda: scheduler.queued == 40)
            with mock.patch.object(rig.gateway.manager.sliced_work, "ask"), mock.patch.object(rig.gateway.control, "on_applied"):
                begun = (await rig.admin("POST", "/admin/policy", {"policy": "wfq", "author": "kim", "reason": "test"})).json
                assert (begun["name"], begun["next"]) == ("fcfs", "wfq")
                assert policy_line(begun).startswith("fcfs, wfq on its way in, by operator")
            rig.gateway.manager.sliced_work.ask()
            await eventually(lambda: scheduler.policy == "wfq" and scheduler.settled)
            assert scheduler.next_policy == ""
            assert scheduler.queued == 40
            rig.gateway.control.apply()
            blocker.cancel()
            answers = await asyncio.gather(*waiting)
            assert rig.gateway.manager.sliced_work.worst_s > 0.0
    assert [answer.status for answer in answers] == [200] * 40


async def test_a_burst_whose_deadline_passes_is_told_to_the_last(tmp_path: Path):
    async with running(tmp_path, scheduler=ONE_AT_A_TIME, gateway=gateway_config(request_timeout_s=1.0)) as rig:
        blocker = asyncio.create_task(rig.post(chat("long", tokens=4000)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        for live in rig.gateway.manager.active.values():
            # Else its own deadline would free the slot a moment before those of the others pass.
            live.request = msgspec.structs.replace(live.request, deadline_s=float("inf"))
        waiting = [asyncio.create_task(rig.post(chat(f"waits {number}", tokens=1))) for number in range(100)]
        answers = await asyncio.gather(*waiting)
        blocker.cancel()
        await eventually(lambda: not rig.gateway.manager.active)
        assert rig.balanced()
        ended = [completion.outcome.value for completion in await rig.completions()]
    assert [answer.status for answer in answers] == [504] * 100
    assert ended.count("timed_out") == 100
