"""`hmas run`: one process in the foreground, as systemd, containers and `hmas up` start it."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop

from hmas.agents.runtime.shell import instance_name, run_agent
from hmas.cli.admin import config_option, read_config
from hmas.cli.output import example
from hmas.cli.values import Number
from hmas.controller.bus.base import Bus
from hmas.controller.bus.no_bus import NoBus
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.config.reload import concerns_agents
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.runtime import logs
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.notify import Notifier
from hmas.controller.runtime.ports import inherited_sockets
from hmas.controller.runtime.process import Collector, set_niceness
from hmas.controller.runtime.signals import CHANGED, stop_flags

NOTIFY_EVERY_S = 1.0
log = logging.getLogger(__name__)
T = TypeVar("T")


@click.group()
def run() -> None:
    """Run a single process: gateway, agent or embedded engine.

    Each process reports to the service manager that it is ready and that it is alive, drains on SIGTERM, and logs to stderr.
    """


@run.command("gateway", epilog=example("HMAS_BUS__URL=redis://127.0.0.1:6379 hmas run gateway --config hmas.yaml"))
@config_option
def run_gateway(config_file: str | None) -> None:
    """Run the gateway."""
    config = read_config(config_file)
    bus = _make_bus(config)
    logs.configure(config.logging.level, config.logging.format, "gateway")
    _run(_gateway(config, bus, lambda: read_config(config_file)))


@run.command("agent", epilog=example("HMAS_BUS__URL=redis://127.0.0.1:6379 hmas run agent qos --config hmas.yaml"))
@click.argument("name", type=click.Choice(AGENT_NAMES))
@config_option
@click.pass_context
def run_one_agent(ctx: click.Context, name: str, config_file: str | None) -> None:
    """Run the agent NAME.

    On SIGHUP it ends with exit code 75 if the configuration has changed for it: the service manager starts it again.
    """
    config = read_config(config_file)
    if not config.bus.url:
        raise ConfigError(_NO_BUS.format(who=f"agent {name}"))
    logs.configure(config.logging.level, config.logging.format, name)
    ctx.exit(_run(_agent(name, config, lambda: read_config(config_file))))


@run.command("engine", epilog=example("hmas run engine --profile demo-small --port 8101"))
@click.option("--profile", default="demo-small", show_default=True, help="Name of a shipped profile, or a .json file.")
@click.option("--speed", type=Number(0.01, 1000), default=1.0, show_default=True, help="Times faster than the profile.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8101, show_default=True, help="Port; 0 for a free one.")
@click.option("--name", default="sim", show_default=True, help="The instance's name in its snapshots.")
@click.option("--model", default="sim", show_default=True, help="What the engine calls its model.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
def run_engine(*, profile: str, speed: float, host: str, port: int, name: str, model: str, log_level: Any) -> None:
    """Run an embedded engine: an OpenAI-compatible server that needs no GPU and has the step times of a profile."""
    logs.configure(log_level, "text", name)
    _run(_engine(profile=profile, speed=speed, host=host, port=port, name=name, model=model))


_NO_BUS = "bus.url is empty: name a Redis server there or in HMAS_BUS__URL ({who} runs by itself; `hmas up` starts a server of its own)"


def _make_bus(config: Config) -> Bus:
    if config.bus.url:
        return RedisBus(config.bus.url, config.bus.key_prefix)
    if config.agents.enabled:
        raise ConfigError(_NO_BUS.format(who="the gateway") + ", or switch the agents off with agents.enabled: false")
    return NoBus()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs to the end. A port in use may soon be free, so that is not an error of the configuration."""
    try:
        return uvloop.run(work)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen: {error.strerror or error}; another process has the port, or the address is not of this machine"
        ) from error


async def _gateway(config: Config, bus: Bus, read: Callable[[], Config]) -> None:
    # Imported here, because the other processes do not need the gateway's modules.
    from hmas.cli.reloads import Reloads  # noqa: PLC0415
    from hmas.controller.gateway.process import Started, serve  # noqa: PLC0415

    notifier, clock = Notifier(), SystemClock()
    told_s = 0.0
    running: list[tuple[Started, Collector]] = []
    reloads = Reloads(config, read, clock)

    def on_ready(started: Started) -> None:
        collector = Collector(clock.now_s())
        running.append((started, collector))
        reloads.serves(started.gateway)
        notifier.ready(f"serving at {started.url}, operators' API at {started.admin_url}")

    def on_cycle() -> None:
        nonlocal told_s
        now_s = clock.now_s()
        if now_s - told_s >= NOTIFY_EVERY_S:
            told_s = now_s
            notifier.watchdog()
        for started, collector in running:
            collector.look(now_s, quiet=not started.gateway.manager.active)

    try:
        with stop_flags(reloads.read_again) as flags:
            beside = [asyncio.create_task(work) for work in (_tell_stopping(flags.stop, notifier), *reloads.watches())]
            try:
                await serve(
                    await reloads.at_start(),
                    bus=bus,
                    clock=clock,
                    on_ready=on_ready,
                    on_cycle=on_cycle,
                    stop=flags.stop,
                    hurry=flags.hurry,
                    sockets=inherited_sockets(os.environ),
                )
            finally:
                for task in beside:
                    task.cancel()
    finally:
        await bus.close()


async def _tell_stopping(stop: asyncio.Event, notifier: Notifier) -> None:
    await stop.wait()
    notifier.stopping()


async def _agent(name: str, config: Config, read: Callable[[], Config]) -> int:
    """Runs an agent; returns `CHANGED` if it has ended for a changed configuration, else 0."""
    set_niceness(config.agents.nice, spare_cpu_only=config.agents.spare_cpu_only)
    bus, code = RedisBus(config.bus.url, config.bus.key_prefix), 0

    def read_again() -> None:
        nonlocal code
        try:
            is_changed = concerns_agents(config, read())
        except ConfigError as error:
            log.error("reading the configuration again: %s; everything stays as it was", error)  # noqa: TRY400 - the message says it all
            return
        if is_changed:
            log.info("the configuration has changed; ending, to be started again with it")
            code = CHANGED
            flags.stop.set()

    try:
        with stop_flags(read_again) as flags:
            await run_agent(name, config, bus, SystemClock(), stop=flags.stop, instance=instance_name(os.environ), notify=Notifier())
    finally:
        await bus.close()
    return code


async def _engine(*, profile: str, speed: float, host: str, port: int, name: str, model: str) -> None:
    from hmas.engines.sim.model import EngineModel  # noqa: PLC0415 - only this process serves an engine
    from hmas.engines.sim.profile import faster, load_profile  # noqa: PLC0415
    from hmas.engines.sim.server import create_app, start  # noqa: PLC0415

    notifier, clock = Notifier(), SystemClock()
    app = create_app(EngineModel(faster(load_profile(profile), speed)), model, name, now_s=clock.now_s)
    with stop_flags() as flags:
        runner, port = await start(app, host=host, port=port)
        try:
            notifier.ready(f"embedded engine {name} with profile {profile} at http://{host}:{port}")
            while not flags.stop.is_set():
                notifier.watchdog()
                await _wait(flags.stop, NOTIFY_EVERY_S)
            notifier.stopping()
        finally:
            await runner.cleanup()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
