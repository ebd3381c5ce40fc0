"""The interface of the bus. `RedisBus` uses a server; `NoBus` serves a gateway that has neither server nor agents."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hmas.controller.core.messages import Message


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that was read; `Bus.ack` needs its `stream` and `entry_id`."""

    stream: str
    entry_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class BusHealth:
    """State of this end of the bus.

    Attributes:
        connected: Whether the last exchange with the server worked.
        detail: What is wrong, as text; empty if connected.
        dropped: Messages dropped because the local buffer was full while the server was unreachable.
        rejected: Payloads that could not be decoded (malformed, unknown type or version).
        losses: How often a working connection was lost; it shows an occasional reader losses between its readings.
    """

    connected: bool
    detail: str = ""
    dropped: int = 0
    rejected: int = 0
    losses: int = 0


class Bus(Protocol):
    """Typed messages over streams, delivered at least once, so receivers are idempotent. The loss of the server raises no error."""

    silent: bool
    """While it is true, `post` discards messages: another process has the lease to post them."""

    @property
    def health(self) -> BusHealth:
        """State of this end as of the last exchange."""

    async def start(self) -> None:
        """Starts the background sender. Returns even if the server is not reachable yet; a second call does nothing."""

    def post(self, message: Message) -> None:
        """Adds a message to its stream without waiting; it is sent with the next batch. A full local buffer drops the oldest messages.

        Raises:
            MessageError: A field cannot be encoded; an error of the caller.
        """

    def read(
        self, streams: Sequence[str], *, group: str, consumer: str, count: int = 100, block_ms: int = 1000
    ) -> AsyncIterator[list[Delivery]]:
        """Yields batches for a consumer of a group: first its own unacknowledged entries, then new ones.

        A group that does not exist yet begins with the oldest entry that the stream still holds. Entries that another consumer of the
        group has left unacknowledged for a minute are delivered too. Yields [] after `block_ms` without entries and while the server is
        unreachable, so the caller's loop keeps running; ends when the bus is closed.
        """

    def follow(self, streams: Sequence[str], *, count: int = 100, block_ms: int = 1000) -> AsyncIterator[list[Delivery]]:
        """Yields batches of all new messages, without a group: every follower gets every message.

        Messages are new from the first iteration that reaches the server; after a lost connection, reading continues where it stopped.
        Yields [] like `read`; ends when the bus is closed.
        """

    async def ack(self, deliveries: Sequence[Delivery], *, group: str) -> None:
        """Marks deliveries as done for the group."""

    async def latest(self, stream: str, count: int = 1) -> list[Message]:
        """Returns the newest messages of a stream, oldest first; [] if there are none or the server is unreachable."""

    async def take_lease(self, name: str, holder: str, expires_s: float, *, over: str = "") -> str:
        """Takes a lease, or renews it; the server forgets it `expires_s` after the last renewal.

        `holder` is a text that no other process has; from `over`, a holder that is known to be gone, the lease is taken.

        Returns:
            Who holds it now: `holder`, or another one. Empty if the server does not answer; `health` does not change.
        """

    async def release_lease(self, name: str, holder: str) -> None:
        """Gives a lease back, if `holder` has it."""

    async def close(self) -> None:
        """Sends buffered messages for at most a second, then disconnects."""
