"""What the public port takes: where the key is, what a body is said to be, no model, and what its answer tells of targets and time."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from gateway_kit import FAST, MODEL, TWO_TENANTS, chat, gateway_config, running, start_sim

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.requests import completion
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.relay import relay

GUARDED: dict[str, Any] = {"tenants": TWO_TENANTS, "gateway": gateway_config(no_auth=False)}


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"x-api-key": "sk-acme"}, "acme"),
        ({"api-key": "sk-acme"}, "acme"),
        ({"x-api-key": " sk-acme "}, "acme"),
        ({"authorization": "Bearer sk-zeta", "x-api-key": "sk-acme"}, "zeta"),
        ({"x-api-key": "sk-zeta", "api-key": "sk-acme"}, "zeta"),
        ({"authorization": "Basic x", "x-api-key": "sk-acme"}, None),
        ({"x-api-key": ""}, None),
        ({"api-key": "wrong"}, None),
    ],
)
def test_the_key_has_three_places(headers: dict[str, str], tenant: str | None):
    auth = Authenticator(TWO_TENANTS, no_auth=False)
    if tenant is not None:
        assert auth.identify(headers).tenant == tenant
        return
    with pytest.raises(ApiError) as caught:
        auth.identify(headers)
    assert caught.value.status == 401


async def test_a_key_in_x_api_key_serves_and_stays_here(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig:
        assert (await rig.post(chat(), headers={"x-api-key": "sk-acme"})).status == 200
        assert (await rig.get("/v1/models", headers={"api-key": "sk-zeta"})).status == 200
        assert "x-api-key" not in rig.sims[0].heads[0]


PATHS = {
    "/v1/chat/completions": chat(stream=False),
    "/v1/responses": {"model": MODEL, "input": "x", "max_output_tokens": 3},
    "/v1/embeddings": {"model": MODEL, "input": "x"},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; charset=utf-8"}, 200),
        ({"content-type": "application/vnd.api+json"}, 200),
        ({"content-encoding": "identity"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-encoding": "br", "content-type": "application/json"}, 415),
    ],
)
async def test_bodies_are_json_and_not_compressed(tmp_path: Path, path: str, headers: dict[str, str], status: int):
    async with running(tmp_path) as rig:
        answer = await rig.post(PATHS[path], path, headers=headers)
        assert len(rig.sims[0].bodies) == (status == 200)
        assert rig.balanced()
    assert answer.status == status
    if status == 415:
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["param"] in headers
        assert headers[answer.error["param"]] in answer.error["message"]


async def test_a_body_without_a_content_type_is_read(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(chat(stream=False), headers={"content-type": ""})
        assert answer.status == 200


@pytest.mark.parametrize("path", PATHS)
async def test_a_byte_order_mark_is_dropped(tmp_path: Path, path: str):
    body = orjson.dumps(PATHS[path])
    async with running(tmp_path) as rig:
        assert (await rig.post(b"\xef\xbb\xbf" + body, path)).status == 200
        assert rig.sims[0].bodies == [body]
        assert (await rig.post(b"\xef\xbb\xbf\xef\xbb\xbf" + body, path)).status == 400


@pytest.mark.parametrize("path", PATHS)
async def test_a_slash_at_the_end_of_a_path_is_ignored(tmp_path: Path, path: str):
    async with running(tmp_path) as rig:
        assert (await rig.post(PATHS[path], path + "/")).status == 200
        listed, one = await rig.get("/v1/models/"), await rig.get(f"/v1/models/{MODEL}/")
        nothing = await rig.get("/")
    assert (listed.json["object"], one.json["id"]) == ("list", MODEL)
    assert (nothing.status, nothing.error["code"]) == (404, "unknown_path")


@pytest.mark.parametrize(("status", "kind"), [(code, "invalid_request_error") for code in (413, 415, 417, 431)])
def test_types_of_errors_are_those_of_openai(status: int, kind: str):
    assert orjson.loads(ApiError(status, "code", "text").body())["error"]["type"] == kind


NAMELESS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/embeddings": {"input": "hi"},
}


@pytest.mark.parametrize("named", [{}, {"model": ""}, {"model": None}])
@pytest.mark.parametrize("path", NAMELESS)
async def test_a_request_without_a_model_takes_the_only_one(tmp_path: Path, path: str, named: dict[str, Any]):
    async with running(tmp_path, engines=2) as rig:
        answer = await rig.post(NAMELESS[path] | named, path)
        (body,) = [body for sim in rig.sims for body in sim.bodies]
    assert answer.status == 200
    assert orjson.loads(body) == NAMELESS[path] | {"model": MODEL}


@pytest.mark.parametrize("path", NAMELESS)
async def test_of_several_models_one_has_to_be_named(tmp_path: Path, path: str):
    sims = [await start_sim("sim-1"), await start_sim("sim-2", model="other")]
    async with running(tmp_path, sims=sims) as rig:
        answer = await rig.post(NAMELESS[path], path)
        others = [await rig.post({**NAMELESS[path], "model": model}, path) for model in (None, "", 5)]
    for refused in (answer, *others):
        assert (refused.status, refused.error.get("param")) == (400, "model")
        assert "GET /v1/models" in refused.error["message"]


async def test_a_raised_target_is_told(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig:
        acme = {"x-api-key": "sk-acme"}
        low = await rig.post(chat(), headers={**acme, "x-slo-ttft-ms": "100", "x-slo-tpot-ms": "40"})
        high = await rig.post(chat(), headers={**acme, "x-slo-ttft-ms": "900"})
        none = await rig.post(chat(), headers=acme)
    assert low.headers["x-hmas-ttft-target-ms"] == "500"
    assert "x-hmas-tpot-target-ms" not in low.headers, "this one was high enough"
    for answer in (high, none):
        assert "x-hmas-ttft-target-ms" not in answer.headers


async def overhead_ms(rig: Any, **kwargs: Any) -> float:
    answer = await rig.post(chat(**kwargs))
    assert answer.status == 200
    return float(answer.headers["x-hmas-overhead-ms"])


@pytest.mark.parametrize("stream", [True, False])
async def test_the_overhead_is_all_that_the_gateway_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool):
    """From the head of the request to the first byte of the answer, also while the answer of the engine waits to be passed on."""
    identify, deliver = Authenticator.identify, relay

    def slow_identify(self: Authenticator, headers: Any) -> Any:
        time.sleep(0.04)
        return identify(self, headers)

    async def late_relay(*args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0.1)
        await deliver(*args, **kwargs)

    async with running(tmp_path) as rig:
        assert await overhead_ms(rig, stream=stream, tokens=1) < 40.0
        monkeypatch.setattr(Authenticator, "identify", slow_identify)
        assert await overhead_ms(rig, stream=stream, tokens=1) >= 40.0
        monkeypatch.setattr(Authenticator, "identify", identify)
        monkeypatch.setattr(completion, "relay", late_relay)
        assert await overhead_ms(rig, stream=stream, tokens=1) >= 40.0


@pytest.mark.parametrize("stream", [True, False])
async def test_the_time_of_engine_and_queue_is_no_overhead(tmp_path: Path, stream: bool):
    slow = msgspec.structs.replace(FAST, step_ms=100.0)
    async with running(tmp_path, profile=slow, scheduler=SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)) as rig:
        found = await asyncio.gather(*(overhead_ms(rig, text=f"n {number}", stream=stream, tokens=1) for number in range(3)))
    assert max(found) < 80.0


async def test_a_client_that_sends_its_body_late_is_no_overhead(tmp_path: Path):
    body = orjson.dumps(chat(stream=False))
    async with running(tmp_path) as rig:
        host, port = rig.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body))
        await asyncio.sleep(0.15)
        writer.write(body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        writer.close()
    (line,) = [line for line in head.split("\r\n") if line.startswith("x-hmas-overhead-ms")]
    assert float(line.partition(":")[2]) < 100.0
