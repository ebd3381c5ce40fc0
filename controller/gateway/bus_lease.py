"""Keeps a second gateway off the bus: the agents would take the telemetry of two gateways for that of one that restarts all the time."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.core.errors import BusError

LEASE = "hmas:lease:gateway"
EXPIRES_S = 2.0
"""How long after its end a gateway that was killed still has the lease, at most."""
RENEW_S = 0.5
WAIT_S = 2.5
"""How long a gateway that starts waits for the lease: longer than that of a killed one lasts."""
_LOOK_S = 0.1
log = logging.getLogger(__name__)


class Holder(msgspec.Struct, frozen=True):
    """A gateway that has the lease, or wants it. `space` is the namespace of process ids; the random `token` is its alone."""

    gateway: str
    host: str
    space: str
    pid: int
    since: str
    token: str

    @property
    def words(self) -> str:
        """The holder as text."""
        return f"{self.gateway} (process {self.pid} on {self.host}, since {self.since})"


class GatewayLease:
    """The lease of one gateway: taken before it serves, renewed twice a second, and given back at its end.

    A gateway whose bus does not answer serves without the lease and takes it once the bus answers. One that loses the lease to another,
    because it or its host stood still for longer than `EXPIRES_S`, goes on serving but posts nothing until the lease is free again.
    """

    def __init__(self, bus: Bus, gateway: str, now_s: float, *, on_change: Callable[[str], None]) -> None:
        """Does not take the lease yet. `bus` is started.

        `on_change` is called with the holder, as text, when another gateway has got the lease, and with an empty text when it is back.
        """
        since = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        self._bus = bus
        self._me = Holder(gateway, socket.gethostname(), _space(), os.getpid(), since, secrets.token_hex(8))
        self._text = msgspec.json.encode(self._me).decode()
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Takes the lease, at once from a gateway of this host that has ended, and starts to renew it.

        Raises:
            BusError: Another gateway has it.
        """
        held = await self._renew()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WAIT_S
        while held not in {"", self._text}:
            if loop.time() >= until_s:
                raise BusError(
                    f"another gateway uses this bus: {_words(held)}. Two gateways on one bus make the agents' measurements useless. Stop "
                    "the other one; or, to run two, give each its own bus.key_prefix, with agents of its own"
                )
            if self._has_ended(held):
                held = await self._renew(over=held)
            else:
                await asyncio.sleep(_LOOK_S)
                held = await self._renew()
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stops to renew the lease, and gives it back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)
            await self._bus.release_lease(LEASE, self._text)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                held = await self._renew()
                if held and self._bus.silent != (held != self._text):
                    self._bus.silent = held != self._text
                    self._on_change(_words(held) if self._bus.silent else "")
            except Exception:
                log.exception("renewing the lease of the bus failed")

    async def _renew(self, over: str = "") -> str:
        try:
            async with asyncio.timeout(EXPIRES_S):
                return await self._bus.take_lease(LEASE, self._text, EXPIRES_S, over=over)
        except TimeoutError:
            return ""

    def _has_ended(self, held: str) -> bool:
        """Whether the holder was a process of this host that is gone: the lease of one that was killed has not expired yet."""
        other = _holder(held)
        if other is None or not other.space or (other.host, other.space) != (self._me.host, self._me.space):
            return False
        if other.pid == self._me.pid:
            return True
        try:
            os.kill(other.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def _space() -> str:
    """The namespace in which process ids of this process count; empty if the system does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _holder(held: str) -> Holder | None:
    try:
        return msgspec.json.decode(held, type=Holder)
    except msgspec.DecodeError:
        return None


def _words(held: str) -> str:
    other = _holder(held)
    return held[:200] if other is None else other.words
