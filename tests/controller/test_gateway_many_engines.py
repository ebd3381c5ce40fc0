"""Many engines join and leave at once: the event loop serves requests in between."""

import asyncio
from pathlib import Path

import pytest
from gateway_kit import eventually, running
from test_gateway_membership import engine, of, reload

from hmas.controller.control.resolve import Ceiling
from hmas.controller.gateway.instances import membership


async def test_many_that_join_and_leave_at_once_hold_the_loop_up_only_for_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(membership, "LEAVES_AFTER_S", 0.05)
    steps: list[int] = []

    async def watch() -> None:
        before = len(rig.gateway.fleet.instances)
        while True:
            await asyncio.sleep(0)
            now = len(rig.gateway.fleet.instances)
            steps.append(now - before)
            before = now

    async with running(tmp_path) as rig:
        there = of(rig.sims[0])
        watching = asyncio.create_task(watch())
        reload(rig, there, *(engine(f"e{number:02d}", url=rig.sims[0].url) for number in range(30)))
        await eventually(lambda: len(rig.gateway.fleet.instances) == 31)
        assert max(steps) == 1
        assert set(rig.gateway.control.directives.instances) == set(rig.gateway.fleet.instances)
        reload(rig, there)
        await eventually(lambda: len(rig.gateway.fleet.instances) == 1)
        assert min(steps) == -membership.REMOVED_AT_ONCE
        await eventually(lambda: set(rig.gateway.control.directives.instances) == {there.name})
        watching.cancel()


async def test_the_ceiling_of_one_engine_is_applied_to_it_alone(tmp_path: Path):
    async with running(tmp_path, engines=3) as rig:
        control, fleet = rig.gateway.control, rig.gateway.fleet
        one, other, _ = fleet.instances
        before = control.directives.instances
        fleet.instances[one].ceiling = Ceiling(n_run=9)
        fleet.on_ceiling(one)
        after = control.directives.instances
        assert [found.controls.n_run for found in after.values()] == [9, 16, 16]
        assert after[other] is before[other], "the others are not resolved again"
