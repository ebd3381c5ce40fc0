"""The running batch of an engine model: which sequences the next step computes, which join, and which are preempted."""

from hmas.engines.sim.blocks import BlockPool
from hmas.engines.sim.decoding import DecodeGroup, Stretch
from hmas.engines.sim.profile import Profile
from hmas.engines.sim.request import TokenEvent
from hmas.engines.sim.sequence import EngineQueue, Sequence


class _Work:
    """What one step computes: decodes, and pieces of contexts."""

    __slots__ = ("decodes", "kv_tokens", "pairs", "prefilled", "prompts", "tokens")

    def __init__(self, decodes: int, kv_tokens: int) -> None:
        self.decodes = decodes
        self.kv_tokens = kv_tokens
        self.tokens = 0
        self.pairs = 0
        self.prompts = 0
        self.prefilled: list[Sequence] = []

    def take(self, sequence: Sequence, count: int) -> None:
        """Adds `count` tokens of a sequence to the step; if only the sequence's latest token is missing, it is a decode."""
        computed = sequence.computed
        if sequence.tokens - computed == 1 and sequence.tokens > sequence.prompt_tokens:
            self.decodes += 1
            self.kv_tokens += sequence.tokens
        else:
            self.tokens += count
            self.prompts += 1
            self.pairs += count * computed + count * (count + 1) // 2
        sequence.computed = computed + count
        self.prefilled.append(sequence)


class Batch:
    """The running sequences, with the KV blocks and the queue.

    Nearly always all sequences decode except one, the latest, whose prompt is computed in chunks; then a plan costs only as much as
    changes (`plan`). If the token budget or the blocks do not suffice for all decoding sequences, each is checked in order
    (`_plan_crowded`).

    Attributes:
        n_run, budget: Active knobs.
        pool: KV blocks. `queue`: waiting sequences. `group`: decoding sequences. `partial`: the sequence whose prompt is being computed.
        aside: Sequences that were preempted after their first token, until they have their next token.
        preemptions, prompt_tokens, generation_tokens: Totals since the start.
    """

    def __init__(self, profile: Profile, n_run: int, budget: int, *, by_priority: bool, swaps: bool) -> None:
        self.n_run = n_run
        self.budget = budget
        self.pool = BlockPool(profile.kv_blocks, profile.block_size)
        self.queue = EngineQueue()
        self.group = DecodeGroup(profile.block_size)
        self.aside: dict[str, Sequence] = {}
        self.partial: Sequence | None = None
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._profile = profile
        self._by_priority = by_priority
        self._swaps = swaps
        self._swap_ms_per_block = (
            profile.block_size * profile.kv_bytes_per_token / (1e6 * profile.swap_gb_per_s) if profile.swap_gb_per_s else 0.0
        )
        # Time of transfers between host and GPU for which the next step has to wait.
        self._pause_ms = 0.0

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self.group.members) + (self.partial is not None)

    def may_admit(self, sequence: Sequence) -> bool:
        """Whether a sequence that was just queued could join at the next step; a cheap estimate."""
        members = len(self.group.members)
        if members + (self.partial is not None) >= self.n_run or members >= self.budget or self.queue.head() is not sequence:
            return False
        return bool(sequence.hashes) or self.pool.needed(sequence.tokens) <= self.pool.free

    def plan(self, now_s: float) -> Stretch:
        """Plans the next step and runs it; if the batch only decodes, plans all steps up to the next change and runs none."""
        group, pool, partial = self.group, self.pool, self.partial
        members = len(group.members)
        need = group.blocks_for(1) if members else 0
        room = self.budget - members
        if room < 0 or need > pool.free:
            return self._plan_crowded(now_s)
        chunk = 0
        if partial is not None:
            chunk = min(partial.tokens - partial.computed, room)
            if need + pool.needed(partial.computed + chunk) - partial.blocks > pool.free:
                return self._plan_crowded(now_s)
        first = self._admit(need) if partial is None and room and members < self.n_run else None
        if first is None and not chunk and not self._pause_ms:
            fixed_ms, kv_ms = self._profile.decode_line(members)
            stretch = Stretch(now_s, group.steps_within(pool.free), fixed_ms, kv_ms=kv_ms, seqs=members, kv=group.kv_tokens)
            stretch.joined = group.joined
            return stretch
        work = _Work(members, group.kv_tokens)
        pool.take(need)
        if chunk:
            assert partial is not None, "a chunk belongs to a partial prompt"
            room -= self._compute(partial, room, work)
            first = self._admit(0) if room and members + 1 < self.n_run else None
        while first is not None:
            room -= self._compute(first, room, work)
            running = members + len(work.prefilled)
            first = self._admit(0) if room and running < self.n_run else None
        joined = group.joined
        stretch = self._run(now_s, work)
        stretch.joined = joined
        before = self.generation_tokens
        if members:
            self.decode(stretch, 1, blocks_taken=True)
        self._place(work.prefilled, stretch)
        stretch.tokens_per_step = self.generation_tokens - before
        return stretch

    def decode(self, stretch: Stretch, steps: int, *, blocks_taken: bool = False) -> None:
        """Runs decode steps of the group; sequences that stop at the last of these steps are added to the stretch's lists."""
        group = self.group
        if not blocks_taken:
            self.pool.take(group.blocks_for(steps))
        self.generation_tokens += steps * len(group.members)
        for joined, sequence in group.advance(steps):
            stretch.stopped.append((joined, self._stop(sequence, stretch)))

    def drop(self, sequence: Sequence) -> None:
        """Removes a sequence for good, in any state."""
        if sequence.place == "running":
            self._take_out(sequence)
        elif sequence.place == "waiting":
            self.queue.forget(sequence)
        sequence.place = "gone"
        self.pool.release(sequence)
        self.aside.pop(sequence.id, None)

    def _admit(self, held_back: int) -> Sequence | None:
        """Admits the queue's head if its whole context fits beside `held_back` blocks; if not, no later sequence passes it."""
        head = self.queue.head()
        if head is None or not self.pool.admit(head, held_back):
            return None
        return self.queue.pop()

    def _compute(self, sequence: Sequence, room: int, work: "_Work") -> int:
        """Schedules a piece of a sequence's context; returns the number of its tokens."""
        count = min(sequence.tokens - sequence.computed, room)
        grown = self.pool.reserve(sequence, sequence.computed + count)
        assert grown, "admission has seen to the blocks"
        self._add_piece(sequence, count, work)
        return count

    def _add_piece(self, sequence: Sequence, count: int, work: "_Work") -> None:
        """Adds a piece of a sequence to the step, for which a swapped one comes back from the host."""
        if sequence.swapped:
            sequence.swapped = False
            self._pause_ms += self._swap_ms_per_block * sequence.blocks
        work.take(sequence, count)
        if sequence.hashes:
            self.pool.register(sequence, sequence.computed)

    def _run(self, now_s: float, work: "_Work") -> Stretch:
        """Builds the step that computes this work."""
        duration_s = self._profile.step_duration_s(
            prefill_tokens=work.tokens,
            prefill_pairs=work.pairs,
            decode_seqs=work.decodes,
            decode_kv_tokens=work.kv_tokens,
            prefill_seqs=work.prompts,
        )
        stretch = Stretch(now_s, 1, 1000.0 * duration_s + self._pause_ms)
        self._pause_ms = 0.0
        stretch.decode_seqs = work.decodes
        stretch.prefill_tokens = work.tokens
        stretch.begun = 1
        return stretch

    def _place(self, prefilled: list[Sequence], stretch: Stretch) -> None:
        """Sequences whose context is computed get a token and decode from now on; one whose context is not becomes `partial`."""
        if prefilled:
            self.partial = None
        for sequence in prefilled:
            self._place_one(sequence, stretch)

    def _place_one(self, sequence: Sequence, stretch: Stretch) -> None:
        if sequence.computed < sequence.tokens:
            self.partial = sequence
            return
        self.aside.pop(sequence.id, None)
        sequence.tokens += 1
        self.generation_tokens += 1
        produced = sequence.tokens - sequence.prompt_tokens
        if produced == 1:
            self.prompt_tokens += sequence.prompt_tokens
        if produced >= sequence.output_tokens:
            stretch.first.append(self._stop(sequence, stretch))
        else:
            stretch.first.append(TokenEvent(sequence.id, produced, False, produced == 1, sequence.cached_tokens))
            self.group.join(sequence)

    def _stop(self, sequence: Sequence, stretch: Stretch) -> TokenEvent:
        """Finishes a sequence that has produced all its tokens. Returns its last token."""
        produced = sequence.tokens - sequence.prompt_tokens
        event = TokenEvent(sequence.id, produced, True, produced == 1, sequence.cached_tokens)
        stretch.finished.append(event)
        sequence.place = "gone"
        self.pool.release(sequence)
        return event

    def _swap_out(self, sequence: Sequence) -> None:
        computed = sequence.computed
        self._pause_ms += self._swap_ms_per_block * sequence.blocks
        self.pool.release(sequence)
        sequence.computed = computed
        sequence.swapped = True

    def _take_out(self, sequence: Sequence) -> None:
        if sequence is self.partial:
            self.partial = None
        else:
            self.group.leave(sequence)

    def _plan_crowded(self, now_s: float) -> Stretch:
        """Plans one step in which not every decoding sequence can get a token: each is checked in order, the latest are preempted."""
        running = self.group.dissolve()
        if self.partial is not None:
            running.append(self.partial)
        preempted: list[str] = []
        while True:
            room, victims = self._share_out(running)
            preempted += victims
            while not victims and room and len(running) < self.n_run:
                first = self._admit(0)
                if first is None:
                    break
                first.scheduled = min(first.tokens - first.computed, room)
                room -= first.scheduled
                self.pool.reserve(first, first.computed + first.scheduled)
                running.append(first)
            # If a sequence could only preempt itself, nothing is scheduled: schedule again, as vLLM does without a step.
            if not victims or room < self.budget:
                break
        return self._run_crowded(now_s, running, preempted)

    def _share_out(self, running: list[Sequence]) -> tuple[int, list[str]]:
        """Gives running sequences their tokens; returns the rest of the budget, and the ids of preempted sequences."""
        room = self.budget
        preempted: list[str] = []
        index = 0
        while index < len(running) and room:
            sequence = running[index]
            count = min(sequence.tokens - sequence.computed, room)
            while not self.pool.reserve(sequence, sequence.computed + count):
                at = max(range(len(running)), key=lambda i: running[i].key) if self._by_priority else len(running) - 1
                victim = running.pop(at)
                if at < index:
                    index -= 1
                    room += victim.scheduled
                self._preempt(victim)
                preempted.append(victim.id)
                if victim is sequence:
                    return room, preempted
            sequence.scheduled = count
            room -= count
            index += 1
        return room, preempted

    def _preempt(self, sequence: Sequence) -> None:
        sequence.scheduled = 0
        self.preemptions += 1
        if sequence.tokens > sequence.prompt_tokens:
            self.aside[sequence.id] = sequence
        if self._swaps:
            self._swap_out(sequence)
        else:
            self.pool.release(sequence)
            sequence.computed = 0
        self.queue.push(sequence)

    def _run_crowded(self, now_s: float, running: list[Sequence], preempted: list[str]) -> Stretch:
        work = _Work(0, 0)
        self.partial = None
        for sequence in running:
            if sequence.scheduled:
                self._add_piece(sequence, sequence.scheduled, work)
                sequence.scheduled = 0
        stretch = self._run(now_s, work)
        stretch.preempted = preempted
        computed = {sequence.id for sequence in work.prefilled}
        for sequence in running:
            if sequence.id in computed:
                self._place_one(sequence, stretch)
            elif sequence.tokens - sequence.computed == 1 and sequence.tokens > sequence.prompt_tokens:
                self.group.join(sequence)
            else:
                self.partial = sequence
        stretch.produced = stretch.first
        stretch.tokens_per_step = len(stretch.first)
        return stretch
