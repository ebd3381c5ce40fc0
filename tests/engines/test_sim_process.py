"""The embedded engine as a process: start, end, and mistakes on its command line."""

import asyncio
import signal
import sys

import aiohttp
import pytest

MODULE = "hmas.engines.sim.server"


async def launch(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", MODULE, *arguments, stderr=asyncio.subprocess.PIPE)


async def base_url(process: asyncio.subprocess.Process) -> str:
    line = await process.stderr.readline()
    assert b"listening on" in line
    return line.decode().split()[-1]


async def test_sigterm_lets_a_running_stream_end():
    process = await launch("--port", "0", "--name", "one", "--model", "m", "--profile", "demo-small")
    url = await base_url(process)
    async with aiohttp.ClientSession() as session:
        document = {"messages": [{"role": "user", "content": "x"}], "stream": True, "sim": {"output_tokens": 20}}
        async with session.post(f"{url}/v1/chat/completions", json=document) as response:
            first = await response.content.readany()
            process.send_signal(signal.SIGTERM)
            body = first + await response.read()
    assert body.count(b'"content":" ') == 20
    assert body.endswith(b"data: [DONE]\n\n")
    assert await asyncio.wait_for(process.wait(), 10) == 0
    rest = await process.stderr.read()
    assert b"shutting down" in rest
    assert b"Traceback" not in rest


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--profile", "huge"), "profile 'huge' is unknown; allowed: a100-qwen3-8b, demo-small"),
        (("--fault", "gremlins"), "fault 'gremlins'"),
        (("--max-num-seqs", "0"), "n_run 0: allowed 1 or more"),
        (("--host", "203.0.113.1"), "cannot assign requested address"),
    ],
)
async def test_mistakes_are_named(arguments, word):
    process = await launch("--port", "0", *arguments)
    _out, text = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert word in text.decode()
    assert "Traceback" not in text.decode()
