"""A run of engine steps that are planned at once."""

import math

from hmas.engines.sim.request import TokenEvent


class Stretch:
    """One step of any kind, or several steps in which the same sequences decode and nothing else happens.

    The j-th step ends `fixed_ms j + kv_ms (kv j + n j (j - 1) / 2)` milliseconds after the beginning: each step has a fixed cost plus the
    cost of reading the cache, `kv` tokens in the first step and `n` more (one per sequence) in each that follows.

    Attributes:
        begin_s: When its first step begins.
        steps: Number of steps; fewer after a cut. `begun`: steps that count as begun, up to the latest time that was queried.
        decode_seqs, prefill_tokens: The work of each step. `tokens_per_step`: the output tokens that result from it.
        first: Tokens that came out of prefills: first tokens, and tokens of sequences that were computed again.
        stopped: Last tokens of decoding sequences that finish or pause with the last step, each with its place in the batch.
        finished, paused: Sequences that finish, or wait for a tool, with the last step. `preempted`: sequences preempted in it.
        produced: Every token of a stretch of one step if tokens had to be counted one by one; else None.
        joined: The group's counter at the beginning: a sequence that joined later did not decode.
    """

    __slots__ = (
        "_fixed_ms",
        "_grow_ms",
        "_line_ms",
        "begin_s",
        "begun",
        "decode_seqs",
        "finished",
        "first",
        "joined",
        "paused",
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
        self._fixed_ms = fixed_ms
        self._line_ms = fixed_ms + kv_ms * kv
        self._grow_ms = 0.5 * kv_ms * seqs
        self.decode_seqs = seqs
        self.tokens_per_step = seqs
        self.prefill_tokens = 0
        self.joined = 0
        self.first: list[TokenEvent] = []
        self.stopped: list[tuple[int, TokenEvent]] = []
        self.finished: list[TokenEvent] = []
        self.paused: list[str] = []
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
