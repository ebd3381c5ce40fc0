"""Receives KV events over ZMQ: one SUB socket for each endpoint, and one DEALER while missed messages are being fetched.

Messages are decoded and applied in the event loop, in turns of about 2 ms with rests between them: at most about a quarter of the loop's
time, and never long at once. What is not read meanwhile waits in ZMQ's bounded queues, then at the engine.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

import zmq

from hmas.controller.config.section import KvEventsConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.kv_events.source import KvSource
from hmas.controller.routing.exact_index import ExactIndex

TURN_S, REST_SHARE = 0.002, 3.0
"""Length of a turn, and how much longer than it the rest after it is."""
MESSAGE_BYTES_MOST = 1 << 20
"""A larger message ends the connection: 200,000 token ids, where an engine's step computes some ten thousand."""
MESSAGES_WAITING_MOST = 64
"""Messages of one engine that wait here; further ones wait at the engine."""
REPLAYED_WAITING_MOST = 256
REPLAY_STALLED_S, REPLAY_MOST_S = 5.0, 120.0
"""How long a replay may give nothing, and last in all."""
HEARTBEAT_MS, HEARTBEAT_LOST_MS = 5_000, 15_000
END = -1
log = logging.getLogger(__name__)


Step = Callable[[], bool]
"""Does a bounded piece of work; False if there is none left."""


class KvListener:
    """The sockets of all sources.

    Args:
        sources: Each source with its configuration.
        index: Swept in the turns of this listener.
        now_s: The clock.
    """

    def __init__(self, sources: Sequence[tuple[KvSource, KvEventsConfig]], index: ExactIndex, now_s: Callable[[], float]) -> None:
        self._sources = sources
        self._config = {source.name: config for source, config in sources}
        self.now_s = now_s
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 2 * len(sources) + 64)
        self._feeds: dict[str, _Feed] = {}
        self._replays: dict[str, _Replay] = {}
        self._waiting: deque[Step] = deque()
        self._queued: set[Step] = set()
        self._turn: asyncio.Handle | None = None
        self._rest_until_s = 0.0
        self._index = index

    def start(self) -> None:
        """Opens the sockets; messages from before are fetched where that is possible.

        Raises:
            ConfigError: An endpoint cannot be used.
        """
        for source, config in self._sources:
            feed = self._feeds.get(config.endpoint)
            if feed is None:
                try:
                    feed = self._feeds[config.endpoint] = _Feed(self, config.endpoint)
                except zmq.ZMQError as error:
                    raise ConfigError(f"engines.{source.name}.kv_events.endpoint: {config.endpoint!r}: {error}") from error
            feed.add(source, config)
            self.fetch(source, 0)

    def close(self) -> None:
        """Closes every socket."""
        if self._turn is not None:
            self._turn.cancel()
        for replay in list(self._replays.values()):
            replay.close()
        for feed in self._feeds.values():
            feed.close()
        self.context.destroy(linger=0)

    def drained(self, source: KvSource) -> bool:
        """Whether all of a source's messages that have come are applied."""
        return self._feed_of(source).drained

    def fetch(self, source: KvSource, first: int) -> None:
        """Fetches messages from `first` on, if the source has an endpoint for that. Where no socket can be opened, a later try is owed."""
        endpoint = self._config[source.name].replay_endpoint
        if endpoint and not source.off(self.now_s()):
            if (before := self._replays.pop(source.name, None)) is not None:
                before.close()
            source.begin_replay(self.now_s())
            try:
                self._replays[source.name] = _Replay(self, source, endpoint, first)
            except zmq.ZMQError as error:
                log.warning("missed KV events of %s cannot be fetched now: %s", source.name, error)
                self.fetched(source, whole=False)

    def fetched(self, source: KvSource, *, whole: bool) -> None:
        """A replay is over."""
        if (replay := self._replays.pop(source.name, None)) is not None:
            replay.close()
        if source.replaying:
            source.end_replay(self.now_s(), whole=whole)
        self.work(self._feed_of(source).step)

    def watch(self, socket: "zmq.Socket[bytes]", step: Step) -> None:
        """Does a step whenever the socket may have messages."""

        def ready() -> None:
            # Reading the state clears the signal: the rest of what waits gives no further one.
            socket.get(zmq.EVENTS)
            self.work(step)

        asyncio.get_running_loop().add_reader(socket.fileno(), ready)
        self.work(step)

    def work(self, step: Step) -> None:
        """Does a step in one of the next turns, and again as long as there is more."""
        if step not in self._queued:
            self._queued.add(step)
            self._waiting.append(step)
        if self._turn is None:
            rest_s = self._rest_until_s - perf_counter()
            self._turn = asyncio.get_running_loop().call_later(max(0.0, rest_s), self._take_turn)

    def sweep(self) -> None:
        """Frees the memory of instances that were forgotten, in the turns."""
        self.work(self._index.sweep)

    def _feed_of(self, source: KvSource) -> "_Feed":
        return self._feeds[self._config[source.name].endpoint]

    def _take_turn(self) -> None:
        waiting, begun_s = self._waiting, perf_counter()
        until_s = begun_s + TURN_S
        while waiting and perf_counter() < until_s:
            step = waiting.popleft()
            self._queued.discard(step)
            try:
                more = step()
            except Exception:
                log.exception("reading KV events failed")
                continue
            if more:
                self.work(step)
        self._turn = None
        now_s = perf_counter()
        self._rest_until_s = now_s + REST_SHARE * (now_s - begun_s)
        if waiting:
            self.work(waiting[0])


class _Feed:
    """One SUB socket: of one source, or of several that connect to it and differ by topic."""

    def __init__(self, listener: KvListener, endpoint: str) -> None:
        self._listener = listener
        self.sources: dict[str, KvSource] = {}
        self.drained = True
        self._current: KvSource | None = None
        self._socket = _socket(listener.context, zmq.SUB, MESSAGES_WAITING_MOST)
        # An engine binds where its own setting has a `*`, else it connects; here it is the other way round.
        if "*" in endpoint:
            self._socket.bind(endpoint)
        else:
            self._socket.connect(endpoint)
        listener.watch(self._socket, self.step)

    def add(self, source: KvSource, config: KvEventsConfig) -> None:
        """Subscribes to a source's topic; the empty one is any."""
        self.sources[config.topic] = source
        self._socket.setsockopt_string(zmq.SUBSCRIBE, config.topic)

    def step(self) -> bool:
        """Applies one event, or takes one message."""
        listener = self._listener
        now_s = listener.now_s()
        if any(source.replaying for source in self.sources.values()):
            # They wait in ZMQ's queue, and after the replay they go on where it ended.
            return False
        if self._current is not None and self._current.pending:
            self._current.apply(now_s)
            return True
        frames = _received(self._socket)
        self.drained = frames is None
        if frames is None:
            return False
        topic = frames[0].decode("utf-8", "replace")
        source = self._current = self.sources.get(topic) or self.sources.get("")
        if source is None or source.off(now_s):
            return True
        if len(frames) != 3 or len(frames[1]) != 8:
            source.fault("format", f"a message of {len(frames)} frames; allowed: topic, sequence of 8 bytes, events", now_s)
            return True
        missing = source.message(int.from_bytes(frames[1], "big"), frames[2], now_s)
        if missing is not None:
            listener.fetch(source, missing)
        return True

    def close(self) -> None:
        """Closes the socket."""
        _close(self._socket)


class _Replay:
    """Fetches messages of one source from a sequence number on. An engine drops what a slow reader does not take: then it asks again."""

    def __init__(self, listener: KvListener, source: KvSource, endpoint: str, first: int) -> None:
        self._listener = listener
        self._source = source
        self._endpoint = endpoint
        self._begun_s = listener.now_s()
        self._replayed_before = source.replayed
        self._progress_s = self._begun_s
        self._socket = self._ask(first)
        self._timer = asyncio.get_running_loop().call_later(REPLAY_STALLED_S, self._look)

    def step(self) -> bool:
        """Applies one event, or takes one message."""
        listener, source = self._listener, self._source
        now_s = listener.now_s()
        if not source.replaying:
            listener.fetched(source, whole=False)
            return False
        if source.pending:
            source.apply(now_s)
            return True
        frames = _received(self._socket)
        if frames is None:
            return False
        self._progress_s = now_s
        if len(frames) < 2 or len(frames[-2]) != 8:
            source.fault("format", f"a replayed message of {len(frames)} frames; allowed: sequence of 8 bytes, events", now_s)
            return True
        sequence = int.from_bytes(frames[-2], "big", signed=True)
        if sequence == END:
            listener.fetched(source, whole=True)
            return False
        if not source.replay(sequence, frames[-1], now_s):
            _close(self._socket)
            self._socket = self._ask(source.expected or 0)
            source.begin_replay(now_s)
        return True

    def close(self) -> None:
        """Closes the socket."""
        self._timer.cancel()
        _close(self._socket)

    def _ask(self, first: int) -> "zmq.Socket[bytes]":
        socket = _socket(self._listener.context, zmq.DEALER, REPLAYED_WAITING_MOST)
        socket.connect(self._endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")], flags=zmq.NOBLOCK)
        self._listener.watch(socket, self.step)
        return socket

    def _look(self) -> None:
        now_s = self._listener.now_s()
        if now_s - self._progress_s >= REPLAY_STALLED_S or now_s - self._begun_s > REPLAY_MOST_S:
            # What has come so far counts: if more is missing, the next message shows it.
            self._listener.fetched(self._source, whole=self._source.replayed > self._replayed_before)
        else:
            self._timer = asyncio.get_running_loop().call_later(REPLAY_STALLED_S, self._look)


def _socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, waiting_most: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    for option, value in (
        (zmq.RCVHWM, waiting_most),
        (zmq.MAXMSGSIZE, MESSAGE_BYTES_MOST),
        (zmq.LINGER, 0),
        (zmq.IPV6, 1),
        (zmq.RECONNECT_IVL, 100),
        (zmq.RECONNECT_IVL_MAX, 5_000),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_LOST_MS),
    ):
        socket.setsockopt(option, value)
    return socket


def _received(socket: "zmq.Socket[bytes]") -> list[bytes] | None:
    try:
        return socket.recv_multipart(flags=zmq.NOBLOCK)
    except zmq.Again:
        return None


def _close(socket: "zmq.Socket[bytes]") -> None:
    if not socket.closed:
        asyncio.get_running_loop().remove_reader(socket.fileno())
        socket.close(linger=0)
