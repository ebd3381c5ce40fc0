"""Runs of decode steps: the decoding sequences as one group, and the steps that are planned at once."""

import heapq
import math

from hmas.engines.sim.request import TokenEvent
from hmas.engines.sim.sequence import Sequence


class DecodeGroup:
    """All sequences that take exactly one token per step, in the order in which they joined the batch.

    Each step gives each sequence one token, so the state of the group follows from the number of steps. The cached tokens that a step reads
    grow by the number of sequences, a sequence needs a new KV block when its length passes a multiple of the block size, and each finishes
    at a step that is known when it joins. So a run of many steps costs as much to compute as one step.

    Attributes:
        members: Sequences by id, in the order of the batch.
        steps: Decode steps of the group since the start. A member's `tokens` are its `base` plus this.
        joined: Number of sequences that have joined so far, which is the place of the latest in the order of the batch.
    """

    def __init__(self, block_size: int) -> None:
        self.members: dict[str, Sequence] = {}
        self.steps = 0
        self._size = block_size
        self.joined = 0
        self._kv_base = 0
        # By residue of the step modulo the block size: how many members need a new block at such a step.
        self._by_residue = [0] * block_size
        self._stops: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self.members)

    @property
    def kv_tokens(self) -> int:
        """Cached tokens that the next step reads."""
        return self._kv_base + len(self.members) * self.steps

    def join(self, sequence: Sequence) -> None:
        """Adds a sequence with exactly one token left to compute."""
        base = sequence.base = sequence.tokens - self.steps
        self.joined += 1
        sequence.joined = self.joined
        self.members[sequence.id] = sequence
        self._kv_base += base
        self._by_residue[(1 - base) % self._size] += 1
        heapq.heappush(self._stops, (sequence.output_tokens + sequence.prompt_tokens - base, self.joined, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Removes a sequence and updates its own counts."""
        self.settle(sequence)
        del self.members[sequence.id]
        self._kv_base -= sequence.base
        self._by_residue[(1 - sequence.base) % self._size] -= 1
        sequence.joined = 0

    def settle(self, sequence: Sequence) -> None:
        """Updates a member's own counts."""
        sequence.tokens = sequence.base + self.steps
        sequence.computed = sequence.tokens - 1
        sequence.blocks = -(-sequence.computed // self._size)

    def dissolve(self) -> list[Sequence]:
        """Removes all sequences and returns them in the order of the batch."""
        members = list(self.members.values())
        for sequence in members:
            self.settle(sequence)
            sequence.joined = 0
        self.members = {}
        self._kv_base = 0
        self._by_residue = [0] * self._size
        self._stops = []
        return members

    def blocks_for(self, steps: int) -> int:
        """New KV blocks that this many steps need."""
        size = self._size
        rounds, rest = divmod(steps, size)
        need = rounds * len(self.members)
        if rest:
            counts, at = self._by_residue, self.steps
            for step in range(at, at + rest):
                need += counts[step % size]
        return need

    def steps_within(self, free_blocks: int) -> int:
        """The number of steps for which the free blocks suffice, at most up to the next stop."""
        most = self._next_stop() - self.steps
        if not self.members or self.blocks_for(most) <= free_blocks:
            return most
        # Whole rounds first: each takes one block per member.
        steps = max(0, free_blocks // len(self.members) - 1) * self._size
        left = free_blocks - self.blocks_for(steps)
        while steps < most:
            left -= self._by_residue[(self.steps + steps) % self._size]
            if left < 0:
                break
            steps += 1
        return steps

    def advance(self, steps: int) -> list[tuple[int, Sequence]]:
        """Runs this many steps, which must not pass the next stop.

        Returns:
            The sequences that stop at the last step, already removed, each with its place in the order of the batch.
        """
        self.steps += steps
        stopped: list[tuple[int, Sequence]] = []
        stops = self._stops
        while stops and stops[0][0] <= self.steps:
            _, joined, sequence = heapq.heappop(stops)
            if sequence.joined == joined:
                self.leave(sequence)
                stopped.append((joined, sequence))
        return stopped

    def tokens(self, behind: int) -> list[tuple[str, int]]:
        """Returns id and output tokens of each member as of `behind` steps ago."""
        steps = self.steps - behind
        return [(name, sequence.base + steps - sequence.prompt_tokens) for name, sequence in self.members.items()]

    def _next_stop(self) -> int:
        stops = self._stops
        while stops and stops[0][2].joined != stops[0][1]:
            heapq.heappop(stops)
        return stops[0][0] if stops else self.steps


class Stretch:
    """One step of any kind, or several steps in which the same sequences decode and nothing else happens.

    The j-th step ends `fixed_ms j + kv_ms (kv j + n j (j - 1) / 2)` milliseconds after the beginning: each step has a fixed cost plus the
    cost of reading the cache, `kv` tokens in the first step and `n` more (one per sequence) in each that follows.

    Attributes:
        begin_s: When its first step begins.
        steps: Number of steps; fewer after a cut. `begun`: steps that count as begun, up to the latest time that was queried.
        decode_seqs, prefill_tokens: The work of each step. `tokens_per_step`: the output tokens that result from it.
        first: Tokens that came out of prefills: first tokens, and tokens of sequences that were computed again.
        stopped: Last tokens of decoding sequences that finish with the last step, each with its place in the batch.
        finished: Last tokens of all sequences that finish with the last step. `preempted`: sequences preempted in it.
        produced: Every token of a stretch of one step if tokens had to be counted one by one; else None.
        joined: The group's counter at the beginning: a sequence that joined later did not decode.
    """

    __slots__ = (
        "_grow_ms",
        "_line_ms",
        "begin_s",
        "begun",
        "decode_seqs",
        "finished",
        "first",
        "joined",
        "preempted",
        "prefill_tokens",
        "produced",
        "steps",
        "stopped",
        "tokens_per_step",
    )

    def __init__(self, begin_s: float, steps: int, fixed_ms: float, *, kv_ms: float = 0.0, seqs: int = 0, kv: int = 0) -> None:
        self.begin_s = begin_s
        self.steps = steps
        self.begun = 0
        self._line_ms = fixed_ms + kv_ms * kv
        self._grow_ms = 0.5 * kv_ms * seqs
        self.decode_seqs = seqs
        self.tokens_per_step = seqs
        self.prefill_tokens = 0
        self.joined = 0
        self.first: list[TokenEvent] = []
        self.stopped: list[tuple[int, TokenEvent]] = []
        self.finished: list[TokenEvent] = []
        self.preempted: list[str] = []
        self.produced: list[TokenEvent] | None = None

    @property
    def end_s(self) -> float:
        """When its last step ends."""
        return self.end_of(self.steps)

    def end_of(self, step: int) -> float:
        """When its `step`-th step ends, counted from 1; 0 gives the beginning of the stretch."""
        return self.begin_s + 1e-3 * (self._line_ms * step + self._grow_ms * step * (step - 1))

    def begun_by(self, now_s: float) -> int:
        """Number of steps that have begun before `now_s`, at least 1. The last of them is the first step that ends at `now_s` or later."""
        steps = self.steps
        if steps == 1 or self.end_of(1) >= now_s:
            return 1
        if self.end_of(steps - 1) < now_s:
            return steps
        passed_ms = 1000.0 * (now_s - self.begin_s)
        grow, line = self._grow_ms, self._line_ms - self._grow_ms
        guess = (
            passed_ms / line
            if grow * passed_ms < 1e-9 * line * line
            else (math.sqrt(line * line + 4.0 * grow * passed_ms) - line) / (2.0 * grow)
        )
        step = min(max(1, int(guess)), steps)
        while self.end_of(step) < now_s:
            step += 1
        while step > 1 and self.end_of(step - 1) >= now_s:
            step -= 1
        return step
