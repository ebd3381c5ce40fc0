"""The embedded engine as a pure step function: continuous batching with the semantics of vLLM V1's scheduler.

One step takes at most `max_num_batched_tokens` tokens. Running sequences come first, in their order: a decode takes one token, a
prefill takes the rest of its prompt or the rest of the budget (chunked prefill). The remaining budget admits waiting sequences, as long
as their whole prompt fits into free KV blocks. If a running sequence finds no free block, it preempts the latest sequence (the one of
lowest priority under `priority`). That sequence leaves the batch, goes back to the front of the queue, and is computed again or swapped in
again.

A run of steps in which the batch only decodes and nothing changes is one stretch. It is planned at once, and its end follows in closed
form, so the cost of the model grows with the number of events, not of tokens. `step` goes through the same stretch one step at a time.
Both ways give the same times, to the last bit, because every time is computed from the stretch's beginning.

The same object runs in virtual time and behind the HTTP server: it reads no clock, draws no random number and does no I/O.
"""

from operator import itemgetter
from typing import Literal

from hmas.engines.base import EngineSnapshot, KnobReport, Knobs
from hmas.engines.errors import EngineError
from hmas.engines.sim.batch import Batch
from hmas.engines.sim.decoding import Stretch
from hmas.engines.sim.profile import Profile
from hmas.engines.sim.request import SimRequest, StepResult, TokenEvent
from hmas.engines.sim.sequence import Sequence

__all__ = ["EngineModel", "Preemption", "QueueOrder", "SimRequest", "StepResult", "TokenEvent"]

QueueOrder = Literal["fcfs", "priority"]
Preemption = Literal["recompute", "swap"]


class EngineModel:
    """One engine instance in virtual time.

    Drive it either by `step`, one step at a time, or by `begin`, `due_s` and `end`, one stretch at a time. With the latter, call `sync`
    before you read or change the engine during a stretch.

    Args:
        profile: Step times and sizes.
        n_run: Sequences that may run at once at start, and the knob's ceiling; None takes the profile's value.
        token_budget: Tokens per step at start, and the knob's ceiling; None takes the profile's value.
        order: `fcfs`, or `priority` for (priority, arrival) as in vLLM's `--scheduling-policy priority`.
        preemption: `recompute`, or `swap` to move a victim's KV to the host and back at the profile's `swap_gb_per_s`.

    Attributes:
        profile, order: As given.
        batch: The waiting and running sequences and their cache.
        caches_prefixes: Whether it says that it caches prefixes; it does, of requests that come with `SimRequest.block_hashes`.

    Raises:
        EngineError: `n_run` or `token_budget` is below 1, or `preemption` is `swap` and the profile has no `swap_gb_per_s`.
    """

    def __init__(
        self,
        profile: Profile,
        n_run: int | None = None,
        token_budget: int | None = None,
        *,
        order: QueueOrder = "fcfs",
        preemption: Preemption = "recompute",
    ) -> None:
        if preemption == "swap" and not profile.swap_gb_per_s:
            raise EngineError(f"preemption 'swap' needs swap_gb_per_s, which profile {profile.name!r} does not have; allowed: 'recompute'")
        self.profile = profile
        self.order: QueueOrder = order
        self.caches_prefixes = True
        self._n_run_ceiling = _at_least_one("n_run", profile.max_num_seqs if n_run is None else n_run)
        self._budget_ceiling = _at_least_one("token_budget", profile.max_num_batched_tokens if token_budget is None else token_budget)
        self.batch = Batch(profile, self._n_run_ceiling, self._budget_ceiling, by_priority=order == "priority", swaps=preemption == "swap")
        self._live: dict[str, Sequence] = {}
        self._stretch: Stretch | None = None
        self._added = 0
        self._ended_s = 0.0
        self._unheard = 0

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        return self.batch.running

    @property
    def waiting(self) -> int:
        """Sequences in the engine's own queue, including preempted ones."""
        return self.batch.queue.live

    @property
    def idle(self) -> bool:
        """Whether the engine has nothing to compute: it has no sequences."""
        return not self.batch.running and not self.batch.queue.live

    @property
    def due_s(self) -> float | None:
        """When the current stretch ends, None if there is none."""
        return None if self._stretch is None else self._stretch.end_s

    def add(self, request: SimRequest) -> None:
        """Queues a request.

        Raises:
            EngineError: The id is in the engine already, a length is below 1, prompt and output do not fit, or `hash_tokens` is invalid.
        """
        if request.id in self._live:
            raise EngineError(f"request id {request.id!r} is already in the engine")
        _at_least_one("prompt_tokens", request.prompt_tokens)
        _at_least_one("output_tokens", request.output_tokens)
        total = request.prompt_tokens + request.output_tokens
        profile = self.profile
        if total > profile.max_model_len or total > profile.kv_blocks * profile.block_size:
            allowed = min(profile.max_model_len, profile.kv_capacity_tokens)
            raise EngineError(
                f"prompt_tokens {request.prompt_tokens} + output_tokens {request.output_tokens}: allowed up to {allowed} together"
            )
        if request.block_hashes and (request.hash_tokens < 1 or request.hash_tokens % profile.block_size):
            raise EngineError(f"hash_tokens {request.hash_tokens}: allowed multiples of the block size {profile.block_size}")
        self._added += 1
        # Under fcfs a preempted sequence goes to the front, because all waiting sequences arrived after it.
        rank = (request.priority, request.arrival_s) if self.order == "priority" else (0, 0.0)
        sequence = self._live[request.id] = Sequence(request, (*rank, self._added))
        self.batch.queue.push(sequence)
        if self._stretch is not None and self.batch.may_admit(sequence):
            self._cut()

    def abort(self, request_id: str) -> bool:
        """Drops a running or waiting request at once; returns False if the engine does not have it (any more)."""
        self._forgo(request_id)
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        # Waiting sequences may be admitted now, if this one ran, or was first in the queue and did not fit.
        if sequence.place == "running" or self.batch.queue.head() is sequence:
            self._cut()
        self.batch.drop(sequence)
        return True

    def step(self, now_s: float) -> StepResult | None:
        """Runs one step from `now_s`; returns None if there is nothing to do.

        The state changes at once. The tokens are available at the result's `end_s`, when the next step begins.
        """
        stretch = self._stretch
        if stretch is None or stretch.begun == stretch.steps or stretch.end_of(stretch.begun) != now_s:
            stretch = self._plan(now_s)
            if stretch is None:
                return None
        else:
            self._advance(stretch, stretch.begun + 1)
        last = stretch.begun == stretch.steps
        if last:
            self._stretch = None
        return StepResult(
            end_s=stretch.end_of(stretch.begun),
            produced=self._produced(stretch, last=last),
            preempted=stretch.preempted,
            prefill_tokens=stretch.prefill_tokens,
            decode_seqs=stretch.decode_seqs,
        )

    def begin(self, now_s: float) -> float | None:
        """Begins the next stretch at `now_s` and returns when it ends, None if there is nothing to do.

        The previous stretch must have ended. An `add`, `abort` or `apply_knobs` that affects the running batch cuts the stretch short to
        the end of the current step: read `due_s` again after such a call.
        """
        stretch = self._plan(now_s)
        return None if stretch is None else stretch.end_s

    def sync(self, now_s: float) -> None:
        """Advances the engine's state to `now_s`: all steps that have begun by then count, as in `step`."""
        stretch = self._stretch
        if stretch is not None and stretch.begun < stretch.steps:
            begun = stretch.begun_by(now_s)
            if begun > stretch.begun:
                self._advance(stretch, begun)

    def end(self) -> Stretch:
        """Ends the current stretch at its `due_s` and returns it with its results."""
        stretch = self._stretch
        assert stretch is not None, "only a stretch that was begun can end"
        if stretch.begun < stretch.steps:
            self._advance(stretch, stretch.steps)
        self._stretch = None
        self._ended_s = stretch.end_s
        return stretch

    def tokens(self, now_s: float) -> list[tuple[str, int]]:
        """Returns id and output tokens of each sequence that has its first token, as of the steps that have ended by `now_s`."""
        self.sync(now_s)
        stretch, batch = self._stretch, self.batch
        told = [(name, sequence.tokens - sequence.prompt_tokens) for name, sequence in batch.aside.items()]
        if stretch is None or stretch.end_of(stretch.begun) <= now_s:
            return told + batch.group.tokens(0)
        # A sequence whose last token comes with the current step has left the group already.
        told += [(event.id, event.tokens_so_far - 1) for event in stretch.finished]
        if stretch.produced is None:
            return told + batch.group.tokens(1)
        got = {event.id for event in stretch.produced}
        return told + [(name, tokens - (name in got)) for name, tokens in batch.group.tokens(0)]

    def last_step_s(self, now_s: float) -> float:
        """The end of the latest step that has ended by `now_s`, or of the idle time before the current step."""
        self.sync(now_s)
        stretch = self._stretch
        if stretch is None:
            return self._ended_s
        end_s = stretch.end_of(stretch.begun)
        return end_s if end_s <= now_s else stretch.end_of(stretch.begun - 1)

    def generated(self, now_s: float) -> int:
        """Output tokens delivered to clients, of all sequences since the start, as of the steps that have ended by `now_s`."""
        self.sync(now_s)
        stretch = self._stretch
        heard = self.batch.generation_tokens - self._unheard
        return heard if stretch is None or stretch.end_of(stretch.begun) <= now_s else heard - stretch.tokens_per_step

    def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Sets knobs between 1 and their start-up values. A lower `n_run` evicts nothing: sequences above it run to their end."""
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
        if applied:
            self._cut()
            self.batch.n_run = applied.get("n_run", self.batch.n_run)
            self.batch.budget = applied.get("token_budget", self.batch.budget)
        return KnobReport(applied=applied, refused=refused)

    @property
    def kv_blocks_peak(self) -> int:
        """The most KV blocks that sequences ever held at once, without cached blocks that no sequence holds."""
        pool = self.batch.pool
        return pool.total - pool.least_free

    def snapshot(self, name: str, now_s: float) -> EngineSnapshot:
        """The engine's state under the instance's name."""
        batch = self.batch
        blocks = self.profile.kv_blocks
        return EngineSnapshot(
            engine=name,
            taken_s=now_s,
            healthy=True,
            running=batch.running,
            waiting=batch.queue.live,
            kv_usage=(blocks - batch.pool.free) / blocks,
            kv_capacity_tokens=self.profile.kv_capacity_tokens,
            max_num_seqs=batch.n_run,
            max_num_batched_tokens=batch.budget,
            max_num_seqs_ceiling=self._n_run_ceiling,
            max_num_batched_tokens_ceiling=self._budget_ceiling,
            caches_prefixes=self.caches_prefixes,
            preemptions_total=batch.preemptions,
            prompt_tokens_total=batch.prompt_tokens,
            generation_tokens_total=batch.generation_tokens,
        )

    def _produced(self, stretch: Stretch, *, last: bool) -> list[TokenEvent]:
        """The tokens of the step that has just begun, in the order of the batch."""
        if stretch.produced is not None:
            return stretch.produced
        group = self.batch.group
        decoded = [
            (sequence.joined, TokenEvent(name, sequence.base + group.steps - sequence.prompt_tokens, False, False))
            for name, sequence in group.members.items()
            if sequence.joined <= stretch.joined
        ]
        if last and stretch.stopped:
            decoded = sorted([*decoded, *stretch.stopped], key=itemgetter(0))
        return [event for _, event in decoded] + stretch.first

    def _forgo(self, request_id: str) -> None:
        """Corrects the counts for an aborted request: the token that the current step computes for it is not delivered."""
        stretch = self._stretch
        if stretch is None:
            return
        if stretch.produced is None:
            coming = request_id in self.batch.group.members or any(event.id == request_id for event in stretch.finished)
        else:
            coming = any(event.id == request_id for event in stretch.produced)
        if coming:
            self._unheard += 1
            stretch.tokens_per_step -= 1

    def _cut(self) -> None:
        """Cuts the stretch to the end of the current step; later steps are planned anew."""
        if self._stretch is not None:
            self._stretch.steps = self._stretch.begun

    def _plan(self, now_s: float) -> Stretch | None:
        if self.idle:
            return None
        stretch = self._stretch = self.batch.plan(now_s)
        if stretch.begun:
            self._settle(stretch)
        else:
            self._advance(stretch, 1)
        return stretch

    def _advance(self, stretch: Stretch, begun: int) -> None:
        """Counts decode steps of a stretch as begun, up to its `begun`-th."""
        self.batch.decode(stretch, begun - stretch.begun)
        stretch.begun = begun
        if begun == stretch.steps:
            self._settle(stretch)

    def _settle(self, stretch: Stretch) -> None:
        """Removes the sequences that finish with the stretch's last step."""
        for event in stretch.finished:
            del self._live[event.id]


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise EngineError(f"{name} {value}: allowed 1 or more")
    return value
