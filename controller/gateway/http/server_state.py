"""What all connections of a server share, and who makes room where there are too many of them."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hmas.controller.gateway.http.answer import CommonHeaders
from hmas.controller.gateway.http.body import BodyMemory
from hmas.controller.gateway.http.transport import HttpRequest, Responder

if TYPE_CHECKING:
    from hmas.controller.gateway.http.connection import ClientConnection

UNREAD_BYTES_MOST = 1 << 30
"""Bytes of answers that may wait for all clients together, before patience with those that do not read ends sooner."""
CROWDED_S = 10.0
"""How long a client may take no part of its answer then. The kernel's buffers hide progress in steps of about a megabyte, so that a client
that reads less than a megabit per second may pass for one that does not read."""
Handler = Callable[[HttpRequest, Responder], Awaitable[None]]


def _unheard(*_: str) -> None:
    return


class ServerState:
    """State shared by all connections of a server.

    Attributes:
        handler: Serves a request.
        on_refused: Called with the code of each error with which a connection ends before a request of it is served.
        on_unread: Called when a connection is closed because its client takes too little of its answer.
        max_body_bytes, max_connections: The configured limits.
        body_memory: Counts the bytes of all bodies that are held.
        now_s: The loop's time at the last round of the server's watch, which is exact enough for time-outs.
        connections: All open connections.
        idle: Those that wait for the head of a request, the one that has been idle longest first.
        closing: Whether every answer ends its connection from now on.
    """

    def __init__(self, handler: Handler, *, max_body_bytes: int, max_body_bytes_total: int, max_connections: int) -> None:
        self.handler = handler
        self.on_refused: Callable[[str], None] = _unheard
        self.on_unread: Callable[[], None] = _unheard
        self.max_body_bytes = max_body_bytes
        self.body_memory = BodyMemory(max_body_bytes_total, max_body_bytes)
        self.max_connections = max_connections
        self.now_s = 0.0
        self.common_headers = CommonHeaders()
        self.connections: set[ClientConnection] = set()
        self.idle: OrderedDict[ClientConnection, None] = OrderedDict()
        self.closing = False

    def make_room(self) -> bool:
        """Closes the connection that has been idle longest; False if none is idle."""
        while self.idle:
            connection, _ = self.idle.popitem(last=False)
            # A client that has not taken its last answer yet is not idle before it has.
            if not connection.unsent:
                connection.retire()
                return True
        return False

    def bound_unread(self) -> None:
        """Closes connections of clients that do not read, the largest answers first, where the answers of all are too many bytes."""
        excess = sum([one.unsent for one in self.connections]) - UNREAD_BYTES_MOST
        if excess > 0:
            for connection in sorted(self.connections, key=_unsent, reverse=True):
                excess -= connection.give_up(CROWDED_S)
                if excess <= 0:
                    break


def _unsent(connection: "ClientConnection") -> int:
    return connection.unsent
