"""The seam between a request's life and whatever speaks HTTP: a request that has been read, and the way back to its client."""

from collections.abc import Mapping
from typing import Protocol


class HttpRequest(Protocol):
    """One request whose head has been parsed.

    Attributes:
        method: Upper case.
        path: Without the query.
        headers: Looked up without regard to case.
    """

    method: str
    path: str
    headers: Mapping[str, str]

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            ApiError: 413 where it is larger than configured, 408 where it did not arrive in time.
        """
        ...


class Responder(Protocol):
    """The way back to the client. The transport cancels the task that serves a request as soon as its client is gone."""

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Sends the head of a streamed answer; it may be held until the first bytes of the body."""
        ...

    def write(self, data: bytes) -> bool:
        """Passes bytes on without waiting. False asks the caller to `drain` before it writes more.

        Raises:
            ConnectionError: The client is gone.
        """
        ...

    async def drain(self) -> None:
        """Returns when the client keeps up again.

        Raises:
            ConnectionError: The client is gone.
        """
        ...

    async def finish(self) -> None:
        """Ends a streamed answer."""
        ...

    async def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer at once."""
        ...

    def abandon(self) -> None:
        """Drops the connection: the answer cannot be ended properly."""
        ...

    @property
    def disconnected(self) -> bool:
        """Whether the client is known to be gone."""
        ...
