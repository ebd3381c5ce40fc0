"""A long queue in the gateway: a change of its policy, and bursts of requests that expire together."""

import asyncio
from pathlib import Path
from unittest import mock

import msgspec
from gateway_kit import chat, eventually, gateway_config, running

from hmas.cli.policy import policy_line
from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.scheduling.policies import registry as pool
from hmas.controller.scheduling.policies.edf import Edf

ONE_AT_A_TIME = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02, overdue="keep")


async def test_a_policy_changes_while_many_wait_and_everybody_is_served(tmp_path: Path):
    async with running(tmp_path, scheduler=ONE_AT_A_TIME) as rig:
        scheduler = rig.gateway.scheduler
        blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        waiting = [asyncio.create_task(rig.post(chat(f"waits {number}", tokens=1))) for number in range(40)]
        await eventually(lambda: scheduler.queued == 40)
        changed = (await rig.admin("POST", "/admin/policy", {"policy": "wfq", "author": "kim", "reason": "test"})).json
        assert changed["name"] == scheduler.policy == "wfq"
        assert policy_line(changed).startswith("wfq (cost=0), by operator")
        assert scheduler.queued == 40
        rig.gateway.control.apply()
        blocker.cancel()
        answers = await asyncio.gather(*waiting)
    assert [answer.status for answer in answers] == [200] * 40


async def test_a_policy_that_loses_requests_is_not_used_and_everybody_is_served(tmp_path: Path):
    class Lossy(Edf):
        name = "wfq"

        def load(self, entries, now_s: float) -> None:
            super().load(list(entries)[1:], now_s)

    with mock.patch.object(pool, "POLICIES", {**pool.POLICIES, "wfq": Lossy}):
        async with running(tmp_path, scheduler=ONE_AT_A_TIME) as rig:
            blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
            await eventually(lambda: rig.sims[0].model.running == 1)
            waiting = [asyncio.create_task(rig.post(chat(f"waits {number}", tokens=1))) for number in range(10)]
            await eventually(lambda: rig.gateway.scheduler.queued == 10)
            changed = (await rig.admin("POST", "/admin/policy", {"policy": "wfq", "author": "kim", "reason": "test"})).json
            assert changed["name"] == rig.gateway.scheduler.policy == "fcfs"
            assert rig.gateway.scheduler.queued == 10
            blocker.cancel()
            answers = await asyncio.gather(*waiting)
    assert [answer.status for answer in answers] == [200] * 10


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
