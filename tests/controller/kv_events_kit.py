"""Events as engines publish them, and a publisher on real sockets."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from hmas.engines.kv_events import KvEvent, decode_kv_batch, decode_kv_event

BLOCK = 16


def stored(tokens: list[int], *, parent: Any = None, size: int = BLOCK, start: int = 0, **more: Any) -> dict[str, Any]:
    """A vLLM event for the whole blocks of `tokens`; the engine's hash of a block is text of all tokens up to it."""
    hashes = [engine_hash(tokens, end) for end in range(start + size, len(tokens) + 1, size)]
    if start:
        parent = engine_hash(tokens, start)
    event = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens[start : start + size * len(hashes)],
    }
    return event | {"block_size": size, "lora_id": None, "medium": "GPU", "lora_name": None} | more


def removed(tokens: list[int], ends: list[int]) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [engine_hash(tokens, end) for end in ends], "medium": "GPU"}


def engine_hash(tokens: list[int], end: int) -> bytes:
    return hashlib.sha256(repr(tokens[:end]).encode()).digest()


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def event_of(document: Any) -> KvEvent:
    (raw,) = decode_kv_batch(batch(document))
    (event,) = decode_kv_event(raw)
    return event


class Publisher:
    """Publishes as vLLM does: PUB at `endpoint`, and a ROUTER that gives out what it has kept; `lost` messages are kept only."""

    def __init__(self, context: zmq.asyncio.Context, topic: str = "", *, keeps: int = 1000, bind: bool = True, endpoint: str = "") -> None:
        self.topic = topic
        self.keeps = keeps
        self.sequence = 0
        self.kept: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self._context = context
        self._pub = context.socket(zmq.PUB)
        self._router = context.socket(zmq.ROUTER)
        if bind:
            self._pub.bind(endpoint or "tcp://127.0.0.1:*")
            endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        else:
            self._pub.connect(endpoint)
        self.endpoint = endpoint
        self._router.bind("tcp://127.0.0.1:*")
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._task = asyncio.create_task(self._serve())

    async def publish(self, *events: Any, lost: bool = False, sequence: int | None = None, payload: bytes | None = None) -> None:
        number = self.sequence if sequence is None else sequence
        data = batch(*events) if payload is None else payload
        self.sequence = number + 1
        self.kept = [*self.kept, (number, data)][-self.keeps :]
        if not lost:
            await self.raw(self.topic.encode(), number.to_bytes(8, "big"), data)

    async def raw(self, *frames: bytes) -> None:
        await self._pub.send_multipart(list(frames))

    def restart(self) -> None:
        """The engine starts anew: its sequence begins at 0, and it has kept nothing."""
        self.sequence, self.kept = 0, []

    async def _serve(self) -> None:
        while True:
            client, _, first = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(first, "big"))
            for number, data in self.kept:
                if number >= self.asked[-1]:
                    await self._router.send_multipart([client, b"", self.topic.encode(), number.to_bytes(8, "big"), data])
            await self._router.send_multipart([client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._pub.close(linger=0)
        self._router.close(linger=0)


@contextmanager
def silent_endpoint() -> Iterator[str]:
    """An address that nothing listens at, where a publisher may bind later. No test beside this one gets it meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{held.getsockname()[1]}"


@asynccontextmanager
async def publishers(count: int = 1, **options: Any) -> AsyncIterator[list[Publisher]]:
    context = zmq.asyncio.Context()
    made = [Publisher(context, **options) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            await one.close()
        context.destroy(linger=0)
