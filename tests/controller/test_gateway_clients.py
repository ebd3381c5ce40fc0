"""Clients that nobody here wrote: the `openai` package and `curl`."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from gateway_kit import MODEL, TWO_TENANTS, Rig, chat, gateway_config, running
from typing_kit import known

GUARDED: dict[str, Any] = {"tenants": TWO_TENANTS, "gateway": gateway_config(no_auth=False)}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES: Any = [{"role": "user", "content": "hello"}]


def client(rig: Rig, key: str = "sk-acme") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key=key, max_retries=0)


async def test_openai_chat(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig, client(rig) as api:
        whole = await api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6)
        stream = await api.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, stream=True, stream_options={"include_usage": True}, logprobs=True
        )
        chunks = [chunk async for chunk in stream]
        text = await api.completions.create(model=MODEL, prompt="once upon", max_tokens=4)
    assert known(whole.usage).completion_tokens <= 6
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert known(chunks[-1].usage).completion_tokens <= 6
    assert any(choice.logprobs for chunk in chunks for choice in chunk.choices)
    assert text.choices[0].text


async def test_openai_tools(tmp_path: Path):
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    async with running(tmp_path, **GUARDED) as rig, client(rig) as api:
        whole = await api.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice)
        stream = await api.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice, stream=True)
        calls = [call async for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert [call.type == "function" and call.function.name for call in known(whole.choices[0].message.tool_calls)] == ["get_weather"]
    assert known(calls[0].function).name == "get_weather"


async def test_openai_models_and_embeddings(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig, client(rig) as api:
        models = [model.id async for model in api.models.list()]
        one = await api.models.retrieve(MODEL)
        embedding = await api.embeddings.create(model=MODEL, input="text", encoding_format="float")
    assert models == [one.id] == [MODEL]
    assert embedding.data[0].embedding


async def test_openai_errors(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig:
        async with client(rig, "wrong") as api:
            with pytest.raises(openai.AuthenticationError, match="API key"):
                await api.chat.completions.create(model=MODEL, messages=MESSAGES)
        async with client(rig) as api:
            with pytest.raises(openai.NotFoundError, match=MODEL):
                await api.chat.completions.create(model="gpt-99", messages=MESSAGES)
            with pytest.raises(openai.BadRequestError, match="messages"):
                await api.chat.completions.create(model=MODEL, messages=[])
            forged = {"x-gateway-inference-fairness-id": "zeta"}
            with pytest.raises(openai.PermissionDeniedError, match="zeta"):
                await api.chat.completions.create(model=MODEL, messages=MESSAGES, extra_headers=forged)


async def test_openai_sees_an_engine_break_off(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig, client(rig) as api:
        async with rig.session.post(rig.sims[0].url + "/sim/fault", json={"fault": "half-sse:3"}) as response:
            assert response.status == 200
        stream = await api.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, extra_body={"sim": {"output_tokens": 9}})
        with pytest.raises(openai.APIError, match="ended in the middle"):
            [chunk async for chunk in stream]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl(tmp_path: Path):
    async def curl(*args: str) -> bytes:
        process = await asyncio.create_subprocess_exec("curl", "-sS", "-N", *args, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out

    async with running(tmp_path, **GUARDED) as rig:
        url, body = rig.url + "/v1/chat/completions", orjson.dumps(chat(tokens=4)).decode()
        key = ("-H", "Authorization: Bearer sk-acme")
        as_json = ("-H", "Content-Type: application/json")
        streamed = await curl("-i", url, *key, *as_json, "-d", body)
        http10 = await curl("--http1.0", url, *key, *as_json, "-d", body)
        # -d alone sends a form's content type, which a page of another site could send, too.
        form = await curl(url, *key, "-d", body)
        large = await curl(url, *key, *as_json, "-d", orjson.dumps(chat("word " * 3000)).decode())
        refused = await curl("-w", "%{http_code}", url, "-d", body)
        models = await curl(rig.url + "/v1/models", *key)
    head, _, rest = streamed.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert http10.endswith(b"data: [DONE]\n\n")
    assert large.endswith(b"data: [DONE]\n\n")
    assert orjson.loads(form)["error"]["message"] == "content-type is 'application/x-www-form-urlencoded'; allowed: application/json"
    assert refused.endswith(b"401")
    assert orjson.loads(models)["data"][0]["id"] == MODEL
