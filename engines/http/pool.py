"""The connections to one engine: opened on demand, reused while that is safe, and watched for silence."""

import asyncio
import socket
import ssl
from functools import cache
from urllib.parse import urlsplit

from hmas.engines.errors import EngineSilent
from hmas.engines.http.connection import Connection

KEEPALIVE_S = 4.0
"""How long an idle connection may be reused: less than the 5 s after which uvicorn (and so vLLM) closes it."""

ROUNDS = 4
"""Watch rounds within the allowed time of silence."""


class Pool:
    """Connections to `url`, a base address without a path.

    One timer watches all connections, because a timer for each request would cost more than the rest of its accounting.

    Args:
        url: `http://` or `https://`, host, and the port if it is not the scheme's default.
        connect_timeout_s: How long it may take to establish a connection.
        idle_timeout_s: Silence in the middle of an answer, while a reader waits for it, after which the connection is dropped.

    Attributes:
        connections: All that are open.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, idle_timeout_s: float) -> None:
        parts = urlsplit(url)
        self.authority = parts.netloc
        self._host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._round_s = min(1.0, idle_timeout_s / ROUNDS)
        self._idle: list[Connection] = []
        self.connections: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def free(self) -> Connection | None:
        """Returns the idle connection that was used last and is still clean, None if there is none."""
        if self._idle:
            oldest_s = asyncio.get_running_loop().time() - KEEPALIVE_S
            while self._idle:
                connection = self._idle.pop()
                if connection.usable and connection.idle_since_s > oldest_s and connection.clean:
                    return connection
                connection.drop()
        return None

    def drop_idle(self) -> None:
        """Drops the connections that no request uses."""
        while self._idle:
            self._idle.pop().drop()

    async def connect(self) -> Connection:
        """Opens a new connection.

        Raises:
            OSError: The engine cannot be reached (`TimeoutError` if that took too long).
        """
        loop = asyncio.get_running_loop()
        tls, name = (_tls(), self._host) if self._secure else (None, None)
        async with asyncio.timeout(self._connect_timeout_s):
            transport, connection = await loop.create_connection(
                lambda: Connection(self), self._host, self._port, ssl=tls, server_hostname=name
            )
        watch_peer(transport)
        self.connections.add(connection)
        if self._timer is None:
            self._timer = loop.call_later(self._round_s, self._watch)
        return connection

    def computes(self) -> None:
        """The engine's token counters have moved: it may be working on an answer that shows nothing (hidden reasoning)."""
        for connection in self.connections:
            connection.quiet_rounds = 0

    async def close(self) -> None:
        """Drops every connection and returns when all have ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._idle.clear()
        for connection in list(self.connections):
            connection.drop()
        for _ in range(ROUNDS):
            if self.connections:
                await asyncio.sleep(0)

    def freed(self, connection: Connection) -> None:
        """The answer has ended; the connection may carry another request."""
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """The connection has ended."""
        self.connections.discard(connection)

    def _watch(self) -> None:
        """One watch round: drops connections whose engine is silent, and connections that were idle for too long."""
        loop = asyncio.get_running_loop()
        limit = round(self._idle_timeout_s / self._round_s)
        for connection in list(self.connections):
            # The round in which the last bytes arrived is counted too, so one more has to pass.
            if connection.watched() > limit:
                connection.drop(EngineSilent(f"the engine was silent for {self._idle_timeout_s:g} s in the middle of its answer"))
        oldest_s = loop.time() - KEEPALIVE_S
        for connection in [idle for idle in self._idle if not idle.usable or idle.idle_since_s <= oldest_s]:
            self._idle.remove(connection)
            connection.drop()
        self._timer = loop.call_later(self._round_s, self._watch) if self.connections else None


@cache
def _tls() -> ssl.SSLContext:
    """One for all engines: reading the certificates takes milliseconds of the event loop."""
    return ssl.create_default_context()


def watch_peer(transport: asyncio.BaseTransport, *, untaken_s: float = 0.0) -> None:
    """Makes the kernel detect within half a minute that the other host is down; while it owes or awaits an answer nothing else would.

    Keepalive finds nothing while bytes are on their way to that host. `untaken_s`: how long they may be, where the platform knows such a
    limit; 0 for its own, a quarter of an hour on Linux. Linux also counts the time in which a host that is up takes no more bytes, and
    keepalive does not end a connection before this time has passed.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    limits = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", round(untaken_s * 1000)))
    for option, value in limits:
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
