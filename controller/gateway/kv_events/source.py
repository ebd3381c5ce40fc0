"""The KV events of one instance: their sequence, its gaps and restarts, and what becomes of an instance whose events cannot be trusted."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

from msgspec import Raw

from hmas.controller.routing.exact_index import ExactIndex
from hmas.engines.errors import EngineProtocolError
from hmas.engines.kv_events import KvEvent, decode_kv_batch, decode_kv_event

State = Literal["waiting", "replaying", "live", "partial", "behind", "silent", "off"]
"""No event yet; missed ones are being fetched; every block is known; those from before are not; events come faster than they are applied;
none come although it computes; it sent what cannot be, and is not listened to for a while."""
Fault = Literal["format", "size", "flood", "jumps"]
FIRST_OFF_S, LONGEST_OFF_S = 10.0, 300.0
WELL_AFTER_S = 600.0
"""After so long without a fault, the next one counts as the first."""
REPLAY_EVERY_S, REPLAY_AGAIN_S = 2.0, 20.0
"""Least time between two replays, and while one is owed: the last gave nothing, or came too soon before the next gap."""
CATCH_UP_S = 5.0
"""After a replay, messages that it contained may still arrive for so long."""
SILENT_S = 30.0
SILENT_BLOCKS, SIZE_UNKNOWN = 16, 128
"""Blocks that an engine may compute without an event, and their size before any engine has told its own."""
JUMPS_MOST, JUMPS_WITHIN_S = 10, 60.0
"""Most gaps and restarts in that time; a sequence with more is no sequence."""
BEHIND_S, FLOOD_S = 5.0, 60.0
"""Seconds without a moment in which all events were applied: then the approximate index is used, and later the source is given up."""


class KvSource:
    """Applies the messages of one instance to the index, in their order.

    Args:
        name: The instance.
        index: Where its blocks go.
        replays: Whether missed messages can be fetched.
        on_fault: Called once for each fault that stops it, with the kind, what was wrong, and whether it is the first of its kind.

    Attributes:
        expected: The sequence number of the next message, None before the first.
        messages, events, ignored, gaps, replayed, restarts: Counts since the start.
        faults: Faults by kind.
        heard_s: When the newest message came, None before the first.
        pending: Events of the newest message that are not applied, or not even decoded, yet.
    """

    def __init__(self, name: str, index: ExactIndex, *, replays: bool, on_fault: Callable[[Fault, str, bool], None]) -> None:
        self.name = name
        self._index = index
        self._replays = replays
        self._on_fault = on_fault
        self.expected: int | None = None
        self.messages = self.events = self.ignored = self.gaps = self.replayed = self.restarts = 0
        self.faults: Counter[Fault] = Counter()
        self.heard_s: float | None = None
        self.pending: deque[KvEvent | Raw] = deque()
        self.replaying = False
        self._first_replayed = False
        self._complete = False
        self._group: int | None = None
        self._replay_s = self._fault_s = float("-inf")
        self._replay_owed = False
        self._off_until_s = self._off_s = 0.0
        self._caught_up_s, self._gap_at = 0.0, -1
        self._drained_s = float("inf")
        self._behind = self._silent = False
        self._breaks: deque[float] = deque(maxlen=JUMPS_MOST + 1)
        self._prompt_tokens = 0

    def off(self, now_s: float) -> bool:
        """Whether it is not listened to."""
        return now_s < self._off_until_s

    def state(self, now_s: float) -> State:
        """What it is worth now."""
        if self.off(now_s):
            return "off"
        if self.replaying:
            return "replaying"
        if self.expected is None:
            return "waiting"
        if self._behind:
            return "behind"
        if self._silent:
            return "silent"
        return "live" if self._complete else "partial"

    def message(self, sequence: int, payload: bytes, now_s: float) -> int | None:
        """Takes a message as it was published.

        Returns:
            The sequence number from which messages are missing, where they can be fetched; this one was not applied then.
        """
        if self.off(now_s):
            return None
        self.messages += 1
        expected = self.expected
        if expected is None or sequence != expected:
            if expected is not None and sequence < expected:
                if now_s < self._caught_up_s and sequence > self._gap_at:
                    # It was among those that were fetched.
                    return None
                # The engine has restarted.
                self.restarts += 1
                self._forget()
                expected = None
            self.gaps += expected is not None
            if self._jumps(now_s):
                return None
            if sequence > 0:
                if self._may_replay(now_s):
                    self._gap_at = sequence
                    return expected or 0
                self._replay_owed = self._replays
                self._forget()
            self._complete = sequence == 0
        self._caught_up_s = 0.0
        self._take(sequence, payload, now_s)
        return None

    def begin_replay(self, now_s: float) -> None:
        """Missed messages are being fetched; until they are there, the approximate index is used."""
        self.replaying, self._first_replayed, self._replay_s = True, False, now_s
        self._index.complete.discard(self.name)

    def replay(self, sequence: int, payload: bytes, now_s: float) -> bool:
        """Takes a message that was fetched. False if some before it are lost on the way, so that they have to be fetched again."""
        expected = self.expected or 0
        if sequence < expected or self.off(now_s):
            return True
        if sequence > expected:
            if self._first_replayed:
                return False
            # The engine does not keep the older ones any more.
            self._forget()
        if not self._first_replayed:
            self._complete = sequence == 0 or (self._complete and sequence == expected)
        self._first_replayed = True
        self.replayed += 1
        self._take(sequence, payload, now_s)
        return True

    def end_replay(self, now_s: float, *, whole: bool) -> None:
        """All missed messages have come, or (`whole` is false) they cannot be had."""
        self.replaying, self._replay_owed, self._replay_s = False, not whole, now_s
        self._caught_up_s = now_s + CATCH_UP_S
        if not whole:
            self._forget()
        elif self.expected is None:
            # An engine that has published nothing since it started.
            self.expected, self._complete, self.heard_s = 0, True, now_s
        elif not self._first_replayed:
            # It answers, and has published nothing that was missed: all that it computes is cached already.
            self.heard_s = now_s

    def apply(self, now_s: float) -> None:
        """Decodes or applies one event of `pending`."""
        event = self.pending.popleft()
        if isinstance(event, Raw):
            try:
                found = decode_kv_event(event)
            except EngineProtocolError as error:
                self.fault("format", str(error), now_s)
                return
            self.ignored += not found
            self.pending.extendleft(reversed(found))
            return
        self.events += 1
        if not event.hashes:
            live = self.name in self._index.complete
            self._index.clear(self.name)
            self._complete = True
            if live:
                self._index.complete.add(self.name)
        elif not event.tokens:
            if self._group in (None, event.group):
                self._index.removed(self.name, event.hashes)
        else:
            # Of several groups of layers that keep all blocks, one is enough.
            self._group = event.group if self._group is None else self._group
            if event.group == self._group and not self._index.stored(self.name, event):
                count, total = self._index.blocks_of(self.name), len(self._index)
                self.fault("size", f"more blocks than are kept: {count} of this instance, {total} of all", now_s)

    def tick(self, now_s: float, prompt_tokens: int, *, drained: bool) -> int | None:
        """Called every second: finds out whether the events still tell the truth about the cache.

        Args:
            now_s: The time.
            prompt_tokens: Prompt tokens that the engine has computed since its start, 0 if unknown.
            drained: Whether all of its messages are applied.

        Returns:
            The sequence number from which messages are to be fetched: nothing has come for long although the engine computes, or a replay
            is owed.
        """
        if drained or self.replaying or self.expected is None or self._drained_s > now_s:
            self._drained_s = now_s
        self._behind = now_s - self._drained_s > BEHIND_S
        if now_s - self._drained_s > FLOOD_S:
            self.fault("flood", f"events come faster than they can be applied, for {FLOOD_S:g} s", now_s)
        if self.heard_s is None or now_s - self.heard_s < SILENT_S:
            self._prompt_tokens = prompt_tokens or self._prompt_tokens
        elif 0 < prompt_tokens < self._prompt_tokens:
            # It has started anew, and counts from 0.
            self._prompt_tokens = 0
        size = max(self._index.sizes, default=SIZE_UNKNOWN)
        self._silent = prompt_tokens - self._prompt_tokens > SILENT_BLOCKS * size
        state = self.state(now_s)
        if state == "live":
            self._index.complete.add(self.name)
        else:
            self._index.complete.discard(self.name)
        if state == "silent" and now_s - self._replay_s > SILENT_S and self._replays:
            return self.expected
        if state == "partial" and self._replay_owed and self._may_replay(now_s):
            self._forget()
            return 0
        return None

    def fault(self, kind: Fault, reason: str, now_s: float) -> None:
        """Forgets the instance and does not listen to it for a while, longer each time."""
        self.faults[kind] += 1
        self._off_s = min(LONGEST_OFF_S, 2 * self._off_s) if now_s - self._fault_s < WELL_AFTER_S else FIRST_OFF_S
        self._fault_s, self._off_until_s = now_s, now_s + self._off_s
        self.replaying = False
        self._forget()
        self._on_fault(kind, reason, self.faults[kind] == 1)

    def _jumps(self, now_s: float) -> bool:
        """Whether its sequence has been broken too often."""
        self._breaks.append(now_s)
        if len(self._breaks) <= JUMPS_MOST or now_s - self._breaks[0] > JUMPS_WITHIN_S:
            return False
        self._breaks.clear()
        self.fault("jumps", f"its sequence was broken {JUMPS_MOST} times within {JUMPS_WITHIN_S:g} s", now_s)
        return True

    def _may_replay(self, now_s: float) -> bool:
        return self._replays and now_s - self._replay_s >= (REPLAY_AGAIN_S if self._replay_owed else REPLAY_EVERY_S)

    def _take(self, sequence: int, payload: bytes, now_s: float) -> None:
        self.expected = sequence + 1
        self.heard_s = now_s
        try:
            self.pending.extend(decode_kv_batch(payload))
        except EngineProtocolError as error:
            self.fault("format", str(error), now_s)

    def _forget(self) -> None:
        self.expected = None
        self._group = None
        self._complete = False
        self.pending.clear()
        self._index.clear(self.name)
