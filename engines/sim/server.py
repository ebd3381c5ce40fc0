"""The embedded engine over HTTP: an OpenAI-compatible server whose tokens come from `EngineModel` in real time.

    hmas run engine --profile demo-small --port 8101 --name sim-1 --model demo

The server has these paths besides the OpenAI ones: `GET /sim/state` (an `EngineSnapshot`), `POST /sim/knobs` (`Knobs` -> `KnobReport`),
`POST /sim/fault` (`{"fault": "reset-after:3", "times": 1}`; null ends it), `POST /abort_requests` (`{"request_ids": [...]}`, ids as sent in
`x-request-id`). A body's `"sim": {"output_tokens": N}` sets the answer's true length, `"sim": {"prompt_tokens": N}` the prompt's.
"""

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from hmas.engines.sim.handlers import SimServer
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.streams import Fault

MAX_BODY_BYTES = 64 << 20


def create_app(
    model: EngineModel,
    model_name: str,
    name: str,
    *,
    now_s: Callable[[], float] | None = None,
    fault: Fault | None = None,
    settle: Callable[[], Awaitable[None]] | None = None,
) -> web.Application:
    """The application. Serve it with `handler_cancellation=True`, so that a client's disconnect is detected at once.

    Args:
        model: The engine.
        model_name: The name under which it serves its model.
        name: The instance's name in snapshots.
        now_s: A clock: seconds since the epoch, never going back; None takes `process_clock`.
        fault: A fault that is active from the start.
        settle: As in `hmas.engines.sim.streams.Driver`; None in real time.
    """
    server = SimServer(model, model_name, name, now_s=now_s or process_clock(), fault=fault, settle=settle)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[server.guard])
    app.add_routes(
        [
            web.post("/v1/chat/completions", server.chat),
            web.post("/v1/completions", server.completion),
            web.post("/v1/embeddings", server.embeddings),
            web.get("/v1/models", server.models),
            web.get("/health", server.health),
            web.get("/version", server.version),
            web.get("/metrics", server.metrics),
            web.get("/sim/state", server.state),
            web.post("/sim/knobs", server.knobs),
            web.post("/sim/fault", server.set_fault),
            web.post("/abort_requests", server.abort),
        ]
    )
    app.on_shutdown.append(server.drain)
    app.cleanup_ctx.append(server.heartbeat)
    return app


def process_clock() -> Callable[[], float]:
    """A clock for this process: wall time read once, plus the monotonic time since then."""
    offset_s = time.time_ns() * 1e-9 - time.monotonic()
    return lambda: offset_s + time.monotonic()


async def start(app: web.Application, *, host: str = "127.0.0.1", port: int = 0, grace_s: float = 10.0) -> tuple[web.AppRunner, int]:
    """Serves an application from `create_app`.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port, 0 for a free one.
        grace_s: How long `AppRunner.cleanup` waits for running requests.

    Returns:
        The runner, which the caller has to clean up, and the port.

    Raises:
        OSError: The port is taken.
    """
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=grace_s)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=4096).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])
