"""Runs `hmas up`: the bus, the child processes, their events, and the stop in order."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from hmas.cli.stack import Stack
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import bus_dir
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import BusError
from hmas.controller.core.messages import Event, Severity
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.notify import Notifier
from hmas.controller.runtime.signals import StopFlags, stop_flags
from hmas.controller.runtime.supervisor import ChildEvent, Supervisor

READY_S = 90.0
BUS_CHECK_S = 0.5
_SEVERITY: dict[str, Severity] = {"crashed": "warning", "hung": "warning", "killed": "warning", "given-up": "error"}
_LEVEL = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BusInUse:
    """The bus that all processes use.

    Attributes:
        url: Its address.
        words: The address and, for an embedded server, its program and version.
    """

    bus: RedisBus
    url: str
    words: str


@dataclass(slots=True)
class Upkeep:
    """Starts a stack, keeps it running until a stop signal, and stops it in order.

    Attributes:
        announce: Called once everything is ready.
    """

    stack: Stack
    announce: Callable[[BusInUse], Awaitable[None]]
    ready_s: float = READY_S

    async def run(self) -> int:
        """Runs the stack; returns 0 after a stop signal, 1 if the gateway did not get ready or could not be kept running."""
        notifier = Notifier()
        with stop_flags() as flags:
            async with _bus_in_use(self.stack.config) as bus, Supervisor(self.stack.engine_specs(), on_event=_Teller(bus.bus)) as keeper:
                code = await self._start_and_wait(bus, keeper, flags, notifier)
                notifier.stopping()
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
            if "gateway" in late:
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
        specs = self.stack.control_specs(bus.url)
        for spec in specs:
            keeper.add(spec)
        return late + await keeper.wait_ready([spec.name for spec in specs], self.ready_s)


@contextlib.asynccontextmanager
async def _bus_in_use(config: Config) -> AsyncIterator[BusInUse]:
    """The configured bus, or an embedded server that is monitored and restarted if it ends."""
    server = None if config.bus.url else EmbeddedServer(bus_dir(config), config.bus.durable)
    url = words = server.start() if server else config.bus.url
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
    while True:
        await asyncio.sleep(BUS_CHECK_S)
        if server.pid is None:
            log.warning("the embedded bus server has ended; starting it again")
            try:
                server.start()
            except BusError as error:
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
