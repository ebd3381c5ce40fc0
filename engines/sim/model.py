"""The embedded engine as a pure step function: continuous batching with the semantics of vLLM V1's scheduler.

One step takes at most `max_num_batched_tokens` tokens. Running sequences come first, in their order: a decode takes one token, a
prefill the rest of its prompt or what is left of the budget (chunked prefill). What is left admits waiting sequences, as long as
their whole prompt fits into free KV blocks. A running sequence that finds no free block preempts the latest one (the one of lowest
priority under `priority`), which loses its blocks, goes back to the queue's front and is computed again.

The same object runs in virtual time and behind the HTTP server: it reads no clock, draws no number and does no I/O.
"""

import heapq
from typing import Literal

import msgspec

from engines.base import EngineSnapshot, KnobReport, Knobs
from engines.errors import EngineError
from engines.sim.profile import Profile

QueueOrder = Literal["fcfs", "priority"]


class SimRequest(msgspec.Struct, frozen=True):
    """A request as the engine sees it.

    Attributes:
        id: Unique among those in the engine.
        prompt_tokens: 1 or more.
        output_tokens: Tokens it will produce, 1 or more; the engine alone knows it.
        priority: LOWER goes first; counts under the queue order `priority` only.
        arrival_s: When it reached the engine; orders equal priorities.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    arrival_s: float = 0.0


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One token, there at the step's end.

    Attributes:
        tokens_so_far: Output tokens of this request including this one.
        finished: Whether it was the last.
        first: Whether it was the first.
    """

    id: str
    tokens_so_far: int
    finished: bool
    first: bool


class StepResult(msgspec.Struct, frozen=True):
    """What one step does; its tokens are there at `end_s`.

    Attributes:
        produced: One event per sequence that gets a token.
        preempted: Ids that lost their blocks in this step.
        prefill_tokens: Prompt tokens computed, recomputed ones too.
        decode_seqs: Sequences that decoded one token.
    """

    end_s: float
    produced: list[TokenEvent]
    preempted: list[str]
    prefill_tokens: int
    decode_seqs: int


class _Sequence:
    """A request inside the engine. `tokens` (prompt and output so far) is what `computed` has to catch up with."""

    __slots__ = ("blocks", "computed", "id", "key", "live", "output_tokens", "produced", "prompt_tokens", "scheduled", "tokens")

    def __init__(self, request: SimRequest, key: tuple[int, float, int]) -> None:
        self.id = request.id
        self.key = key
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.tokens = request.prompt_tokens
        self.computed = 0
        self.produced = 0
        self.blocks = 0
        self.scheduled = 0
        self.live = True


class EngineModel:
    """One engine instance in virtual time. One step costs time in proportion to the running sequences.

    Args:
        profile: Step times and sizes.
        n_run: Sequences that may run at once at start, and the knob's ceiling; None takes the profile's.
        token_budget: Tokens per step at start, and the knob's ceiling; None takes the profile's.
        order: `fcfs`, or `priority` for (priority, arrival) as in vLLM's `--scheduling-policy priority`.

    Raises:
        EngineError: `n_run` or `token_budget` is below 1.
    """

    def __init__(self, profile: Profile, n_run: int | None = None, token_budget: int | None = None, *, order: QueueOrder = "fcfs") -> None:
        self.profile = profile
        self.order: QueueOrder = order
        self._n_run_ceiling = _at_least_one("n_run", profile.max_num_seqs if n_run is None else n_run)
        self._budget_ceiling = _at_least_one("token_budget", profile.max_num_batched_tokens if token_budget is None else token_budget)
        self._n_run = self._n_run_ceiling
        self._budget = self._budget_ceiling
        self._free_blocks = profile.kv_blocks
        self._live: dict[str, _Sequence] = {}
        self._running: list[_Sequence] = []
        self._waiting: list[tuple[tuple[int, float, int], _Sequence]] = []
        self._added = 0
        self._preemptions = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the engine's own queue, preempted ones too."""
        return len(self._live) - len(self._running)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to step for."""
        return not self._live

    @property
    def free_blocks(self) -> int:
        """KV blocks not in use."""
        return self._free_blocks

    def add(self, request: SimRequest) -> None:
        """Queues a request.

        Raises:
            EngineError: Its id is in the engine already, a length is below 1, or prompt and output do not fit.
        """
        if request.id in self._live:
            raise EngineError(f"request id {request.id!r} is already in the engine")
        _at_least_one("prompt_tokens", request.prompt_tokens)
        _at_least_one("output_tokens", request.output_tokens)
        total = request.prompt_tokens + request.output_tokens
        allowed = min(self.profile.max_model_len, self.profile.kv_capacity_tokens)
        if total > allowed:
            raise EngineError(
                f"prompt_tokens {request.prompt_tokens} + output_tokens {request.output_tokens}: allowed up to {allowed} together"
            )
        self._added += 1
        # Under fcfs a preempted sequence keeps its place: all that still wait arrived after it.
        rank = (request.priority, request.arrival_s) if self.order == "priority" else (0, 0.0)
        sequence = _Sequence(request, (*rank, self._added))
        self._live[request.id] = sequence
        heapq.heappush(self._waiting, (sequence.key, sequence))

    def abort(self, request_id: str) -> bool:
        """Drops a request at once, running or waiting; False where the engine does not have it (any more)."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        sequence.live = False
        if sequence.blocks:
            self._running.remove(sequence)
            self._release(sequence)
        elif len(self._waiting) > 2 * self.waiting + 16:
            self._waiting = [entry for entry in self._waiting if entry[1].live]
            heapq.heapify(self._waiting)
        return True

    def step(self, now_s: float) -> StepResult | None:
        """Runs one step from `now_s`; None where there is nothing to do.

        State moves on at once; the tokens are there at the result's `end_s`, and the next step begins there.
        """
        if not self._live:
            return None
        preempted: list[str] = []
        while True:
            budget, victims = self._schedule_running(self._budget)
            preempted += victims
            if not victims:
                self._admit(budget)
            # A sequence that could only preempt itself leaves the round empty: schedule again, as vLLM does without a step.
            if not victims or budget < self._budget:
                return self._execute(now_s, preempted)

    def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Sets the knobs in force between 1 and their start-up values. Lowering `n_run` evicts nothing: the excess runs out."""
        applied: dict[str, int] = {}
        refused: dict[str, str] = {}
        for name, value, ceiling in (
            ("n_run", knobs.n_run, self._n_run_ceiling),
            ("token_budget", knobs.token_budget, self._budget_ceiling),
        ):
            if value is None:
                continue
            if 1 <= value <= ceiling:
                applied[name] = value
            else:
                refused[name] = f"{value}: allowed 1 to {ceiling}, the value at start"
        self._n_run = applied.get("n_run", self._n_run)
        self._budget = applied.get("token_budget", self._budget)
        return KnobReport(applied=applied, refused=refused)

    def snapshot(self, name: str, now_s: float) -> EngineSnapshot:
        """The engine's state under the instance's name."""
        blocks = self.profile.kv_blocks
        return EngineSnapshot(
            engine=name,
            taken_s=now_s,
            healthy=True,
            running=self.running,
            waiting=self.waiting,
            kv_usage=(blocks - self._free_blocks) / blocks,
            kv_capacity_tokens=self.profile.kv_capacity_tokens,
            max_num_seqs=self._n_run,
            max_num_batched_tokens=self._budget,
            max_num_seqs_ceiling=self._n_run_ceiling,
            max_num_batched_tokens_ceiling=self._budget_ceiling,
            preemptions_total=self._preemptions,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generation_tokens,
        )

    def _schedule_running(self, budget: int) -> tuple[int, list[str]]:
        """Gives running sequences their tokens; returns what is left of the budget and the ids preempted on the way."""
        running = self._running
        preempted: list[str] = []
        index = 0
        while index < len(running) and budget > 0:
            sequence = running[index]
            count = min(sequence.tokens - sequence.computed, budget)
            while not self._reserve(sequence, sequence.computed + count):
                victim_index = self._victim()
                victim = running.pop(victim_index)
                if victim_index < index:
                    index -= 1
                    budget += victim.scheduled
                self._preempt(victim)
                preempted.append(victim.id)
                if victim is sequence:
                    return budget, preempted
            sequence.scheduled = count
            budget -= count
            index += 1
        return budget, preempted

    def _admit(self, budget: int) -> None:
        """Moves waiting sequences into the batch while budget, window and blocks allow, never past one that does not fit."""
        waiting = self._waiting
        while waiting and budget > 0 and len(self._running) < self._n_run:
            sequence = waiting[0][1]
            if not sequence.live:
                heapq.heappop(waiting)
                continue
            if self._blocks_for(sequence.tokens) > self._free_blocks:
                return
            heapq.heappop(waiting)
            count = min(sequence.tokens, budget)
            self._reserve(sequence, count)
            sequence.scheduled = count
            budget -= count
            self._running.append(sequence)

    def _execute(self, now_s: float, preempted: list[str]) -> StepResult:
        """Computes what is scheduled; each sequence whose computation has caught up gets one token."""
        produced: list[TokenEvent] = []
        finished = False
        prefill_tokens = prefill_pairs = decode_seqs = decode_kv_tokens = 0
        for sequence in self._running:
            count = sequence.scheduled
            if not count:
                continue
            sequence.scheduled = 0
            if sequence.produced and sequence.tokens - sequence.computed == 1:
                decode_seqs += 1
                decode_kv_tokens += sequence.tokens
            else:
                prefill_tokens += count
                prefill_pairs += count * sequence.computed + count * (count + 1) // 2
            sequence.computed += count
            if sequence.computed == sequence.tokens:
                event = self._produce(sequence)
                produced.append(event)
                finished = finished or event.finished
        if finished:
            self._running = [sequence for sequence in self._running if sequence.live]
        duration_s = self.profile.step_duration_s(
            prefill_tokens=prefill_tokens, prefill_pairs=prefill_pairs, decode_seqs=decode_seqs, decode_kv_tokens=decode_kv_tokens
        )
        return StepResult(
            end_s=now_s + duration_s, produced=produced, preempted=preempted, prefill_tokens=prefill_tokens, decode_seqs=decode_seqs
        )

    def _produce(self, sequence: _Sequence) -> TokenEvent:
        sequence.tokens += 1
        sequence.produced += 1
        self._generation_tokens += 1
        if sequence.produced == 1:
            self._prompt_tokens += sequence.prompt_tokens
        if sequence.produced == sequence.output_tokens:
            del self._live[sequence.id]
            sequence.live = False
            self._release(sequence)
        return TokenEvent(sequence.id, sequence.produced, not sequence.live, sequence.produced == 1)

    def _victim(self) -> int:
        """Index of the running sequence to preempt: the last, or under `priority` the one of lowest priority."""
        if self.order == "fcfs":
            return len(self._running) - 1
        return max(range(len(self._running)), key=lambda index: self._running[index].key)

    def _preempt(self, sequence: _Sequence) -> None:
        self._release(sequence)
        sequence.computed = 0
        sequence.scheduled = 0
        self._preemptions += 1
        heapq.heappush(self._waiting, (sequence.key, sequence))

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)

    def _reserve(self, sequence: _Sequence, tokens: int) -> bool:
        """Grows a sequence's blocks to hold `tokens`; False, and nothing taken, where too few are free."""
        needed = -(-tokens // self.profile.block_size) - sequence.blocks
        if needed > self._free_blocks:
            return False
        if needed > 0:
            sequence.blocks += needed
            self._free_blocks -= needed
        return True

    def _release(self, sequence: _Sequence) -> None:
        self._free_blocks += sequence.blocks
        sequence.blocks = 0


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise EngineError(f"{name} {value}: allowed 1 or more")
    return value
