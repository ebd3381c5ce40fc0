"""The engine's rules written down the plain way, one token of one sequence at a time: what the fast model has to agree with."""

import heapq

from hmas.engines.sim.profile import Profile
from hmas.engines.sim.request import SimRequest, StepResult, TokenEvent


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


class ReferenceEngine:
    """One engine instance in virtual time. One step costs time in proportion to the running sequences."""

    def __init__(self, profile: Profile, n_run: int | None = None, token_budget: int | None = None, *, order: str = "fcfs") -> None:
        self.profile = profile
        self.order: str = order
        self.n_run = profile.max_num_seqs if n_run is None else n_run
        self.budget = profile.max_num_batched_tokens if token_budget is None else token_budget
        self._free_blocks = profile.kv_blocks
        self._live: dict[str, _Sequence] = {}
        self._running: list[_Sequence] = []
        self._waiting: list[tuple[tuple[int, float, int], _Sequence]] = []
        self._added = 0
        self.preemptions = 0

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

    def add(self, request: SimRequest) -> None:
        """Queues a request."""
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
            budget, victims = self._schedule_running(self.budget)
            preempted += victims
            if not victims:
                self._admit(budget)
            # A sequence that could only preempt itself leaves the round empty: schedule again, as vLLM does without a step.
            if not victims or budget < self.budget:
                return self._execute(now_s, preempted)

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
        while waiting and budget > 0 and len(self._running) < self.n_run:
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
        prefill_tokens = prefill_pairs = prefill_seqs = decode_seqs = decode_kv_tokens = 0
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
                prefill_seqs += 1
                prefill_pairs += count * sequence.computed + count * (count + 1) // 2
            sequence.computed += count
            if sequence.computed == sequence.tokens:
                event = self._produce(sequence)
                produced.append(event)
                finished = finished or event.finished
        if finished:
            self._running = [sequence for sequence in self._running if sequence.live]
        duration_s = self.profile.step_duration_s(
            prefill_tokens=prefill_tokens,
            prefill_pairs=prefill_pairs,
            decode_seqs=decode_seqs,
            decode_kv_tokens=decode_kv_tokens,
            prefill_seqs=prefill_seqs,
        )
        return StepResult(
            end_s=now_s + duration_s, produced=produced, preempted=preempted, prefill_tokens=prefill_tokens, decode_seqs=decode_seqs
        )

    def _produce(self, sequence: _Sequence) -> TokenEvent:
        sequence.tokens += 1
        sequence.produced += 1
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
        self.preemptions += 1
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
