"""Routers on a gateway that serves: by configuration, forced by operators, explained, and replaced where they fail."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from gateway_kit import MODEL, Rig, chat, eventually, running, start_sim
from test_admin_api import call

from hmas.cli.engines import engine_table
from hmas.cli.explain import page
from hmas.controller.config.derived import routers
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import EngineConfig, SchedulerConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.placement import Choice, InstanceState, Routable

LONG = "You answer for the bank. " * 200


async def instances_of(rig: Rig, count: int, text: str = "hi", **more) -> list[str]:
    """Where so many requests, one after another, are sent."""
    found = []
    for _ in range(count):
        answer = await rig.post(chat(text, tokens=2), **more)
        told = await rig.admin("GET", f"/admin/requests/{answer.headers['x-request-id']}")
        found.append(told.json["attempts"][0]["instance"])
    return found


async def test_a_router_is_forced_for_all_models_or_one_and_released(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        client = rig.operator
        before = await call(client.routers)
        assert [(one["model"], one["name"], one["source"]) for one in before["models"]] == [("*", "default", "configured")]
        assert {"default", "least-loaded", "round-robin", "prefix-aware"} <= {one["name"] for one in before["available"]}
        assert await instances_of(rig, 4) == ["sim-1"] * 4, "ties go to the order of the configuration"
        forced = await call(client.force_router, "round-robin", author="ana", reason="a test")
        assert [(one["model"], one["name"], one["source"]) for one in forced["models"]] == [("*", "round-robin", "operator")]
        assert sorted(await instances_of(rig, 4)) == ["sim-1", "sim-1", "sim-2", "sim-2"]
        await call(client.force_router, "prefix-aware", model=MODEL, weights={"prefix": 2.5}, reason="chats")
        shown = {one["model"]: one for one in (await call(client.routers))["models"]}
        assert shown[MODEL]["weights"] == {"queue": 1.0, "prefix": 2.5}
        assert (await call(client.release_router, MODEL))["released"]
        assert (await call(client.release_router))["released"]
        assert not (await call(client.release_router))["released"]
        assert await instances_of(rig, 2) == ["sim-1"] * 2
        events = [one for one in await call(client.events) if one["kind"] == "router"]
    assert [(one["subject"], one["before"], one["after"], one["source"]) for one in events] == [
        ("*", "default", "round-robin", "operator"),
        (MODEL, "as other models", "prefix-aware:prefix=2.5", "operator"),
        (MODEL, "prefix-aware:prefix=2.5", "as other models", "operator"),
        ("*", "round-robin", "default", "configured"),
    ]
    assert "ana" in events[0]["reason"]


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"router": "nope"}, "$.routers.*", "router 'nope' is unknown; allowed: default"),
        ({"router": "default", "weights": {"nope": 1}}, "$.routers.*", "scorer 'nope' is unknown"),
        ({"router": "default", "weights": {"queue": -1}}, "$.routers.*.weights.queue", "number from 0 to 1000"),
        ({"router": "default", "model": ""}, "$.model", "1 to 256 characters"),
        ({"routr": "default"}, "$.routr", "allowed"),
    ],
)
async def test_what_cannot_be_forced_is_refused_with_its_path(tmp_path: Path, body, path, words):
    async with running(tmp_path) as rig:
        answer = await rig.admin("POST", "/admin/routers", body)
    assert answer.status == 400
    assert answer.json["error"]["path"] == path
    assert words in answer.json["error"]["message"]


async def test_an_override_file_holds_a_router_and_a_wrong_one_changes_nothing(tmp_path: Path):
    document = {"version": 1, "author": "ana", "reason": "night", "expires": None, "routers": {"*": {"name": "least-loaded"}}}
    async with running(tmp_path) as rig:
        await call(rig.operator.put_override, "night", document)
        assert (await call(rig.operator.routers))["models"][0]["name"] == "least-loaded"
        held = await call(rig.operator.overrides)
        assert held["overrides"][0]["document"]["routers"] == {"*": {"name": "least-loaded", "weights": {}}}
        assert held["forced"] == ["routers"]
        (rig.overrides / "wrong.json").write_text('{"version": 1, "author": "a", "reason": "r", "expires": null, "routers": {"*": {}}}')
        await eventually(lambda: "wrong.json" in rig.gateway.watch.errors)
        assert "$.routers.*: the key `name` is missing" in rig.gateway.watch.errors["wrong.json"]
        assert (await call(rig.operator.routers))["models"][0]["name"] == "least-loaded"


async def test_the_same_beginning_goes_to_the_same_instance_and_explain_says_why(tmp_path: Path):
    settings = SchedulerConfig(routing="prefix-aware", tick_s=0.02)
    sims = [await start_sim(name) for name in ("sim-1", "sim-2")]
    # Of an engine that does not say whether it caches prefixes it is believed.
    engines = [EngineConfig(name=sim.name, url=sim.url, kind="openai", n_run_max=16) for sim in sims]
    async with running(tmp_path, sims=sims, engines_config=engines, scheduler=settings) as rig:
        blocker = asyncio.create_task(rig.post(chat("busy", tokens=3000)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        assert await instances_of(rig, 2, LONG + "And my balance?") == ["sim-2"] * 2
        blocker.cancel()
        await eventually(lambda: rig.gateway.scheduler.in_flight("sim-1") == 0)
        assert await instances_of(rig, 1, "something else") == ["sim-1"]
        answer = await rig.post(chat(LONG + "And another thing", tokens=2))
        told = (await rig.admin("GET", f"/admin/requests/{answer.headers['x-request-id']}")).json
    (sent,) = told["attempts"]
    assert sent["instance"] == "sim-2"
    by_name = {one["scorer"]: one for one in sent["scores"]}
    assert by_name["prefix"]["score"] > 0.8
    assert by_name["queue"] == {"scorer": "queue", "score": 1 - 1 / 16, "weight": 1.0}
    assert "scored queue 0.94 x 1, prefix 0." in page(told)


async def test_blocks_of_prompts_are_computed_only_where_a_router_reads_them(tmp_path: Path):
    async with running(tmp_path, engines=2, scheduler=SchedulerConfig(routing="least-loaded")) as rig:
        assert rig.gateway.manager.block_salt("a") is None
        await call(rig.operator.force_router, "default", reason="r")
        assert rig.gateway.manager.block_salt("a") == "a"
        await call(rig.operator.force_router, "default", weights={"prefix": 0}, reason="r")
        assert rig.gateway.manager.block_salt("a") is None
    async with running(tmp_path / "one", scheduler=SchedulerConfig(routing="prefix-aware")) as rig:
        assert rig.gateway.manager.block_salt("a") is None, "there is no choice"


async def test_a_router_that_fails_is_told_in_an_event_and_stops_nothing(tmp_path: Path):
    class Lost:
        name = "lost"

        def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterable[Choice]:
            return [Choice("gone", "it was there")]

    async with running(tmp_path, engines=2, scheduler=SchedulerConfig(tick_s=0.02)) as rig:
        rig.gateway.scheduler.set_router("*", Lost())
        assert await instances_of(rig, 2) == ["sim-1"] * 2
        await eventually(lambda: any(one["kind"] == "router.fault" for one in rig.gateway.event_log.newest(50)))
        event = next(one for one in rig.gateway.event_log.newest(50) if one["kind"] == "router.fault")
        assert event["severity"] == "error"
        assert event["reason"] == f"router 'lost' of model '{MODEL}' named 'gone'; allowed: sim-1, sim-2"
        assert (await call(rig.operator.routers))["faults"] == 2


def test_a_configuration_names_routers_by_model_and_a_mistake_names_its_place(tmp_path: Path):
    file = tmp_path / "hmas.yaml"
    models = "models: {big: {routing: prefix-aware}, odd: {routing_weights: {kv: 1}}}"
    file.write_text("scheduler: {routing: default, routing_weights: {prefix: 0.6}}\n" + models + "\n")
    config = load_config(str(file), {})
    assert routers(config) == {"*": "default:prefix=0.6", "big": "prefix-aware", "odd": "default:prefix=0.6:kv=1"}
    for text, words in (
        ("models: {big: {routing: nope}}", r"models.big.routing: got 'nope' \(a text\); allowed: one of"),
        ("models: {big: {routing: round-robin, routing_weights: {queue: 1}}}", "models.big: router 'round-robin' is not made of scorers"),
        ("scheduler: {routing_weights: {nope: 1}}", "scheduler.routing_weights: router 'default': scorer 'nope' is unknown"),
        ("scheduler: {routing_weights: {queue: 2000}}", "scheduler.routing_weights.queue"),
    ):
        file.write_text(text + "\n")
        with pytest.raises(ConfigError, match=words):
            load_config(str(file), {})


async def test_a_request_bound_at_arrival_waits_for_its_instance_and_says_so(tmp_path: Path):
    settings = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02, routing="round-robin", binding="arrival")
    async with running(tmp_path, engines=2, scheduler=settings) as rig:
        long = [asyncio.create_task(rig.post(chat("long", tokens=3000))) for _ in range(2)]
        await eventually(lambda: all(sim.model.running == 1 for sim in rig.sims))
        waiting = []
        for number in range(3):  # one after another: requests sent together arrive in any order
            waiting.append(asyncio.create_task(rig.post(chat("waits", tokens=4), headers={"x-request-id": f"w{number}"})))
            await eventually(lambda: rig.gateway.scheduler.queued == len(waiting))
        told = (await rig.admin("GET", "/admin/requests/w1")).json
        assert told["queue"]["bound_to"] == "sim-2"
        assert " since it arrived, in the queue of sim-2, 0 ahead of it now" in page(told | {"tenant_now": None})
        engines = await call(rig.operator.engines)
        assert {one["name"]: one["queued"] for one in engines} == {"sim-1": 2, "sim-2": 1}
        assert "waiting for it" in engine_table(engines)
        # The engine stops taking requests: what waited for it goes to the other one.
        await call(rig.operator.drain_engine, "sim-2", author="ana", reason="a test")
        long[0].cancel()
        await asyncio.gather(*waiting)
        told = (await rig.admin("GET", "/admin/requests/w1")).json
        assert (told["attempts"][0]["instance"], told["queue"]["bound_to"]) == ("sim-1", None)
        assert "bound to it at arrival: next of 1 in turn" in told["attempts"][0]["reason"]
        long[1].cancel()
