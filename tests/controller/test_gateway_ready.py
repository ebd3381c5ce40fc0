"""`/ready` says whether a request sent now would be served: a load balancer goes by it."""

import asyncio
from pathlib import Path

import pytest
from gateway_kit import MODEL, Answer, Rig, chat, eventually, running, start_sim
from typing_kit import known

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.gateway.instances import circuit_breaker
from hmas.controller.gateway.instances.circuit_breaker import FAILURES
from hmas.controller.gateway.requests import manager
from hmas.engines.errors import EngineUnavailable
from hmas.engines.openai import OpenAIEngine


async def drain(rig: Rig, name: str) -> None:
    assert (await rig.admin("POST", f"/admin/engines/{name}/drain", {"author": "ana", "reason": "new driver"})).status == 200


def reason(answer: Answer) -> str:
    assert answer.status == 503
    (found,) = answer.json["reasons"]
    return found


async def test_it_is_not_ready_while_every_engine_is_drained(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        await drain(rig, "sim-1")
        assert (await rig.get("/ready")).status == 200
        await drain(rig, "sim-2")
        assert reason(await rig.get("/ready")) == "no engine takes requests: sim-1 (it is being drained), sim-2 (it is being drained)"
        assert (await rig.post(chat())).status == 503
        assert (await rig.admin("GET", "/admin/status")).json["not_ready_because"]
        assert (await rig.admin("POST", "/admin/engines/sim-2/undrain")).status == 200
        assert (await rig.get("/ready")).status == 200
        assert (await rig.post(chat())).status == 200


async def test_it_is_not_ready_where_one_is_drained_and_the_other_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manager, "STRANDED_AFTER_S", 0.1)
    async with running(tmp_path, engines=2, scheduler=SchedulerConfig(n_run=1)) as rig:
        await drain(rig, "sim-1")
        runs, waits = (asyncio.create_task(rig.post(chat(name, tokens=3000))) for name in ("runs", "waits"))
        await eventually(lambda: len(rig.gateway.scheduler.queued_ids()) == 1)
        await rig.sims[1].kill()
        await eventually(lambda: not rig.gateway.fleet.instances["sim-2"].healthy)
        await runs
        answer = await waits
        assert (answer.status, answer.error["code"]) == (503, "no_healthy_engine"), "it does not wait for the drained one"
        assert reason(await rig.get("/ready")) == "no engine takes requests: sim-1 (it is being drained), sim-2 (it does not answer)"


async def test_it_is_not_ready_while_the_only_circuit_is_open_and_ready_for_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(circuit_breaker, "FIRST_WAIT_S", 60.0)
    async with running(tmp_path, engines=2) as rig:
        await drain(rig, "sim-2")
        async with rig.session.post(rig.sims[0].url + "/sim/fault", json={"fault": "status:500"}) as response:
            assert response.status == 200
        for number in range(FAILURES):
            await rig.post(chat(f"number {number}", tokens=3))
        breaker = rig.gateway.fleet.instances["sim-1"].breaker
        assert breaker.state == "open"
        assert reason(await rig.get("/ready")) == "no engine takes requests: sim-1 (its circuit is open), sim-2 (it is being drained)"
        breaker.until_s = 0.0
        await eventually(lambda: breaker.state == "half-open")
        assert (await rig.get("/ready")).status == 200, "without requests the circuit would stay half open"


async def test_an_engine_gets_no_requests_until_its_models_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readable: list[bool] = []
    call = OpenAIEngine.call

    async def fails(self: OpenAIEngine, method: str, path: str) -> tuple[int, bytes]:
        if self.name == "sim-2" and path == "/v1/models" and not readable:
            raise EngineUnavailable("no answer in time")
        return await call(self, method, path)

    monkeypatch.setattr(OpenAIEngine, "call", fails)
    async with running(tmp_path, sims=[await start_sim("sim-1"), await start_sim("sim-2", model="another")]) as rig:
        fleet = rig.gateway.fleet
        assert known(fleet.instances["sim-2"].snapshot).detail == "its models cannot be read"
        assert [one.name for one in fleet.candidates(MODEL)] == ["sim-1"]
        assert [(await rig.post(chat() | {"model": model})).status for model in (MODEL, "another", "mistyped")] == [200, 404, 404]
        readable.append(True)
        await eventually(lambda: fleet.instances["sim-2"].healthy)
        assert (await rig.post(chat() | {"model": "another"})).headers["x-hmas-instance"] == "sim-2"
