"""Large and hostile bodies through the door: refused or passed on unchanged, beside clients that are served."""

import asyncio
import io
from pathlib import Path

import orjson
from gateway_kit import MODEL, Rig, chat, running

from hmas.controller.core.body_bounds import LARGE_BODY_BYTES

PROMPTS = b'{"model":"tiny","prompt":[' + b'"a",' * ((16 << 20) // 4 - 10) + b'"a"]}'


async def upload(rig: Rig) -> tuple[int, dict[str, str]]:
    async with rig.session.post(rig.url + "/v1/completions", data=io.BytesIO(PROMPTS)) as response:
        return response.status, orjson.loads(await response.read())["error"]


async def test_six_heavy_bodies_at_once_are_refused_while_another_client_is_served(tmp_path: Path):
    async with running(tmp_path) as rig:
        steady = asyncio.create_task(rig.post(chat(tokens=200)))
        answers = await asyncio.gather(*(upload(rig) for _ in range(6)))
        served = await steady
        assert rig.gateway.scheduler.counts().arrived == 1
        assert rig.balanced()
    assert [(status, error["code"]) for status, error in answers] == [(400, "invalid_body")] * 6
    assert "allowed: at most" in answers[0][1]["message"]
    assert served.status == 200
    assert served.events[-1] == "[DONE]"


async def test_a_large_body_reaches_the_engine_as_it_came(tmp_path: Path):
    body = b' { "model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}], "x": "%b"}\n' % (b"w\\u00f6rd " * 20_000)
    assert len(body) > LARGE_BODY_BYTES
    async with running(tmp_path) as rig:
        await asyncio.gather(*(rig.post(body) for _ in range(3)))
        clamped = await rig.post(orjson.dumps(orjson.loads(body) | {"priority": -7}))
        assert [received == body for received in rig.sims[0].bodies] == [True, True, True, False]
        assert orjson.loads(rig.sims[0].bodies[3]) == orjson.loads(body) | {"priority": 0}
        assert rig.balanced()
    assert clamped.status == 200


async def test_a_key_that_stands_twice_is_refused_on_every_path(tmp_path: Path):
    twice = b'{"model":"tiny","input":"a","prompt":"a","messages":[{"role":"user","content":"a"}],"model":"other"%b}'
    async with running(tmp_path) as rig:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            for more, param in ((b"", "model"), (b',"x":"' + b"y" * LARGE_BODY_BYTES + b'"', None)):
                answer = await rig.post(twice % more, path)
                assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "repeated_key", param)
                assert "engines differ" in answer.error["message"]
        plain = await rig.post({"model": MODEL, "input": "a"}, "/v1/embeddings")
        assert len(rig.sims[0].bodies) == 1
    assert plain.status == 200
