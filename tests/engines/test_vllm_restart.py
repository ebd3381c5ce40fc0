"""What a vLLM engine said before a restart does not outlive it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from hmas.engines.registry import connect_engine

Told = dict[str, Any]


@pytest.fixture
async def vllm() -> AsyncIterator[tuple[str, Told]]:
    """A server with vLLM's development endpoints, and what it tells: `n_run`, `tokens`, and whether it fails."""
    told: Told = {"n_run": 256, "tokens": 900, "fails": False}

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def info(_request: web.Request) -> web.Response:
        return web.json_response({"vllm_config": {"scheduler_config": {"max_num_seqs": told["n_run"]}}})

    async def metrics(_request: web.Request) -> web.Response:
        if told["fails"]:
            raise web.HTTPInternalServerError
        return web.Response(text=f"vllm:num_requests_running 1.0\nvllm:generation_tokens_total {told['tokens']}\n")

    app = web.Application()
    app.router.add_get("/version", version)
    app.router.add_get("/server_info", info)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", told
    await runner.cleanup()


@pytest.mark.parametrize("seen_down", [True, False])
async def test_an_engine_that_was_restarted_has_the_window_that_it_has_now(vllm: tuple[str, Told], seen_down: bool):
    url, told = vllm
    engine = await connect_engine(name="v", url=url, kind="vllm")
    assert (await engine.snapshot(1.0)).max_num_seqs == 256
    if seen_down:
        told["fails"] = True
        assert not (await engine.snapshot(2.0)).healthy
        told["fails"] = False
    told.update(n_run=64, tokens=5000 if seen_down else 3)
    assert (await engine.snapshot(3.0)).max_num_seqs == 64
    await engine.close()
