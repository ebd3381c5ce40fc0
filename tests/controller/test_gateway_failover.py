"""A model whose engines are gone is answered for by the models that the configuration names, and by no others."""

import asyncio
from pathlib import Path

import msgspec
import orjson
import pytest
from gateway_kit import Rig, chat, eventually, running, start_sim

from hmas.controller.config.loader import load_config
from hmas.controller.config.section import ModelConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.instances import failover

BIG, SMALL, TINY = "big", "small", "tiny"


def rules(rig: Rig, **models: list[str]) -> None:
    config = {name: ModelConfig(failover=others) for name, others in models.items()}
    rig.gateway.reload(msgspec.structs.replace(rig.gateway.config, models=config))


def told(rig: Rig) -> list[tuple[str, str, str]]:
    return [(event["subject"], event["before"], event["after"]) for event in rig.events("model.failover")]


async def down(rig: Rig, name: str) -> None:
    """Stops an engine, until the gateway refuses requests for its model."""
    sim = next(sim for sim in rig.sims if sim.name == name)
    await sim.runner.cleanup()
    instance = rig.gateway.fleet.instances[name]
    rig.gateway.fleet.mark_down(name, "it was stopped")
    instance.down_since_s = float("-inf")


async def test_another_model_answers_while_no_engine_serves_the_one_that_is_asked_for(tmp_path: Path):
    sims = [await start_sim("gpu-1", model=BIG), await start_sim("gpu-2", model=SMALL)]
    async with running(tmp_path, sims=sims) as rig:
        rules(rig, big=[TINY, SMALL])
        answer = await rig.post(chat(model=BIG))
        assert (answer.status, answer.headers["x-hmas-instance"]) == (200, "gpu-1")
        assert "x-hmas-served-model" not in answer.headers
        assert told(rig) == []
        await down(rig, "gpu-1")
        answer = await rig.post(chat(model=BIG, user="me"))
        assert (answer.status, answer.headers["x-hmas-instance"], answer.headers["x-hmas-served-model"]) == (200, "gpu-2", SMALL)
        sent = orjson.loads(sims[1].bodies[-1])
        assert (sent["model"], sent["user"]) == (SMALL, "me")
        assert (await rig.post(chat(model=BIG, stream=False))).json["model"] == SMALL
        assert told(rig) == [(BIG, BIG, SMALL)], "told once"
        assert (await rig.post(chat(model=SMALL))).status == 200
        assert rig.balanced()


async def test_it_ends_when_an_engine_serves_the_model_again(tmp_path: Path):
    sims = [await start_sim("gpu-1", model=BIG), await start_sim("gpu-2", model=SMALL)]
    async with running(tmp_path, sims=sims) as rig:
        rules(rig, big=[SMALL])
        rig.gateway.fleet.instances["gpu-1"].draining = True
        assert (await rig.post(chat(model=BIG))).headers["x-hmas-served-model"] == SMALL
        rig.gateway.fleet.instances["gpu-1"].draining = False
        assert (await rig.post(chat(model=BIG))).headers["x-hmas-instance"] == "gpu-1"
        assert told(rig) == [(BIG, BIG, SMALL), (BIG, SMALL, BIG)]


async def test_while_no_circuit_is_closed_it_answers_all_but_the_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sims = [await start_sim("gpu-1", model=BIG), await start_sim("gpu-2", model=SMALL)]
    async with running(tmp_path, sims=sims) as rig:
        rules(rig, big=[SMALL])
        fleet = rig.gateway.fleet
        breaker = fleet.instances["gpu-1"].breaker
        breaker.trip("it failed", fleet.now_s())
        fleet.mark_down("gpu-1", breaker.detail)
        assert (await rig.post(chat(model=BIG))).headers["x-hmas-served-model"] == SMALL, "its circuit is open"
        await eventually(lambda: breaker.state == "half-open")
        async with rig.session.post(sims[0].url + "/sim/fault", json={"fault": "stall", "times": 1}) as response:
            assert response.status == 200
        probe = asyncio.create_task(rig.post(chat(model=BIG, stream=False)))
        await eventually(lambda: sims[0].bodies)
        while_probed = [await asyncio.wait_for(rig.post(chat(model=BIG)), 2) for _ in range(3)]
        assert {answer.headers["x-hmas-served-model"] for answer in while_probed} == {SMALL}
        probe.cancel()
        assert (await rig.post(chat(model=BIG))).headers["x-hmas-served-model"] == SMALL
        monkeypatch.setattr(failover, "LONGEST_WAIT_S", 0.0)
        assert (await rig.post(chat(model=BIG))).headers["x-hmas-instance"] == "gpu-1", "that probe told nothing: here is another"
        assert breaker.state == "closed"
        assert (await rig.post(chat(model=BIG))).headers["x-hmas-instance"] == "gpu-1"
        assert told(rig) == [(BIG, BIG, SMALL), (BIG, SMALL, BIG)]


async def test_without_a_rule_or_an_engine_the_request_is_refused_for_the_model_that_it_names(tmp_path: Path):
    sims = [await start_sim("gpu-1", model=BIG), await start_sim("gpu-2", model=SMALL)]
    async with running(tmp_path, sims=sims) as rig:
        rules(rig, small=[BIG])
        await down(rig, "gpu-1")
        answer = await rig.post(chat(model=BIG))
        assert (answer.status, answer.json["error"]["code"]) == (503, "no_healthy_engine")
        rules(rig, big=[TINY], nothing=[SMALL])
        answer = await rig.post(chat(model=BIG))
        assert (answer.status, answer.json["error"]["code"]) == (503, "no_healthy_engine")
        answer = await rig.post(chat(model="nothing"))
        assert (answer.status, answer.headers["x-hmas-served-model"]) == (200, SMALL), "a model that was never there has a rule"
        answer = await rig.post({"model": BIG, "input": "words"}, path="/v1/embeddings")
        assert answer.status == 503
        await eventually(rig.balanced)


async def test_a_model_with_one_engine_drained_and_the_other_down_is_one_that_no_engine_serves(tmp_path: Path):
    sims = [await start_sim("gpu-1", model=BIG), await start_sim("gpu-2", model=BIG), await start_sim("gpu-3", model=SMALL)]
    async with running(tmp_path, sims=sims) as rig:
        await rig.admin("POST", "/admin/engines/gpu-1/drain")
        await down(rig, "gpu-2")
        refused = await asyncio.wait_for(rig.post(chat(model=BIG)), 2)
        rules(rig, big=[SMALL])
        served = await asyncio.wait_for(rig.post(chat(model=BIG)), 2)
        assert rig.balanced()
    assert (refused.status, refused.error["code"]) == (503, "no_healthy_engine")
    assert "gpu-1 (drained), gpu-2 (" in refused.error["message"]
    assert refused.headers["retry-after"]
    assert (served.status, served.headers["x-hmas-served-model"]) == (200, SMALL)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("{big: {failover: [small, big]}}", "models.big.failover: got 'big', the model itself"),
        ("{big: {failover: small}}", "models.big.failover"),
        ("{big: {failover: ['']}}", "models.big.failover"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, models: str, message: str):
    file = tmp_path / "hmas.yaml"
    file.write_text(f"models: {models}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(str(file), {})
