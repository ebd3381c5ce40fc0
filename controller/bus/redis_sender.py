"""The sender of messages to Redis: collects them briefly, writes them together, and keeps them until the server has confirmed them."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence

import hiredis
from redis.asyncio import Redis as RedisClient
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from hmas.controller.bus.link import ANSWER_TIMEOUT_S, LOST, Backoff, Link
from hmas.controller.bus.wire import Bounded, Wire, xadd
from hmas.controller.core.messages import MAXLEN

BUFFER = 20_000
"""Messages buffered while the server is unreachable; above this the oldest are dropped and counted."""
BUFFER_BYTES = 64 << 20
"""Bytes of all messages that are held, written and not answered ones included; above this the oldest that wait are dropped and counted."""
AHEAD = 2_048
"""Most messages that are written but not answered yet; further ones wait."""
GATHER_S = 0.002
"""How long a message waits for others in the same write: one write of ten messages costs little more than of one."""
PATIENT_S = 0.02
"""The same for messages that are not urgent."""
RETRIED = ("OOM", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MISCONF", "NOREPLICAS")
"""First words of temporary refusals: the server is full, a replica, not ready yet, cannot write to its disk, or lacks its replicas."""
log = logging.getLogger(__name__)


class Sender:
    """Appends messages to their streams, in the order in which they were posted, at least once each.

    Written messages are kept until their replies arrive. If the connection is lost or the server refuses temporarily, they go back to the
    front of the buffer, and the next connection begins with them.
    """

    def __init__(self, link: Link) -> None:
        """Does not connect yet."""
        self._link = link
        self._bounded = {stream: Bounded(link.key(stream), most) for stream, most in MAXLEN.items()}
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._written: deque[tuple[str, bytes]] = deque()
        # Bytes of the payloads in both.
        self._bytes = 0
        self._answers = 0
        self._wire: Wire | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._patient = False
        self._backoff = Backoff()
        self._emptied = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to connect; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="bus-sender")
            self._task.add_done_callback(self._ended)

    def post(self, stream: str, payload: bytes, *, patient: bool) -> None:
        """Buffers a message. A `patient` message is not urgent and may wait for a later write."""
        self._waiting.append((stream, payload))
        self._bytes += len(payload)
        self._trim()
        if self._wire is None:
            return
        if self._timer is None:
            self._patient = patient
            self._timer = asyncio.get_running_loop().call_later(PATIENT_S if patient else GATHER_S, self._flush)
        elif self._patient and not patient:
            self._timer.cancel()
            self._patient = False
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    def _trim(self) -> None:
        """Drops the oldest waiting messages while there are too many messages or bytes."""
        waiting = self._waiting
        while waiting and (len(waiting) > BUFFER or self._bytes > BUFFER_BYTES):
            self._bytes -= len(waiting.popleft()[1])
            self._link.drop(1)

    async def close(self, flush_s: float) -> None:
        """Sends remaining messages for up to `flush_s`, drops the rest, and ends. It also marks the link as closed."""
        if self._task is not None and not self._task.done():
            self._flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained(), flush_s)
        self._link.closed = True
        while self._task is not None and not self._task.done():
            # The client library loses a cancellation that arrives while it connects, so one may not be enough.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=0.1)
        self._link.drop(len(self._waiting) + len(self._written))

    async def _drained(self) -> None:
        while self._waiting or self._written:
            self._emptied.clear()
            await self._emptied.wait()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wire, waiting, written = self._wire, self._waiting, self._written
        if wire is None or wire.paused:
            return
        commands: list[bytes] = []
        while waiting and len(written) < AHEAD:
            entry = waiting.popleft()
            written.append(entry)
            stream, payload = entry
            commands.append(xadd(self._bounded[stream].head(len(payload)), payload))
        if commands:
            wire.write(commands[0] if len(commands) == 1 else b"".join(commands))

    def _answered(self, replies: Sequence[object]) -> None:
        link, written, wire = self._link, self._written, self._wire
        if wire is None:
            return
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                text = str(reply)
                if text.startswith(RETRIED):
                    wire.drop(text)
                    return
                if written:
                    link.drop(1)
                    log.error("bus: the server refuses an entry for %s: %s", written[0][0], text)
            if not written:
                wire.drop("the server answered more than it was asked")
                return
            self._bytes -= len(written.popleft()[1])
        self._answers += len(replies)
        if self._backoff.failures:
            self._backoff.reset()
        if not link.health.connected:
            link.works(sent=True)
        if self._waiting:
            if self._timer is None:
                self._flush()
        elif not written:
            self._emptied.set()

    async def _run(self) -> None:
        client = self._link.client()
        try:
            while not self._link.closed:
                try:
                    await self._keep(client)
                except LOST as error:
                    self._link.lost(error, sent=True)
                    await asyncio.sleep(self._backoff.next_s())
        finally:
            await self._link.release(client)

    async def _keep(self, client: RedisClient) -> None:
        """Connects, and sends until the connection is lost.

        Raises:
            RedisError: The connection was lost or could not be established. OSError likewise.
        """
        connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py annotates not this one
        try:
            await connection.connect()
            await connection.send_command("PING")
            await connection.read_response()
            wire = self._wire = Wire(connection, self._answered, self._flush)
            if not self._waiting:
                # Otherwise the first answers show whether the server accepts messages.
                self._link.works(sent=True)
            self._flush()
            await self._watch(wire)
        finally:
            self._wire = None
            self._waiting.extendleft(reversed(self._written))
            self._written.clear()
            self._trim()
            await connection.disconnect(nowait=True)

    async def _watch(self, wire: Wire) -> None:
        """Never returns; raises if the connection has ended, or if the server has been silent for too long."""
        while True:
            answers = self._answers
            awaited = bool(self._written)
            await asyncio.wait({wire.gone}, timeout=ANSWER_TIMEOUT_S)
            if wire.gone.done():
                raise RedisConnectionError(wire.gone.result())
            if awaited and self._answers == answers:
                raise RedisTimeoutError(f"the server has not answered for {ANSWER_TIMEOUT_S:g} s")

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Logs an unexpected end of the sender, which would otherwise show only as a silent bus."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._link.lost(error, sent=True)
            log.error("bus: the sender has died", exc_info=error)
