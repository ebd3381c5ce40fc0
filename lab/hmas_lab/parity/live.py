"""The scenario through the live gateway: its door, engines behind it and clients before it, all on one loop in virtual time."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import aiohttp
import orjson

from hmas.controller.control.overrides import Override
from hmas.controller.core.errors import SchedulingError
from hmas.controller.gateway.app import Gateway
from hmas.controller.gateway.make_scheduler import make_scheduler
from hmas.controller.gateway.process import Started, serve
from hmas.engines.base import Knobs
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.server import create_app, start
from hmas.engines.sim.streams import until
from hmas_lab.memory_bus import MemoryBus
from hmas_lab.parity.log import Decision, LoggedScheduler
from hmas_lab.parity.scenario import ENGINES, MODEL, START_S, Call, Scenario, body_of, config_of, trace
from hmas_lab.virtual_loop import VirtualLoop, run_virtual


def run_live(scenario: Scenario) -> list[Decision]:
    """The gateway's decision log. It takes virtual time only: no sleep, no load of the machine changes it."""
    return run_virtual(lambda loop: _run(loop, scenario), start_s=START_S)


async def _run(loop: VirtualLoop, scenario: Scenario) -> list[Decision]:
    log: list[Decision] = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hmas-parity-"))
        urls = {name: await stack.enter_async_context(_engine(loop, name)) for name in ENGINES}
        started = await stack.enter_async_context(_gateway(loop, scenario, urls, folder, log))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        if loop.time() != START_S:
            raise SchedulingError(f"the gateway's start took {loop.time() - START_S} s of virtual time; allowed: none")
        changing = asyncio.create_task(_change(loop, started.gateway, scenario))
        async with asyncio.TaskGroup() as group:
            for call in trace(scenario):
                group.create_task(_ask(loop, session, started.url, call))
        changing.cancel()
        await asyncio.wait([changing])
    return log


@asynccontextmanager
async def _engine(loop: VirtualLoop, name: str) -> AsyncIterator[str]:
    model = EngineModel(ENGINES[name])
    app = create_app(model, MODEL, name, now_s=loop.time, settle=loop.settled)
    # As the simulated ones do, so that routers look at what was sent.
    model.caches_prefixes = True
    runner, port = await start(app, grace_s=0.1)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _gateway(loop: VirtualLoop, scenario: Scenario, urls: dict[str, str], folder: str, log: list[Decision]) -> AsyncIterator[Started]:
    config = config_of(scenario, urls, folder)
    stop = asyncio.Event()
    ready: asyncio.Future[Started] = loop.create_future()
    bus = MemoryBus()
    scheduler = make_scheduler(config, partial(LoggedScheduler, log=log))
    serving = asyncio.create_task(serve(config, bus=bus, clock=loop, on_ready=ready.set_result, stop=stop, scheduler=scheduler))
    # What serves ends only where it could not start.
    serving.add_done_callback(lambda _: ready.cancel())
    try:
        await asyncio.wait([ready])
        if serving.done():
            await serving
        yield ready.result()
    finally:
        stop.set()
        await serving
        await bus.close()


async def _change(loop: VirtualLoop, gateway: Gateway, scenario: Scenario) -> None:
    """An operator puts the changes in force, by files as `hmas policy set` and `hmas knobs set` do."""
    for number, (at_s, change) in enumerate(scenario.changes()):
        await until(loop, at_s)
        override = Override(
            id=f"parity-{number:03d}",
            author="parity",
            reason="a change in the middle of the trace",
            expires_s=None,
            policy=change.policy or None,
            knobs={name: Knobs(n_run=n_run) for name, n_run in change.n_run.items()},
        )
        await gateway.watch.put(override)


async def _ask(loop: VirtualLoop, session: aiohttp.ClientSession, url: str, call: Call) -> None:
    """One client: sends its request and reads the stream to its end, or is told why there is none."""
    body = body_of(call)
    headers = {"x-session-id": str(call.index), "x-gateway-inference-fairness-id": call.tenant, "content-type": "application/json"}
    if call.max_tokens is not None:
        body["max_tokens"] = call.max_tokens
    if call.slo is not None:
        headers |= {"x-slo-ttft-ms": repr(call.slo.ttft_ms), "x-slo-tpot-ms": repr(call.slo.tpot_ms)}
    await until(loop, call.at_s)
    async with session.post(f"{url}/v1/completions", data=orjson.dumps(body), headers=headers) as response:
        async for _ in response.content.iter_any():
            pass
