"""The interface between a request's life and its HTTP transport: a request that has been read, and the answer to its client."""

from collections.abc import Callable, Mapping
from typing import Protocol


class HttpRequest(Protocol):
    """One request with a parsed head.

    Attributes:
        method: The method, in upper case.
        path: The path without the query. `query`: the query as received, without its question mark; empty if there is none.
        headers: Values by lower-case name.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    async def body(self) -> bytes:
        """The whole body; returns at once if it has already arrived.

        Raises:
            ApiError: 413 if it is larger than configured, 408 if it did not arrive in time, 400 if it is malformed.
        """


class Responder(Protocol):
    """The answer to a client. The transport cancels the task that serves a request as soon as its client is gone.

    Only `drain` waits: a piece of a stream passes from the engine's connection to the client's in one callback.
    """

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Starts a streamed answer; its head is held until the first bytes of the body."""

    def write(self, data: bytes) -> bool:
        """Sends at least one byte. False: the client reads too slowly, and the caller has to stop writing until it keeps up.

        Raises:
            ConnectionError: The client is gone.
        """

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Sets the callback for each time the client keeps up again after a `write` that returned False."""

    async def drain(self) -> None:
        """Returns when the client keeps up.

        Raises:
            ConnectionError: The client is gone.
        """

    def finish(self, data: bytes = b"") -> None:
        """Ends a streamed answer, with its last bytes if they have not been written."""

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Sends a whole answer at once. If an answer has already started, the connection is broken instead.

        Raises:
            ConnectionError: The client is gone.
        """

    def abandon(self) -> None:
        """Drops the connection, because the answer cannot be ended properly."""

    def spent_s(self) -> float:
        """Seconds since the head of the request had arrived, without the time for which the body was waited for."""
