"""Engines that fail, break off or answer nonsense: a named error, never a crash, never a lost request."""

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import orjson
import pytest
from aiohttp import web
from gateway_kit import MODEL, Answer, Rig, Sim, chat, eventually, gateway_config, make_config, running, start_sim
from hmas_lab.memory_bus import MemoryBus
from typing_kit import known

from hmas.cli.engines import engine_table
from hmas.controller.config.schema import EngineConfig, SchedulerConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import Message, RequestNotice
from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.instances import served_models
from hmas.controller.gateway.process import Started, serve
from hmas.controller.gateway.requests import manager
from hmas.controller.runtime.clock import SystemClock


async def set_fault(rig: Rig, sim: Sim, fault: str | None, **fields: Any) -> None:
    async with rig.session.post(sim.url + "/sim/fault", json={"fault": fault, **fields}) as response:
        assert response.status == 200


async def outcome(rig: Rig) -> tuple[OutcomeKind, int, str]:
    (completion,) = await rig.completions()
    assert rig.balanced()
    return completion.outcome, completion.status, completion.reason


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("html", "engine_protocol_error", "text/html"),
        ("garbage", "engine_protocol_error", "event stream"),
        ("reset-before", "engine_unavailable", "engine sim-1"),
    ],
)
async def test_one_engine_that_answers_nonsense_gets_502(tmp_path: Path, fault: str, code: str, says: str, stream: bool):
    async with running(tmp_path) as rig:
        await set_fault(rig, rig.sims[0], fault)
        answer = await rig.post(chat(stream=stream))
        kind, status, reason = await outcome(rig)
    assert (answer.status, answer.error["code"]) == (502, code)
    assert says in answer.error["message"]
    assert "retry-after" in answer.headers
    assert (kind, status) == (OutcomeKind.FAILED, 502)
    assert says in reason


@pytest.mark.parametrize("fault", ["html", "garbage", "reset-before", "status:500", "status:503", "reset-after:0", "half-sse:0"])
async def test_another_engine_takes_over_before_the_first_token(tmp_path: Path, fault: str):
    async with running(tmp_path, engines=2) as rig:
        for sim in rig.sims:
            await set_fault(rig, sim, None)
        await set_fault(rig, rig.sims[0], fault)
        answers = [await rig.post(chat(f"number {number}", tokens=3)) for number in range(4)]
        completions = await rig.completions()
        assert rig.balanced()
        bodies = [body for sim in rig.sims for body in sim.bodies]
    assert [answer.status for answer in answers] == [200] * 4
    assert all(answer.events[-1] == "[DONE]" for answer in answers)
    assert {completion.instance for completion in completions} == {"sim-2"}
    assert len(bodies) > 4, "some were sent twice"


async def test_only_one_retry(tmp_path: Path):
    async with running(tmp_path, engines=3) as rig:
        for sim in rig.sims:
            await set_fault(rig, sim, "html")
        answer = await rig.post(chat())
        assert sum(len(sim.bodies) for sim in rig.sims) == 2
        assert rig.balanced()
    assert answer.status == 502


async def test_the_engines_own_error_document_is_passed_on(tmp_path: Path):
    async with running(tmp_path) as rig:
        await set_fault(rig, rig.sims[0], "status:500")
        answer = await rig.post(chat())
        kind, status, _ = await outcome(rig)
    assert answer.status == 500
    assert "on demand" in answer.body.decode()
    assert (kind, status) == (OutcomeKind.FAILED, 500)


@pytest.mark.parametrize("fault", ["reset-after:3", "half-sse:3"])
async def test_a_break_after_the_first_token_becomes_an_error_event(tmp_path: Path, fault: str):
    """A second engine does not help any more: the client has seen tokens."""
    async with running(tmp_path, engines=2) as rig:
        for sim in rig.sims:
            await set_fault(rig, sim, fault)
        answer = await rig.post(chat(tokens=20))
        kind, _, _ = await outcome(rig)
    assert answer.status == 200
    *tokens, error, done = answer.events
    assert done == "[DONE]"
    assert error["error"]["type"] == "engine_error"
    assert "engine sim-" in error["error"]["message"]
    assert len(tokens) == 4, "the role and three tokens, and no half event"
    assert kind is OutcomeKind.FAILED


async def test_half_an_answer_that_is_not_streamed(tmp_path: Path):
    async with running(tmp_path) as rig:
        await set_fault(rig, rig.sims[0], "half-sse:1")
        answer = await rig.post(chat(stream=False))
        assert rig.balanced()
    assert (answer.status, answer.error["code"]) == (502, "engine_protocol_error")


async def test_silence_in_the_middle_counts_as_broken(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(engine_idle_timeout_s=0.2)) as rig:
        await set_fault(rig, rig.sims[0], "stall:2")
        answer = await rig.post(chat(tokens=20))
        kind, _, reason = await outcome(rig)
        await eventually(lambda: rig.sims[0].model.idle)
    assert "silent" in answer.events[-2]["error"]["message"]
    assert kind is OutcomeKind.FAILED
    assert "silent" in reason


async def test_an_engine_killed_under_load_loses_nobody(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        work = [asyncio.create_task(rig.post(chat(f"request {number}", tokens=60))) for number in range(24)]
        await eventually(lambda: rig.sims[0].model.running > 4 and rig.gateway.scheduler.counts().queued == 0)
        await rig.sims[0].kill()
        answers = await asyncio.gather(*work)
        completions = await rig.completions()
        assert rig.balanced()
    whole = [answer for answer in answers if answer.status == 200 and not any("error" in event for event in answer.events[:-1])]
    broken = [answer for answer in answers if answer not in whole]
    assert len(completions) == len(answers) == 24
    assert len({completion.request_id for completion in completions}) == 24
    assert broken, "those whose tokens had begun to flow"
    assert all(answer.events[-1] == "[DONE]" for answer in broken)
    assert sum(completion.outcome is OutcomeKind.COMPLETED for completion in completions) == len(whole) > 0


async def test_a_dead_engine_is_shown_as_down_and_clients_learn_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its circuit is open, too, since all that it worked on has failed: but it does not answer at all, and that is what counts."""
    monkeypatch.setattr(served_models, "ACCEPT_GRACE_S", 0.05)
    async with running(tmp_path) as rig:
        work = [asyncio.create_task(rig.post(chat(f"request {number}", tokens=3000))) for number in range(8)]
        await eventually(lambda: rig.sims[0].model.running == 8)
        port = str(rig.sims[0].port)
        await rig.sims[0].kill()
        answers = await asyncio.gather(*work)
        assert rig.events("engine.circuit")
        await eventually(lambda: not rig.gateway.fleet.instances["sim-1"].answers)
        listed = (await rig.admin("GET", "/admin/engines")).json["engines"]
        await eventually(lambda: rig.gateway.fleet.down_for_s(MODEL) > 0.05)
        refused = await rig.post(chat("refused"))
        health = [(event["before"], event["after"]) for event in rig.events("engine.health")]
    assert "down for" in engine_table(listed)
    assert "circuit" not in engine_table(listed)
    assert health == [("", "up"), ("up", "down")]
    assert (refused.status, refused.error["code"]) == (503, "no_healthy_engine")
    assert "sim-1" in refused.error["message"]
    told = b"".join(answer.body for answer in [*answers, refused]).decode()
    assert f":{port}" not in told
    assert f", {port}" not in told
    assert "127.0.0.1" not in told


async def test_no_engine_at_all_then_one_comes(tmp_path: Path):
    late = await start_sim("sim-1")
    await late.runner.cleanup()
    async with running(tmp_path, sims=[late]) as rig:
        ready = await rig.get("/ready")
        answer = await rig.post(chat())
        assert (ready.status, ready.json["reasons"]) == (503, ["no healthy engine"])
        assert (answer.status, answer.error["code"]) == (503, "no_healthy_engine")
        assert answer.headers["retry-after"]
        rig.sims[0] = await start_sim("sim-1", port=late.port)
        await eventually(lambda: rig.gateway.fleet.instances["sim-1"].healthy)
        assert (await rig.get("/ready")).status == 200
        assert (await rig.post(chat())).status == 200
        health = rig.events("engine.health")
        await rig.sims[0].runner.cleanup()
    assert [(event["before"], event["after"]) for event in health] == [("", "down"), ("down", "up")]


async def test_requests_wait_out_an_engines_restart(tmp_path: Path):
    async with running(tmp_path, scheduler=SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)) as rig:
        first = asyncio.create_task(rig.post(chat(tokens=3000)))
        await eventually(lambda: rig.sims[0].model.running)
        second = asyncio.create_task(rig.post(chat("second", tokens=3)))
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 1)
        port = rig.sims[0].port
        await rig.sims[0].kill()
        broken = await first
        assert "error" in broken.events[-2]
        rig.sims.append(await start_sim("sim-1", port=port))
        answer = await second
        assert rig.balanced()
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"


async def test_an_engine_that_is_no_engine(tmp_path: Path):
    """Something that answers HTML on every path, health and models too."""
    async with running(tmp_path) as rig:
        await set_fault(rig, rig.sims[0], "html", everywhere=True)
        await eventually(lambda: not rig.gateway.fleet.instances["sim-1"].healthy)
        detail = known(rig.gateway.fleet.instances["sim-1"].snapshot).detail
        assert (await rig.get("/ready")).status == 503
    assert "sim-1" in detail


async def tried_once(rig: Rig, requests: int) -> tuple[asyncio.Task[Answer], list[asyncio.Task[Answer]]]:
    """One request that keeps the second engine busy, and some that the first one has failed and that wait for the second."""
    rig.gateway.scheduler.set_draining("sim-1", draining=True)
    blocker = asyncio.create_task(rig.post(chat("long", tokens=3000)))
    await eventually(lambda: rig.sims[1].model.running)
    await set_fault(rig, rig.sims[0], "reset-before")
    rig.gateway.scheduler.set_draining("sim-1", draining=False)
    waiting = [asyncio.create_task(rig.post(chat(f"waits {number}", tokens=3))) for number in range(requests)]
    await eventually(lambda: rig.gateway.scheduler.counts().dispatched == 1 + requests and rig.gateway.scheduler.queued == requests)
    return blocker, waiting


async def test_a_stranded_retry_is_told_so(tmp_path: Path):
    """Its first engine failed, its second is drained away before its turn comes: it does not wait for its deadline."""
    async with running(tmp_path, engines=2, scheduler=SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)) as rig:
        blocker, waiting = await tried_once(rig, 2)
        fleet = rig.gateway.fleet
        with mock.patch.object(fleet, "down_for_s", wraps=fleet.down_for_s) as looked:
            assert not rig.gateway.manager.give_up_stranded()
        assert [call.args[1:] for call in looked.call_args_list] == [(frozenset({"sim-1"}),), ()], "once for both, and once for the model"
        await rig.sims[1].kill()
        answers = await asyncio.gather(*waiting)
        blocker.cancel()
        await eventually(lambda: not rig.gateway.manager.active)
    assert [(answer.status, answer.error["code"]) for answer in answers] == [(503, "no_healthy_engine")] * 2
    assert all("the first one tried failed" in answer.error["message"] for answer in answers)


async def test_of_many_requests_that_were_tried_once_each_is_looked_at_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A bounded number is looked at each time; those that an engine may still serve hide none that no engine may."""
    monkeypatch.setattr(manager, "STRANDED_LOOKED", 2)
    async with running(tmp_path, engines=2, scheduler=SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)) as rig:
        blocker, waiting = await tried_once(rig, 4)
        away = lambda model, tried=frozenset(), *, only="": 1e9 if "gone" in tried else 0.0  # noqa: E731
        for live in [live for live in rig.gateway.manager.active.values() if live.stage == "waiting"]:
            known(live.entry).tried = frozenset({"gone"})
            with mock.patch.object(rig.gateway.fleet, "down_for_s", side_effect=away):
                for _ in range(2):
                    rig.gateway.manager.give_up_stranded()
            assert live.request.id not in rig.gateway.manager.active
        answers = await asyncio.gather(*waiting)
        blocker.cancel()
        await eventually(lambda: not rig.gateway.manager.active)
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(503, "no_healthy_engine")}


async def test_embeddings_fail_over_too(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        await set_fault(rig, rig.sims[0], "reset-before")
        answers = [await rig.post({"model": MODEL, "input": "x"}, "/v1/embeddings") for _ in range(3)]
        await set_fault(rig, rig.sims[1], "html")
        await set_fault(rig, rig.sims[0], "html")
        both = await rig.post({"model": MODEL, "input": "x"}, "/v1/embeddings")
    assert [answer.status for answer in answers] == [200] * 3
    assert (both.status, both.error["code"]) == (502, "engine_error")


async def test_an_engine_without_a_key_is_a_configuration_error(tmp_path: Path):
    config = make_config([], tmp_path, engines=[EngineConfig(name="a", url="http://127.0.0.1:1", api_key_env="NO_SUCH_KEY")])
    with pytest.raises(ConfigError, match=r"engines\.a\.api_key_env"):
        await serve(config, bus=MemoryBus(), clock=SystemClock(), env={})


async def test_the_gateways_key_goes_to_the_engine(tmp_path: Path):
    """And the client's own never does."""
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("authorization"))
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}], "choices": []})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = EngineConfig(name="a", url=f"http://127.0.0.1:{runner.addresses[0][1]}", kind="openai", api_key_env="ENGINE_KEY")
    stop = asyncio.Event()
    ready: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
    config, env = make_config([], tmp_path, engines=[engine]), {"ENGINE_KEY": "inner"}
    serving = asyncio.create_task(
        serve(config, bus=MemoryBus(), clock=SystemClock(), on_ready=ready.set_result, stop=stop, env=env),
    )
    started = await ready
    async with aiohttp.ClientSession() as session:
        body = orjson.dumps(chat(stream=False))
        headers = {"authorization": "Bearer outer", "content-type": "application/json"}
        async with session.post(started.url + "/v1/chat/completions", data=body, headers=headers) as response:
            assert response.status == 200
    stop.set()
    await serving
    await runner.cleanup()
    assert set(seen) == {"Bearer inner"}


async def test_a_fault_of_our_own_is_an_outcome_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Something breaks between queueing and sending: 500, and the request does not stay in the books."""
    async with running(tmp_path) as rig:
        post = rig.bus.post

        def broken(message: Message) -> None:
            if type(message) is RequestNotice:
                raise RuntimeError("no such luck")
            post(message)

        monkeypatch.setattr(rig.bus, "post", broken)
        answer = await rig.post(chat())
        kind, status, _ = await outcome(rig)
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert (kind, status) == (OutcomeKind.FAILED, 500)
