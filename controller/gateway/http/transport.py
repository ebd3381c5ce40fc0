"""The seam between a request's life and whatever speaks HTTP: a request that has been read, and the way back to its client."""

from collections.abc import Callable, Mapping
from typing import Protocol


class HttpRequest(Protocol):
    """One request whose head has been parsed.

    Attributes:
        method: Upper case.
        path: Without the query.
        headers: By lower-case name.
    """

    method: str
    path: str
    headers: Mapping[str, str]

    async def body(self) -> bytes:
        """The whole body; without a pause where it is there already.

        Raises:
            ApiError: 413 where it is larger than configured, 408 where it did not arrive in time, 400 where it is malformed.
        """
        ...


class Responder(Protocol):
    """The way back to the client. The transport cancels the task that serves a request as soon as its client is gone.

    Nothing here waits but `drain`: a piece of a stream goes from the engine's connection to the client's in one callback.
    """

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Begins a streamed answer; its head is held until the first bytes of the body."""
        ...

    def write(self, data: bytes) -> bool:
        """Passes bytes on, some at least. False: the client does not keep up, and nothing more is to be written until it does.

        Raises:
            ConnectionError: The client is gone.
        """
        ...

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Names who is told each time the client keeps up again after a `write` that was False."""
        ...

    async def drain(self) -> None:
        """Returns when the client keeps up.

        Raises:
            ConnectionError: The client is gone.
        """
        ...

    def finish(self, data: bytes = b"") -> None:
        """Ends a streamed answer, with its last bytes where they have not been written."""
        ...

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer at once. Where one is under way already, the connection breaks instead.

        Raises:
            ConnectionError: The client is gone.
        """
        ...

    def abandon(self) -> None:
        """Drops the connection: the answer cannot be ended properly."""
        ...

    @property
    def disconnected(self) -> bool:
        """Whether the client is known to be gone."""
        ...
