"""The bus as its users see it. `RedisBus` is the real one; `MemoryBus` serves one process and the virtual-time tests."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hmas.controller.core.messages import Message


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it was read: `stream` and `entry_id` are what `Bus.ack` wants back."""

    stream: str
    entry_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class BusHealth:
    """State of this end of the bus.

    Attributes:
        connected: Whether the last exchange with the server worked.
        detail: What is wrong, in words; empty when connected.
        dropped: Messages given up because the local buffer was full while the server was away.
        rejected: Payloads read but not understood (malformed, unknown type or version).
        losses: How often a working connection was lost. Whoever looks now and then sees by it what came and went in between.
    """

    connected: bool
    detail: str = ""
    dropped: int = 0
    rejected: int = 0
    losses: int = 0


class Bus(Protocol):
    """Typed messages over streams. At least once: receivers are idempotent. Losing the server is survived, not raised."""

    @property
    def health(self) -> BusHealth:
        """State of this end as of the last exchange."""
        ...

    async def start(self) -> None:
        """Starts the background sender. Returns even when the server is not there yet; calling it again does nothing."""
        ...

    def post(self, message: Message) -> None:
        """Puts a message on its stream without waiting: it goes out with the next batch. The local buffer is bounded; the oldest go first.

        Raises:
            MessageError: A field holds what cannot be encoded; a fault of the caller.
        """
        ...

    def read(
        self, streams: Sequence[str], *, group: str, consumer: str, count: int = 100, block_ms: int = 1000
    ) -> AsyncIterator[list[Delivery]]:
        """Batches for a consumer of a group: first its own unacknowledged entries, then new ones.

        A group that does not exist yet begins with the oldest entry that the stream still holds. Entries that another consumer of the
        group has left unacknowledged for a minute come along too. Yields [] when a block runs out and while the server is away, so loops
        stay alive; ends when the bus is closed.
        """
        ...

    def follow(self, streams: Sequence[str], *, count: int = 100, block_ms: int = 1000) -> AsyncIterator[list[Delivery]]:
        """Batches of everything new, without a group: every follower sees every message.

        "New" counts from the first iteration that reaches the server, and a lost connection is taken up where it broke. Yields [] like
        `read`; ends when the bus is closed.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery], *, group: str) -> None:
        """Marks deliveries as done for the group."""
        ...

    async def latest(self, stream: str, count: int = 1) -> list[Message]:
        """The newest messages of a stream, oldest of them first; [] where there is none or the server is away."""
        ...

    async def close(self) -> None:
        """Sends what is buffered, for at most a second, and disconnects."""
        ...
