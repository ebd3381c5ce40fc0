"""The vLLM adapter and the length processor against a real vLLM.

What to set for one: see tests/engines/vllm_server.py.
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from typing_kit import known

from hmas.engines.registry import connect_engine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

CHAT = "/v1/chat/completions"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def engine(vllm_url):
    engine = await connect_engine(name="v1", url=vllm_url)
    yield engine
    await engine.close()


async def served_model(engine) -> str:
    _status, data = await engine.call("GET", "/v1/models")
    return orjson.loads(data)["data"][0]["id"]


async def ask(engine, *, tokens: int | None = None, request_id: str = "request-0001", **fields):
    document = {"model": await served_model(engine), "messages": [{"role": "user", "content": "Tell me about scheduling."}], "stream": True}
    if tokens is not None:
        document["vllm_xargs"] = {"hmas_output_tokens": tokens}
    return await engine.send(CHAT, orjson.dumps(document | fields), {}, request_id=request_id)


async def events_of(response) -> list:
    body = b"".join([chunk async for chunk in response.chunks()])
    await response.close()
    lines = body.decode().removesuffix("\n\n").split("\n\n")
    return [line if line == "data: [DONE]" else orjson.loads(line.removeprefix("data: ")) for line in lines]


async def until_running(engine, count: int):
    deadline_s = time.monotonic() + 20
    while (snapshot := await engine.snapshot(0.0)).running != count:
        assert time.monotonic() < deadline_s, f"running stays at {snapshot.running}"
    return snapshot


async def test_what_it_says_about_itself(engine):
    assert engine.capabilities.kind == "vllm"
    assert engine.capabilities.version
    assert engine.capabilities.load_signals
    open_for_development = (await engine.call("GET", "/server_info"))[0] == 200
    assert engine.capabilities.abort == open_for_development
    snapshot = await engine.snapshot(77.0)
    assert (snapshot.healthy, snapshot.taken_s) == (True, 77.0)
    assert snapshot.kv_usage is not None
    assert snapshot.kv_capacity_tokens is not None
    assert snapshot.kv_capacity_tokens > 4096
    assert isinstance(snapshot.caches_prefixes, bool)
    assert (snapshot.max_num_seqs is not None) == open_for_development


@pytest.mark.parametrize("tokens", [1, 2, 37])
async def test_a_forced_length_is_the_length(engine, tokens):
    before = await engine.snapshot(0.0)
    response = await ask(engine, tokens=tokens, temperature=0.0, stream_options={"include_usage": True})
    assert response.status == 200
    events = await events_of(response)
    assert events[-1] == "data: [DONE]"
    assert events[-2]["usage"]["completion_tokens"] == tokens
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert events[0]["id"] == "chatcmpl-request-0001"
    after = await engine.snapshot(0.0)
    assert after.generation_tokens_total - before.generation_tokens_total == tokens


async def test_many_lengths_at_once_and_others_left_alone(engine):
    async def length(tokens: int | None, **fields) -> int:
        response = await ask(engine, tokens=tokens, stream=False, **fields)
        return orjson.loads(b"".join([chunk async for chunk in response.chunks()]))["usage"]["completion_tokens"]

    wanted = [1, 60, 7, 31, 2, 45, 18, 9, 26, 3, 54, 12]
    free = length(None, max_tokens=20, ignore_eos=True)
    cut = length(50, max_tokens=5)
    got = await asyncio.gather(*(length(tokens) for tokens in wanted), free, cut)
    assert list(got) == [*wanted, 20, 5]


@pytest.mark.parametrize("fields", [{"tokens": 0}, {"tokens": 5, "ignore_eos": True}, {"tokens": 5, "min_tokens": 9}])
async def test_a_length_that_cannot_be_is_refused(engine, fields):
    response = await ask(engine, stream=False, **fields)
    assert response.status == 400
    assert b"hmas_output_tokens" in b"".join([chunk async for chunk in response.chunks()])


async def test_closing_the_connection_frees_the_engine(engine):
    response = await ask(engine, tokens=3000)
    async for _ in response.chunks():
        break
    snapshot = await until_running(engine, 1)
    assert snapshot.kv_usage
    await response.close()
    await until_running(engine, 0)


async def test_abort_says_whether_it_reaches_the_engine(engine):
    response = await ask(engine, tokens=3000, request_id="request-0002")
    await until_running(engine, 1)
    assert await engine.abort("request-0002") == engine.capabilities.abort
    if engine.capabilities.abort:
        events = await events_of(response)
        assert (events[-1], events[-2]["choices"][0]["finish_reason"]) == ("data: [DONE]", "abort")
    await response.close()
    await until_running(engine, 0)


async def test_a_prompt_beyond_the_context_is_its_400(engine):
    response = await ask(engine, messages=[{"role": "user", "content": "word " * 20_000}])
    assert response.status == 400
    assert b"maximum context length" in b"".join([chunk async for chunk in response.chunks()])


LOAD_GENERATOR = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What `vllm bench serve` runs; the CPU build's own command line does not find its version."""


def test_vllm_bench_serve_through_a_gateway_with_all_agents(vllm_url, tmp_path):
    python, model = (os.environ.get(f"HMAS_VLLM_{name}") for name in ("PYTHON", "MODEL"))
    if not (python and model):
        pytest.skip("needs vLLM's own load generator: set HMAS_VLLM_PYTHON and HMAS_VLLM_MODEL")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HMAS_STATE_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    up = [sys.executable, "-m", "hmas", "up", "--json", "--no-auth", "--port", "0", "--admin-port", "0", "--engine", f"vllm={vllm_url}"]
    with (tmp_path / "up.log").open("wb") as log, subprocess.Popen(up, stdout=subprocess.PIPE, stderr=log, env=environment) as gateway:
        try:
            text = b""
            for line in known(gateway.stdout):
                text += line
                if line == b"}\n":
                    break
            result = tmp_path / "result.json"
            command = [str(ROOT / python), "-c", LOAD_GENERATOR, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
            command += ["--base-url", orjson.loads(text)["gateway"], "--model", "tiny", "--tokenizer", str(ROOT / model)]
            command += ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "32", "--num-prompts", "40"]
            command += ["--request-rate", "8", "--goodput", "ttft:20000", "tpot:1000", "--save-result", "--result-filename", str(result)]
            ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
            assert ran.returncode == 0, ran.stderr[-2000:]
        finally:
            gateway.terminate()
            gateway.wait(60)
    report = orjson.loads(result.read_bytes())
    assert (report["completed"], report["failed"], report["total_output_tokens"]) == (40, 0, 40 * 32)
    assert report["request_goodput"] > 0
