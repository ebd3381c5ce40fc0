"""`hmas up`: starts everything on this machine and keeps it running until SIGTERM or Ctrl-C."""

import asyncio
import contextlib
import logging
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from socket import socket
from typing import Any
from urllib.parse import urlsplit

import click

from hmas.cli.admin import config_option, connect
from hmas.cli.output import example, hint, json_option, say, say_json
from hmas.cli.stack import GATEWAY, Choices, Stack, plan
from hmas.cli.targets import ALLOWED, Target, parse_targets
from hmas.controller.bus.address import without_secrets
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import AGENT_NAMES, bus_dir, running_agents
from hmas.controller.config.loader import PRESETS, advice
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import AdminError, BusError
from hmas.controller.core.messages import Event, Severity
from hmas.controller.runtime import logs
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.notify import Notifier
from hmas.controller.runtime.ports import BACKLOG, bound_sockets
from hmas.controller.runtime.signals import StopFlags, stop_flags
from hmas.controller.runtime.supervisor import ChildEvent, Supervisor
from hmas.engines.sim.profile import load_profile

READY_S = 90.0
BUS_CHECK_S = 0.5
BUS_WAIT_MOST_S = 10.0
"""How long to wait at most before another try to start an embedded bus that has ended."""
_SEVERITY: dict[str, Severity] = {"crashed": "warning", "hung": "warning", "killed": "warning", "given-up": "error"}
_LEVEL = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
ENGINE_HELP = f"An engine, in place of the configured ones: {ALLOWED}. May be repeated."
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BusInUse:
    """The bus that all processes use.

    Attributes:
        url: Its address.
        words: The address without user and password and, for an embedded server, its program and version.
    """

    bus: RedisBus
    url: str
    words: str


@dataclass(slots=True)
class Upkeep:
    """Starts a stack, keeps it running until a stop signal, and stops it in order.

    Attributes:
        announce: Called once everything is ready.
        sockets: Bound to the gateway's ports. While a gateway is started again, connections wait in them.
    """

    stack: Stack
    announce: Callable[[BusInUse], Awaitable[None]]
    sockets: Sequence[socket] = ()
    ready_s: float = READY_S

    async def run(self) -> int:
        """Runs the stack; returns 0 after a stop signal, 1 if the gateway did not get ready or could not be kept running."""
        notifier = Notifier()
        keeper: Supervisor | None = None

        def reload() -> None:
            for name in (GATEWAY, *running_agents(self.stack.config.agents)):
                if keeper is None or not keeper.send(name, signal.SIGHUP):
                    log.warning("SIGHUP: %s is not ready; send the signal again later", name)

        with stop_flags(reload) as flags:
            async with _bus_in_use(self.stack.config) as bus, Supervisor(self.stack.engine_specs(), on_event=_Teller(bus.bus)) as keeper:
                code = await self._start_and_wait(bus, keeper, flags, notifier)
                notifier.stopping()
                # From here on only the gateway holds its ports: once it has ended, nobody waits for an answer that does not come.
                for sock in self.sockets:
                    sock.close()
                await keeper.stop(flags.hurry)
                return code

    async def _start_and_wait(self, bus: BusInUse, keeper: Supervisor, flags: StopFlags, notifier: Notifier) -> int:
        starting = asyncio.create_task(self._start(bus, keeper))
        stopping = asyncio.create_task(flags.stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return 0
            late = starting.result()
            if late:
                log.error("not ready within %g s: %s; their log lines above say why", self.ready_s, ", ".join(late))
            if GATEWAY in late:
                return 1
            await self.announce(bus)
            notifier.ready(f"serving at {self.stack.gateway_url}")
            return await keeper.run(flags.stop)
        finally:
            for task in (starting, stopping):
                task.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    async def _start(self, bus: BusInUse, keeper: Supervisor) -> list[str]:
        """Starts the engines first, so that the gateway's first check finds them; returns the names of processes that are not ready."""
        late = await keeper.wait_ready(timeout_s=self.ready_s)
        specs = self.stack.control_specs(bus.url, self.sockets)
        for spec in specs:
            keeper.add(spec)
        return late + await keeper.wait_ready([spec.name for spec in specs], self.ready_s)


@contextlib.asynccontextmanager
async def _bus_in_use(config: Config) -> AsyncIterator[BusInUse]:
    """The configured bus, or an embedded server that is monitored and restarted if it ends."""
    server = None if config.bus.url else EmbeddedServer(bus_dir(config), config.bus.durable)
    url = server.start() if server else config.bus.url
    words = without_secrets(url)
    if server and server.binary:
        words = f"{url} (embedded {server.binary.path.name} {server.binary.version} from {server.binary.origin})"
    bus = RedisBus(url, config.bus.key_prefix)
    await bus.start()
    watching = asyncio.create_task(_watch(server)) if server else None
    try:
        yield BusInUse(bus, url, words)
    finally:
        if watching:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await bus.close()
        if server:
            server.stop()


async def _watch(server: EmbeddedServer) -> None:
    wait_s = BUS_CHECK_S
    while True:
        await asyncio.sleep(wait_s)
        server.bound_log()
        wait_s = BUS_CHECK_S if server.pid is not None else min(2.0 * wait_s, BUS_WAIT_MOST_S)
        if server.pid is None:
            log.warning("the embedded bus server has ended; starting it again")
            try:
                server.launch()
                # The other processes are watched meanwhile.
                await asyncio.to_thread(server.await_answer)
            except (BusError, OSError) as error:
                log.warning("%s", error)


class _Teller:
    """Logs the events of the children and posts them on the bus."""

    def __init__(self, bus: RedisBus) -> None:
        self._bus = bus
        self._clock = SystemClock()

    def __call__(self, event: ChildEvent) -> None:
        severity = _SEVERITY.get(event.kind, "info")
        words = f"{event.child} {event.kind}" + (f": {event.detail}" if event.detail else "")
        log.log(_LEVEL[severity], "%s", words, extra={"child": event.child})
        self._bus.post(
            Event(
                sent_s=self._clock.now_s(),
                source="supervisor",
                kind=f"process.{event.kind}",
                subject=event.child,
                after=f"pid {event.pid}" if event.pid else "",
                reason=event.detail,
                severity=severity,
            )
        )


@click.command(
    epilog=example(
        "hmas up --engine sim --no-auth",
        "hmas up --engine sim:demo-small@2 --engine sim --no-auth --port 9000",
        "hmas up --engine vllm=http://127.0.0.1:8000 --no-auth",
        "hmas up --engine sim --no-auth --agents perception,prediction",
        "hmas up --config hmas.yaml",
    )
)
@click.option("--engine", "engine", multiple=True, metavar="WHAT", help=ENGINE_HELP)
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the gateway; 0 for a free one.")
@click.option("--admin-port", type=click.IntRange(0, 65535), help="Port of the operators' API; 0 for a free one.")
@click.option("--no-auth", is_flag=True, help="Serve without API keys; loopback addresses only.")
@click.option("--no-agents", is_flag=True, help="Static control: gateway and engines without the five agents.")
@click.option("--agents", default="", metavar="NAMES", help=f"Only these agents, with commas between: {', '.join(AGENT_NAMES)}.")
@click.option("--preset", type=click.Choice(("default", *PRESETS)), help="Defaults to start from; `paper`: the paper's own system.")
@json_option
@config_option
@click.pass_context
def up(
    ctx: click.Context,
    *,
    engine: tuple[str, ...],
    port: int | None,
    admin_port: int | None,
    no_auth: bool,
    no_agents: bool,
    agents: str,
    preset: str | None,
    as_json: bool,
    config_file: str | None,
) -> None:
    """Start bus, embedded engines, agents and gateway, and keep them running.

    Crashed processes are started again; SIGTERM or Ctrl-C drains and stops everything, a second one stops at once.
    Exit code 0 after a clean stop, 1 if the gateway could not be kept running.
    """
    if agents and no_agents:
        raise click.UsageError("--agents and --no-agents contradict each other; give one of them")
    targets = parse_targets(engine)
    for target in targets:
        if target.profile:
            load_profile(target.profile)
    ctx.with_resource(reserved_ports(targets))
    stack = plan(Choices(config_file, targets, port, admin_port, no_auth, no_agents, agents, preset or ""))
    config = stack.config
    if not (config.engines or config.engines_dns):
        raise click.UsageError("no engine: name one with --engine (such as --engine sim) or in the configuration")
    sockets = _bind_ports(stack)
    for word in advice(config, stack.env):
        hint(f"note: {word}")
    logs.configure(config.logging.level, config.logging.format, "up")

    async def announce(bus: BusInUse) -> None:
        document = await _describe(stack, bus)
        if as_json:
            say_json(document)
        else:
            say(_banner(document, config_file))

    ctx.exit(asyncio.run(Upkeep(stack, announce, sockets).run()))


@contextlib.contextmanager
def reserved_ports(targets: Sequence[Target]) -> Iterator[None]:
    """Keeps the ports of embedded engines: no process that asks for a free one gets them, before the engine listens and while it is away.

    The sockets are bound and never listen, so that the engine still can.
    """
    with contextlib.ExitStack() as stack:
        for target in targets:
            if target.profile:
                for sock in bound_sockets("127.0.0.1", urlsplit(target.config.url).port or 0):
                    stack.enter_context(sock)
        yield


def _bind_ports(stack: Stack) -> list[socket]:
    gateway = stack.config.gateway
    sockets: list[socket] = []
    for host, port in ((gateway.host, gateway.port), (gateway.admin_host, gateway.admin_port)):
        try:
            bound = bound_sockets(host, port)
            sockets += bound
            for sock in bound:
                # At once: until someone listens, others can bind the same port. Clients wait until the gateway is there.
                sock.listen(BACKLOG)
        except OSError as error:
            advice_text = "is another `hmas up` running? --port and --admin-port choose others, 0 a free one"
            raise click.ClickException(f"cannot listen on {host} port {port}: {error.strerror or error}; {advice_text}") from error
    return sockets


async def _describe(stack: Stack, bus: BusInUse) -> dict[str, Any]:
    engines: list[dict[str, Any]] = []
    try:
        engines = await asyncio.to_thread(connect(stack.admin_url, stack.choices.config_file).engines)
    except AdminError as error:
        # If another token is configured, the operators' API refuses this call; the engines' state is optional here.
        log.debug("cannot ask the gateway for its engines: %s", error)
    return {
        "gateway": stack.gateway_url,
        "admin": stack.admin_url,
        "bus": bus.words,
        "engines": [{key: item[key] for key in ("name", "url", "kind", "healthy", "models")} for item in engines],
        "agents": [spec.name for spec in stack.control_specs("") if spec.name != GATEWAY],
        "auth": not stack.config.gateway.no_auth,
        "preset": stack.config.preset,
    }


def _banner(document: dict[str, Any], config_file: str | None) -> str:
    engines = [
        f"{item['name']} at {item['url']} ({item['kind']}{'' if item['healthy'] else ', does not answer yet'})"
        for item in document["engines"]
    ]
    model = next((model for item in document["engines"] for model in item["models"]), "MODEL")
    body = f'{{"model": "{model}", "stream": true, "max_tokens": 32, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    key = '  -H "authorization: Bearer $HMAS_API_KEY" \\\n' if document["auth"] else ""
    admin = f" --admin {document['admin']}" if not document["admin"].endswith("127.0.0.1:8081") else ""
    config = f" --config {shlex.quote(config_file)}" if config_file else ""
    return (
        f"H-MAS is up.\n"
        f"  gateway  {document['gateway']}/v1\n"
        f"  admin    {document['admin']}\n"
        f"  bus      {document['bus']}\n"
        f"  engines  {', '.join(engines)}\n"
        f"  agents   {', '.join(document['agents']) or 'switched off'}\n"
        f"  preset   {document['preset']}\n"
        f"Try it:\n"
        f"  curl -N {document['gateway']}/v1/chat/completions -H 'content-type: application/json' \\\n{key}"
        f"    -d {shlex.quote(body)}\n"
        f"  hmas status{admin}{config}\n"
        f"Ctrl-C stops it."
    )
