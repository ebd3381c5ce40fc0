"""What is to be sent to an MQTT broker: the newest state of each topic, and a bounded queue of what happened."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Outgoing(NamedTuple):
    """One message. `correlation`: the correlation data of an answer, None if there is none."""

    topic: str
    payload: bytes
    retain: bool = False
    correlation: bytes | None = None


class Outbox:
    """Collects messages while the broker is away. A message leaves it once the broker has it, so it may be sent twice, never lost.

    Attributes:
        dropped: Called with each number of messages that were dropped because the queue was full; `dropped_total` is their sum.
        filled: Set when there is something to send.
    """

    def __init__(self, most: int) -> None:
        """Starts empty. `most`: messages that are queued; beyond it the oldest is dropped. A state replaces its predecessor instead."""
        self.filled = asyncio.Event()
        self.dropped: Callable[[int], None] = lambda _: None
        self.dropped_total = 0
        self._most = most
        self._state: dict[str, bytes] = {}
        self._changed: dict[str, None] = {}
        self._queue: deque[Outgoing] = deque()
        self._sending = 0

    def __len__(self) -> int:
        return len(self._changed) + len(self._queue)

    def keep(self, topic: str, payload: bytes) -> None:
        """Sets the state of a topic; the broker retains it. Nothing is sent if it has not changed."""
        if self._state.get(topic) != payload:
            self._state[topic] = payload
            self._changed[topic] = None
            self.filled.set()

    def add(self, message: Outgoing) -> None:
        """Queues a message that is sent once."""
        if len(self._queue) >= self._most:
            self._queue.popleft()
            self._sending = max(0, self._sending - 1)
            self.dropped_total += 1
            self.dropped(1)
        self._queue.append(message)
        self.filled.set()

    def send_all_state(self) -> None:
        """Sends the state of every topic again: another session may have replaced it."""
        self._changed = dict.fromkeys(self._state)
        self.filled.set()

    def take(self, most: int) -> Sequence[Outgoing]:
        """The next messages, states first; `sent` removes them. One caller at a time."""
        states = [Outgoing(topic, self._state[topic], retain=True) for topic in list(self._changed)[:most]]
        queued = [self._queue[place] for place in range(min(most - len(states), len(self._queue)))]
        self._sending = len(queued)
        if not states and not queued:
            self.filled.clear()
        return [*states, *queued]

    def sent(self, messages: Sequence[Outgoing]) -> None:
        """Removes what `take` returned last and the broker now has."""
        for message in messages:
            if message.retain and self._state.get(message.topic) == message.payload:
                self._changed.pop(message.topic, None)
        for _ in range(self._sending):
            self._queue.popleft()
        self._sending = 0
