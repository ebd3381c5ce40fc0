"""One gateway process: engines, gateway, both ports, until it is told to stop."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.admin.server import AdminServer
from controller.bus.base import Bus
from controller.config.paths import is_loopback, url_of
from controller.config.schema import Config, EngineConfig
from controller.core.errors import ConfigError
from controller.gateway.core import Gateway
from controller.gateway.operations import GatewayOperations
from controller.gateway.server import HttpServer
from controller.runtime.clock import Clock
from engines.base import Engine
from engines.connect import connect_engine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """Where a gateway that has just started is found."""

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
) -> None:
    """Serves until `stop` is set, then drains and returns; cancelled, it ends without draining.

    Args:
        config: The whole configuration.
        bus: Started and closed by the caller.
        clock: Tells the time.
        on_ready: Told the addresses once both ports listen.
        on_cycle: Called after every finished cycle.
        stop: Begins the drain.
        hurry: Ends the drain early.
        env: Where the engines' API keys are looked up; the process's own by default.

    Raises:
        ConfigError: The gateway may not serve like this (no authentication beyond loopback, an engine's key is missing).
        OSError: A port cannot be had.
    """
    _check(config)
    gateway = Gateway(config, bus=bus, engines=await _connect(config, os.environ if env is None else env), clock=clock, on_cycle=on_cycle)
    door = HttpServer(gateway.door.handle, host=config.gateway.host, port=config.gateway.port, max_body_bytes=config.gateway.max_body_bytes)
    admin = AdminServer(
        GatewayOperations(gateway),
        host=config.gateway.admin_host,
        port=config.gateway.admin_port,
        token_sha256=config.gateway.admin_token_sha256,
        clock=clock,
    )
    try:
        await gateway.start()
        await door.start()
        await admin.start()
        started = Started(url_of(config.gateway.host, door.port), url_of(config.gateway.admin_host, admin.port), gateway)
        log.info("gateway at %s, operators' API at %s", started.url, started.admin_url)
        if on_ready is not None:
            on_ready(started)
        await (stop or asyncio.Event()).wait()
        await gateway.drain(hurry)
    finally:
        await door.close()
        await admin.close()
        await gateway.close()


def _check(config: Config) -> None:
    gateway = config.gateway
    if gateway.no_auth and not is_loopback(gateway.host):
        raise ConfigError(f"gateway.no_auth: true with host {gateway.host!r}; allowed only on a loopback address such as 127.0.0.1")
    if not gateway.admin_token_sha256 and not is_loopback(gateway.admin_host):
        raise ConfigError(
            f"gateway.admin_host: {gateway.admin_host!r} needs gateway.admin_token_sha256; without it only loopback is allowed"
        )


async def _connect(config: Config, env: Mapping[str, str]) -> list[tuple[EngineConfig, Engine]]:
    pairs: list[tuple[EngineConfig, Engine]] = []
    for engine in config.engines:
        key = env.get(engine.api_key_env, "") if engine.api_key_env else ""
        if engine.api_key_env and not key:
            raise ConfigError(f"engines.{engine.name}.api_key_env: the environment has no {engine.api_key_env}, or it is empty")
        adapter = await connect_engine(
            name=engine.name,
            url=engine.url,
            kind=engine.kind,
            api_key=key,
            connect_timeout_s=config.gateway.engine_connect_timeout_s,
            idle_timeout_s=config.gateway.engine_idle_timeout_s,
        )
        pairs.append((engine, adapter))
    return pairs
