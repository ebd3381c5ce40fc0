"""One gateway process: engines, gateway and both ports, until it is stopped."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from hmas.controller.admin.server import AdminServer
from hmas.controller.bus.base import Bus
from hmas.controller.config.derived import is_loopback, url_of
from hmas.controller.config.schema import Config, EngineConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.app import Gateway
from hmas.controller.gateway.http.server import HttpServer
from hmas.controller.gateway.operator_view import GatewayOperations
from hmas.controller.observability.plugins import load_exporters
from hmas.controller.runtime.clock import Clock
from hmas.controller.runtime.process import lift_limit, return_large_memory
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.engines.base import Engine
from hmas.engines.registry import connect_engine

SPARE_FILES = 256
"""Open files reserved beside streams: control calls to engines, the bus, the operators' API, Python itself."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """The addresses of a gateway that has just started, and the gateway itself."""

    url: str
    admin_url: str
    gateway: Gateway


async def serve(
    config: Config,
    *,
    bus: Bus,
    clock: Clock,
    on_ready: Callable[[Started], None] | None = None,
    on_cycle: Callable[[], None] | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    env: Mapping[str, str] | None = None,
    scheduler: Scheduler | None = None,
) -> None:
    """Serves until `stop` is set, then drains and returns; if cancelled, it ends without draining.

    Args:
        config: The whole configuration.
        bus: The bus; it is started here, and its owner closes it.
        clock: The clock.
        on_ready: Called with the addresses once both ports listen.
        on_cycle: Called after every finished cycle.
        stop: Starts the drain.
        hurry: Ends the drain early.
        env: The environment with the engines' API keys; by default that of the process.
        scheduler: As for `Gateway`.

    Raises:
        ConfigError: The gateway must not serve with this configuration (no authentication beyond loopback, an engine's key is missing).
        OSError: A port is not available.
    """
    keys = _check(config, os.environ if env is None else env)
    _make_room(config.gateway.max_connections)
    return_large_memory()
    await bus.start()
    async with AsyncExitStack() as stack:
        engines = await _connect(config, keys, stack)
        exporters, refused = load_exporters()
        gateway = Gateway(
            config, bus=bus, engines=engines, clock=clock, on_cycle=on_cycle, scheduler=scheduler, exporters=tuple(exporters.values())
        )
        stack.push_async_callback(gateway.close)
        for name in exporters:
            gateway.observer.note("exporter", name, after="loaded")
        for name, reason in refused.items():
            gateway.observer.note("exporter", name, after="refused", reason=reason, severity="warning")
        await gateway.start()
        settings = config.gateway
        public = HttpServer(
            gateway.routes.handle,
            host=settings.host,
            port=settings.port,
            max_body_bytes=settings.max_body_bytes,
            max_body_bytes_total=settings.max_body_bytes_total,
            max_connections=settings.max_connections,
        )
        stack.push_async_callback(public.close)
        await public.start()
        admin = AdminServer(
            GatewayOperations(gateway),
            host=settings.admin_host,
            port=settings.admin_port,
            token_sha256=settings.admin_token_sha256,
            clock=clock,
        )
        stack.push_async_callback(admin.close)
        await admin.start()
        started = Started(url_of(settings.host, public.port), url_of(settings.admin_host, admin.port), gateway)
        log.info("gateway at %s, operators' API at %s", started.url, started.admin_url)
        if on_ready is not None:
            on_ready(started)
        await (stop or asyncio.Event()).wait()
        await gateway.drain(hurry)


def _make_room(connections: int) -> None:
    """Requests two open files per connection; logs a warning if the system allows fewer."""
    wanted = 2 * connections + SPARE_FILES
    allowed = lift_limit(wanted)
    if 0 <= allowed < wanted:
        log.warning(
            "the system allows %d open files, which is room for %d streams; gateway.max_connections is %d (raise the hard limit: "
            "LimitNOFILE in systemd, ulimits in a container)",
            allowed,
            max(0, allowed - SPARE_FILES) // 2,
            connections,
        )


def _check(config: Config, env: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Returns the engines' API keys and control tokens, by engine name and the setting that names the variable.

    Raises:
        ConfigError: See `serve`.
    """
    gateway = config.gateway
    if gateway.no_auth and not is_loopback(gateway.host):
        raise ConfigError(f"gateway.no_auth: true with host {gateway.host!r}; allowed only on a loopback address such as 127.0.0.1")
    if not gateway.admin_token_sha256 and not is_loopback(gateway.admin_host):
        raise ConfigError(
            f"gateway.admin_host: {gateway.admin_host!r} needs gateway.admin_token_sha256; without it only loopback is allowed"
        )
    keys = {}
    for engine in config.engines:
        for setting, variable in (("api_key_env", engine.api_key_env), ("control_token_env", engine.control_token_env)):
            if variable and not env.get(variable):
                raise ConfigError(f"engines.{engine.name}.{setting}: the environment has no {variable}, or it is empty")
            keys[engine.name, setting] = env.get(variable, "")
    return keys


async def _connect(config: Config, keys: Mapping[tuple[str, str], str], stack: AsyncExitStack) -> list[tuple[EngineConfig, Engine]]:
    """Connects every engine with its adapter; engines that do not answer are waited for in parallel."""

    async def connect(engine: EngineConfig) -> tuple[EngineConfig, Engine]:
        adapter = await connect_engine(
            name=engine.name,
            url=engine.url,
            kind=engine.kind,
            api_key=keys[engine.name, "api_key_env"],
            control_token=keys[engine.name, "control_token_env"],
            connect_timeout_s=config.gateway.engine_connect_timeout_s,
            idle_timeout_s=config.gateway.engine_idle_timeout_s,
        )
        stack.push_async_callback(adapter.close)
        return engine, adapter

    return await asyncio.gather(*(connect(engine) for engine in config.engines))
