"""The embedded engine as a process: start, end, and mistakes on its command line."""

import asyncio
import signal
import sys

import aiohttp
import pytest
from typing_kit import known

from hmas.controller.runtime.ports import free_port

pytestmark = pytest.mark.slow


async def launch(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "hmas", "run", "engine", *arguments, stderr=asyncio.subprocess.PIPE)


async def test_sigterm_lets_a_running_stream_end():
    url = f"http://127.0.0.1:{(port := free_port())}"
    process = await launch("--port", str(port), "--name", "one", "--model", "m", "--profile", "demo-small")
    async with aiohttp.ClientSession() as session:
        for _ in range(300):
            try:
                async with session.get(f"{url}/health") as response:
                    assert response.status == 200
                break
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
        document = {"messages": [{"role": "user", "content": "x"}], "stream": True, "sim": {"output_tokens": 20}}
        async with session.post(f"{url}/v1/chat/completions", json=document) as response:
            first = await response.content.readany()
            process.send_signal(signal.SIGTERM)
            body = first + await response.read()
    assert body.count(b'"content":" ') == 20
    assert body.endswith(b"data: [DONE]\n\n")
    assert await asyncio.wait_for(process.wait(), 10) == 0
    rest = await known(process.stderr).read()
    assert b"stopping" in rest
    assert b"Traceback" not in rest


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--profile", "huge"), "profile 'huge' is unknown; allowed: a100-qwen3-8b, demo-small"),
        (("--speed", "0"), "0.0 is not in the range"),
        (("--host", "203.0.113.1"), "cannot listen"),
    ],
)
async def test_mistakes_are_named(arguments, word):
    process = await launch("--port", "0", *arguments)
    _out, text = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode in (1, 2)
    assert word in text.decode()
    assert "Traceback" not in text.decode()
