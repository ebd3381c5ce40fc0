"""One gateway process: engines, gateway and both ports, until it is stopped."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, socket

from hmas.controller.admin.server import AdminServer
from hmas.controller.admin.token import kept_token
from hmas.controller.bus.base import Bus
from hmas.controller.config.check import dotted
from hmas.controller.config.cross_checks import doors
from hmas.controller.config.derived import admin_sites, admin_token_file, is_loopback, public_sites, url_of
from hmas.controller.config.schema import Config, EngineConfig
from hmas.controller.config.section import GatewayConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.app import Gateway
from hmas.controller.gateway.bus_lease import GatewayLease
from hmas.controller.gateway.http.server import HttpServer
from hmas.controller.gateway.instances.membership import Connect
from hmas.controller.gateway.operator_view import GatewayOperations
from hmas.controller.gateway.requests.site_guard import SiteGuard
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
    sockets: Sequence[socket] = (),
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
        sockets: Bound sockets that the process was started with. A port without one is bound here.

    Raises:
        ConfigError: The gateway must not serve with this configuration (no authentication beyond loopback, an engine's key is missing), the
            operators' token cannot be kept, or a socket has another address than the configuration.
        OSError: A port is not available.
        BusError: Another gateway uses the bus.
    """
    environment = os.environ if env is None else env
    _check(config, environment)
    public_sockets, admin_sockets = _by_port(sockets, config.gateway)
    token_sha256 = config.gateway.admin_token_sha256 or hashlib.sha256(kept_token(admin_token_file(config)).encode()).hexdigest()
    _make_room(config.gateway.max_connections)
    return_large_memory()
    await bus.start()
    async with AsyncExitStack() as stack:

        async def connect(engine: EngineConfig) -> Engine:
            return await _connect(engine, config.gateway, environment)

        adapters = await _connect_all(config.engines, connect, stack)
        exporters, refused = load_exporters()
        mqtt = None
        if config.mqtt.host:
            from hmas.controller.gateway.mqtt import GatewayMqtt  # noqa: PLC0415  without a broker nothing of it is loaded

            mqtt = GatewayMqtt(config.mqtt, environment)
        observers = [*exporters.values(), *([] if mqtt is None else [mqtt.exporter])]
        gateway = Gateway(
            config,
            bus=bus,
            engines=tuple(zip(config.engines, adapters, strict=True)),
            connect=connect,
            clock=clock,
            on_cycle=on_cycle,
            scheduler=scheduler,
            exporters=observers,
        )
        lease = GatewayLease(bus, gateway.name, clock.now_s(), on_change=gateway.bus_watch.taken)
        await lease.take()
        stack.push_async_callback(lease.close)
        stack.push_async_callback(gateway.close)
        for name in exporters:
            gateway.observer.note("exporter", name, after="loaded")
        for name, reason in refused.items():
            gateway.observer.note("exporter", name, after="refused", reason=reason, severity="warning")
        await gateway.start()
        settings = config.gateway
        public = HttpServer(
            SiteGuard(public_sites(settings), gateway.routes.handle, gateway.observer).handle,
            host=settings.host,
            port=settings.port,
            max_body_bytes=settings.max_body_bytes,
            max_body_bytes_total=settings.max_body_bytes_total,
            max_connections=settings.max_connections,
            sockets=public_sockets,
        )
        public.state.on_refused = gateway.observer.refused
        public.state.on_unread = gateway.observer.unread
        stack.push_async_callback(public.close)
        await public.start()
        operations = GatewayOperations(gateway)
        admin = AdminServer(
            operations,
            host=settings.admin_host,
            port=settings.admin_port,
            token_sha256=token_sha256,
            sites=admin_sites(settings),
            clock=clock,
            sockets=admin_sockets,
        )
        stack.push_async_callback(admin.close)
        await admin.start()
        if mqtt is not None:
            mqtt.start(gateway, operations)
        started = Started(url_of(settings.host, public.port), url_of(settings.admin_host, admin.port), gateway)
        log.info("gateway at %s, operators' API at %s", started.url, started.admin_url)
        if on_ready is not None:
            on_ready(started)
        await (stop or asyncio.Event()).wait()
        # Clients connect anew, so that another gateway can serve them meanwhile.
        public.state.closing = True
        await gateway.drain(hurry, public.finish)


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


def _by_port(sockets: Sequence[socket], gateway: GatewayConfig) -> tuple[list[socket], list[socket]]:
    """The sockets of the public port, and those of the operators' API.

    Raises:
        ConfigError: A socket belongs to neither, or could be reached from outside where the configuration names a loopback address.
    """
    public: list[socket] = []
    admin: list[socket] = []
    ports = ((public, gateway.host, gateway.port), (admin, gateway.admin_host, gateway.admin_port))
    for sock in sockets:
        host, port = sock.getsockname()[:2] if sock.family in (AF_INET, AF_INET6) else (sock.getsockname(), 0)
        for found, own_host, own_port in ports:
            apart = gateway.port != gateway.admin_port or host == own_host
            if port == own_port and apart and (is_loopback(host) or not is_loopback(own_host)):
                found.append(sock)
                break
        else:
            allowed = " or ".join(f"{own_host} port {own_port}" for _, own_host, own_port in ports)
            raise ConfigError(f"this process was started with a socket of {host} port {port}; allowed, by the configuration: {allowed}")
    return public, admin


def _check(config: Config, env: Mapping[str, str]) -> None:
    """Raises: ConfigError: See `serve`."""
    for problem in doors(config):
        raise ConfigError(f"{dotted(problem.path)}: {problem.message}")
    for engine in config.engines:
        _keys(engine, env)


def _keys(engine: EngineConfig, env: Mapping[str, str]) -> tuple[str, str]:
    """An engine's API key and the token of its control plugin, empty for none.

    Raises:
        ConfigError: The environment has no such variable, or it is empty.
    """
    for setting, variable in (("api_key_env", engine.api_key_env), ("control_token_env", engine.control_token_env)):
        if variable and not env.get(variable):
            raise ConfigError(f"engines.{engine.name}.{setting}: the environment has no {variable}, or it is empty")
    return env.get(engine.api_key_env, ""), env.get(engine.control_token_env, "")


async def _connect_all(engines: Sequence[EngineConfig], connect: Connect, stack: AsyncExitStack) -> list[Engine]:
    """The adapters of all engines, which `stack` closes, even where one of them cannot be made.

    Raises:
        Exception: That of the first `connect` that failed; no other goes on then.
    """

    async def kept(engine: EngineConfig) -> Engine:
        adapter = await connect(engine)
        stack.push_async_callback(adapter.close)
        return adapter

    try:
        # Engines that do not answer are waited for in parallel.
        async with asyncio.TaskGroup() as group:
            connecting = [group.create_task(kept(engine)) for engine in engines]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in connecting]


async def _connect(engine: EngineConfig, gateway: GatewayConfig, env: Mapping[str, str]) -> Engine:
    """The adapter of an engine.

    Raises:
        HmasError: There is no such kind of engine, or the environment lacks one of its keys.
    """
    api_key, control_token = _keys(engine, env)
    return await connect_engine(
        name=engine.name,
        url=engine.url,
        kind=engine.kind,
        api_key=api_key,
        control_token=control_token,
        connect_timeout_s=gateway.engine_connect_timeout_s,
        idle_timeout_s=gateway.engine_idle_timeout_s,
    )
