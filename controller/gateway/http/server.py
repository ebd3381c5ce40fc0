"""The public port: raw connections, parsed by httptools, with limits on their number and on the memory of each."""

import asyncio
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from socket import socket

from hmas.controller.gateway.http.connection import ClientConnection
from hmas.controller.gateway.http.server_state import Handler, ServerState
from hmas.controller.runtime.ports import BACKLOG

ROUND_S = 1.0
LOOK_S = 0.02
"""Between two looks at what clients have not taken yet, while the server ends."""


class HttpServer:
    """Listens on one address, or on bound sockets, and passes requests to `handler`; if a client leaves, its handler is cancelled.

    One timer serves all connections: a timer for each request would cost more than the rest of the bookkeeping.

    Attributes:
        state: What its connections share: which are open, and the memory of request bodies.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        host: str,
        port: int,
        max_body_bytes: int,
        max_body_bytes_total: int,
        max_connections: int,
        sockets: Sequence[socket] = (),
    ) -> None:
        self.state = ServerState(
            handler, max_body_bytes=max_body_bytes, max_body_bytes_total=max_body_bytes_total, max_connections=max_connections
        )
        self._host = host
        self._port = port
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port in use."""
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            OSError: The address is not available.
        """
        loop = asyncio.get_running_loop()
        self.state.now_s = loop.time()
        for sock in self._sockets:
            self._servers.append(await loop.create_server(self._connect, sock=sock, backlog=BACKLOG))
        if not self._sockets:
            self._servers.append(await loop.create_server(self._connect, self._host, self._port, backlog=BACKLOG))
        # uvloop raises nothing where an inherited socket cannot listen: another process may listen on its port since it was bound.
        if any(sock is None for server in self._servers for sock in server.sockets):
            raise OSError(errno.EADDRINUSE, f"{self._host} port {self._port}: {os.strerror(errno.EADDRINUSE)}")
        self._timer = loop.call_later(ROUND_S, self._watch)

    def stop_listening(self) -> None:
        """Accepts no new connections; open ones continue."""
        for server in self._servers:
            server.close()

    async def finish(self) -> None:
        """Returns when what is served now is answered, and its clients have taken the answers.

        A client that takes nothing for long loses its connection, as at any other time.
        """
        busy = [one for one in self.state.connections if one.task is not None or one.unsent]
        tasks = [task for one in busy if (task := one.task) is not None]
        if tasks:
            await asyncio.wait(tasks)
        while any(one.unsent for one in busy):  # noqa: ASYNC110 - no transport tells when its buffer is empty
            await asyncio.sleep(LOOK_S)

    async def close(self, grace_s: float = 1.0) -> None:
        """Ends all connections; running handlers, and clients that still take their answers, get `grace_s`."""
        self.stop_listening()
        state = self.state
        state.closing = True
        for connection in list(state.connections):
            connection.retire()
        tasks = [task for connection in state.connections if (task := connection.task) is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.finish()
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if tasks:
            # All of them are cancelled by now.
            await asyncio.wait(tasks, timeout=grace_s)
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            await server.wait_closed()

    def _connect(self) -> ClientConnection:
        return ClientConnection(self.state)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        state = self.state
        now_s = state.now_s = loop.time()
        state.common_headers.renew()
        state.bound_unread()
        for connection in [connection for connection in state.connections if connection.due_s <= now_s]:
            connection.expire()
        self._timer = loop.call_later(ROUND_S, self._watch)
