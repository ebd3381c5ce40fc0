"""What is to be sent to an MQTT broker: the newest state of each topic, and a bounded queue of what happened."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

BREAKS_MOST = 3
"""How often in a row the connection may break with the same message alone under way."""
ASIDE_FOR = 60
"""Values of a state topic that are left out after its messages have done so: a minute or some, since the broker may only have been slow."""


class Outgoing(NamedTuple):
    """One message. `correlation`: the correlation data of an answer, None if there is none."""

    topic: str
    payload: bytes
    retain: bool = False
    correlation: bytes | None = None


class Outbox:
    """Collects messages while the broker is away. A message leaves it once the broker has it, so it may be sent twice, never lost.
    Only one that the broker refuses, or on which it hangs up each time, is given up: what is behind it would never be sent.

    Attributes:
        dropped: Called with each number of messages that were dropped or given up.
        dropped_total: Messages that were dropped because the queue was full.
        refused_total: Messages that were given up.
        filled: Set when there is something to send.
    """

    def __init__(self, most: int) -> None:
        """Starts empty. `most`: messages that are queued; beyond it the oldest is dropped. A state replaces its predecessor instead."""
        self.filled = asyncio.Event()
        self.dropped: Callable[[int], None] = lambda _: None
        self.dropped_total = self.refused_total = 0
        self._most = most
        self._state: dict[str, bytes] = {}
        self._changed: dict[str, None] = {}
        self._queue: deque[Outgoing] = deque()
        self._sending = 0
        self._under_way: Sequence[Outgoing] = ()
        self._one_by_one = self._breaks = 0
        self._suspect: Outgoing | str = ""
        self._aside: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._changed) + len(self._queue)

    def keep(self, topic: str, payload: bytes) -> None:
        """Sets the state of a topic; the broker retains it. Nothing is sent if it has not changed."""
        if self._aside.get(topic):
            self._aside[topic] -= 1
        elif self._state.get(topic) != payload:
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
        """The next messages, states first; `sent` removes them. One caller at a time.

        After a break they come one by one, until those that were under way are through: only so the one that is to blame shows.
        """
        most = 1 if self._one_by_one else most
        states = [Outgoing(topic, self._state[topic], retain=True) for topic in list(self._changed)[:most]]
        queued = [self._queue[place] for place in range(min(most - len(states), len(self._queue)))]
        self._sending = len(queued)
        if not states and not queued:
            self.filled.clear()
        self._under_way = [*states, *queued]
        return self._under_way

    def sent(self, messages: Sequence[Outgoing]) -> None:
        """Removes what `take` returned last and the broker now has."""
        for message in messages:
            if message.retain and self._state.get(message.topic) == message.payload:
                self._changed.pop(message.topic, None)
        for _ in range(self._sending):
            self._queue.popleft()
        self._sending, self._under_way = 0, ()
        self._one_by_one = max(0, self._one_by_one - len(messages))
        if self._suspect in map(_key, messages):
            self._suspect = ""

    def broke(self) -> Outgoing | None:
        """The connection broke: returns the message that is given up for it, which has left the outbox then; None for no message."""
        under_way, self._under_way = self._under_way, ()
        if under_way:
            # The next session begins with all states.
            self._one_by_one = max(self._one_by_one, len(under_way)) + len(self._state)
        if len(under_way) != 1:
            return None
        (message,) = under_way
        self._breaks = self._breaks + 1 if self._suspect == _key(message) else 1
        self._suspect = _key(message)
        if self._breaks < BREAKS_MOST:
            return None
        self._suspect = ""
        if message.retain:
            self._aside[message.topic] = ASIDE_FOR
            del self._state[message.topic]
            self._changed.pop(message.topic, None)
        elif self._sending:
            self._queue.popleft()
        return message

    def count_refused(self) -> None:
        """Counts a message that the broker has refused or that is given up."""
        self.refused_total += 1
        self.dropped(1)


def _key(message: Outgoing) -> Outgoing | str:
    """What makes a message the same one: a state stays what it is when its values change."""
    return message.topic if message.retain else message
