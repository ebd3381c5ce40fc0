"""The scheduler's account of one engine instance."""

from collections.abc import Mapping, Sequence

from hmas.controller.core.messages import LengthBound
from hmas.controller.core.types import Controls
from hmas.controller.scheduling.instances import room
from hmas.controller.scheduling.instances.decode_tally import DecodeTally
from hmas.controller.scheduling.instances.engine_count import EngineCount
from hmas.controller.scheduling.instances.instance_group import InstanceGroup
from hmas.controller.scheduling.instances.kv_fence import Fence, upper_tokens
from hmas.controller.scheduling.instances.lateness import FirstTokenOverhead
from hmas.controller.scheduling.instances.overcommit import Preemptions
from hmas.controller.scheduling.instances.pending_prompts import PendingPrompts
from hmas.controller.scheduling.instances.recovery import Recovery
from hmas.controller.scheduling.instances.running import Running, TokenSource
from hmas.controller.scheduling.instances.speed import InstanceSpeed
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.settings import InstanceSpec
from hmas.engines.base import EngineSnapshot

_UNCONTENDED_SHARE = 0.5
"""Share of the window that demoted requests may fill while requests in time are dispatched at once."""
_LULL_S = 5.0
_AT_ONCE_S = 0.05
"""A request that is dispatched within this time after its arrival counts as not having waited for a slot."""
_BUSY_DECAY = 0.99


class Instance:
    """The state of one instance: window, fence, health and requests in flight. Satisfies `hmas.controller.core.placement.InstanceState`.

    Attributes:
        name, spec: Its name and its configuration. `models`: the models that it serves now, None for any. `context`: most tokens of one
            sequence, prompt and output, by model, for the models that report it.
        n_run: The active window. `token_budget`: the active tokens per step, None for the engine's own.
        advised: Whether an agent has set the window, rather than an operator or the configuration.
        guard: Factor on the TPOT guard's share. `guard_overridden`: whether the share was set explicitly, so that it applies to all
            instances alike. `guard_enabled`: whether the TPOT guard is on.
        capacity_n_run: Ceiling of the window: the one that the engine reports, and the spec's until it reports one.
        max_token_budget: Ceiling of tokens per step as the engine reports it, 0 until then.
        running: Requests in flight, by request id. `source`: where their tokens are counted, None if `progress` reports each.
        in_flight, sequences, in_flight_tokens, prefill_tokens, routing_window: As in `InstanceState`.
        pace: The measured speed of the instance. `token_ms`: its time per output token with what is in flight, None before a sample.
        lead: What a first token takes here beyond the prompt's own prefill, None if it is not needed.
        preemptions: The preemptions caused by dispatches beyond the fence.
        version: A counter that grows with every start, first token and end. `tally`: what it decodes. `prompts`: what it still computes.
        engine_count: What the engine itself counts.
        recovery: Limits the requests in flight while the instance shows that it serves, after a failure or when it has just joined.
        draining: Whether it takes no new requests. `engine`: the engine's last snapshot.
        groups: The groups that count it among the open ones while it is open.
    """

    __slots__ = (
        "_busy",
        "_contended_s",
        "_controlled",
        "_fenced",
        "_fresh_s",
        "_fresh_version",
        "_on_time_s",
        "_stated_n_run",
        "_was_open",
        "advised",
        "capacity_n_run",
        "context",
        "draining",
        "engine",
        "engine_count",
        "fence",
        "groups",
        "guard",
        "guard_enabled",
        "guard_overridden",
        "in_flight",
        "in_flight_tokens",
        "lead",
        "max_token_budget",
        "models",
        "n_run",
        "name",
        "pace",
        "preemptions",
        "prompts",
        "recovery",
        "routing_window",
        "running",
        "sequences",
        "source",
        "spec",
        "tally",
        "token_budget",
        "token_ms",
        "version",
    )

    def __init__(self, spec: InstanceSpec, *, fenced: bool, margin: float, confidence: float = 0.0) -> None:
        self.name = spec.name
        self.models = spec.models
        self.context: Mapping[str, int] = {}
        self.spec = spec
        self.n_run = spec.capacity_n_run
        self.routing_window = float(spec.capacity_n_run)
        self.token_budget: int | None = None
        self.guard = 1.0
        self.guard_overridden = self.guard_enabled = False
        self.capacity_n_run = spec.capacity_n_run
        self.max_token_budget = 0
        margin = margin if spec.fence_margin is None else spec.fence_margin
        self.fence = Fence(spec.kv_capacity_tokens if fenced else 0, spec.kv_bytes_per_token, margin)
        self.preemptions = Preemptions()
        self.running: dict[str, Running] = {}
        self.in_flight = self.sequences = 0
        self.in_flight_tokens = 0
        self.prompts = PendingPrompts()
        self.pace = InstanceSpeed()
        self.token_ms: float | None = None
        self.lead = FirstTokenOverhead(confidence, spec.first_token_overhead_ms) if confidence > 0.0 else None
        self.source: TokenSource | None = None
        self.version = 0
        self.tally = DecodeTally()
        self.engine_count = EngineCount()
        self._fresh_s = float("-inf")
        self._fresh_version = -1
        self._busy = 0.0
        self._on_time_s = self._contended_s = float("-inf")
        self.advised = False
        self.draining = False
        self.recovery = Recovery()
        self.engine: EngineSnapshot | None = None
        self._fenced = fenced
        self._controlled = False
        self._stated_n_run = 0
        self.groups: list[InstanceGroup] = []
        self._was_open = self.open

    @property
    def available(self) -> bool:
        """Whether it may take requests at all: it is not draining, and not known to be unhealthy."""
        return not self.draining and (self.engine is None or self.engine.healthy)

    @property
    def open(self) -> bool:
        """Whether it may take one more request of one sequence now."""
        return self.sequences < self.n_run and self.in_flight < self.recovery.limit and self.available

    def holds(self, sequences: int, window: float) -> bool:
        """Whether so many more sequences fit into a window. A request with more of them than the window runs alone."""
        return not self.in_flight or self.sequences + sequences <= window

    def may_take(self, entry: QueueEntry) -> bool:
        """Whether a request may go to it once it has a free slot."""
        return self.available and self.name not in entry.tried and entry.only in ("", self.name)

    def can_hold(self, model: str, kv_tokens: int, context: int) -> bool:
        """Whether its KV cache, and its context for a model if it reports that, are at least so large."""
        return self.context.get(model, context) >= context and self.fence.fits(kv_tokens)

    def drain(self, *, draining: bool) -> None:
        """Stops taking new requests, or takes them again."""
        self.draining = draining
        self._turn()

    def probe(self, *, probing: bool) -> None:
        """Limits the instance to one request more than it has, or lets it recover."""
        if probing:
            self.recovery.probe(self.in_flight)
        else:
            self.recovery.begin(self.in_flight)
        self._turn()

    def answered(self) -> None:
        """Records that one more of its requests has been answered, or has its first token."""
        if self.recovery.answered(self.n_run):
            self._turn()

    def _turn(self) -> None:
        """Updates `groups` if the instance has opened or closed. Called after every change that `open` depends on."""
        if self._was_open is not (is_open := self.open):
            self._was_open = is_open
            for group in self.groups:
                group.turned(self, is_open=is_open)

    def late_window(self, share: float, now_s: float) -> float:
        """Number of sequences in flight up to which a demoted request may join.

        If requests in time had to wait within the last 5 s: `share` of what they have recently filled, so that a burst finds free slots and
        an engine that is not slowed down. If they were dispatched at once: half of the window, since no other request needs it. If no
        request in time has come: the whole window.
        """
        if now_s - self._on_time_s > _LULL_S:
            return self.n_run
        contended = max(1.0, share * min(self.n_run, self._busy))
        return contended if now_s - self._contended_s <= _LULL_S else max(contended, _UNCONTENDED_SHARE * self.n_run)

    def wanted(self, now_s: float) -> None:
        """Records that a request in time was held back for its own TPOT target or for those in flight.

        For the limit on demoted requests this counts like a dispatch. Otherwise demoted requests would fill an instance that they have
        slowed down themselves, and the requests in time would be held back until they are late, too.
        """
        self._on_time_s = self._contended_s = now_s

    @property
    def awaiting(self) -> int:
        """Streaming requests that were sent and have no first token yet."""
        return len(self.prompts)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that were sent and are still to be computed, as far as they are not cached."""
        return self.prompts.tokens

    @property
    def kv_committed(self) -> float:
        """Share of the KV fence that is committed."""
        return self.fence.share

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that its KV cache holds, as configured or reported, whether fenced or not; 0 if unknown."""
        return self.fence.capacity_tokens or self.spec.kv_capacity_tokens or (self.engine.kv_capacity_tokens or 0 if self.engine else 0)

    @property
    def prefill_token_ms(self) -> float:
        """Measured time to compute one prompt token that is not cached, 0 before the first measurement."""
        return self.pace.computed_ms(1, 0, 0.0)

    @property
    def decode_token_ms(self) -> float:
        """Measured time per output token of a request alone, 0 before the first measurement."""
        return self.pace.alone_ms or 0.0

    @property
    def caches_prefixes(self) -> bool | None:
        """Whether its engine says that it caches the beginnings of prompts."""
        return None if self.engine is None else self.engine.caches_prefixes

    def serves(self, model: str) -> bool:
        """Whether it serves the model."""
        return self.models is None or model in self.models

    def control(self, controls: Controls) -> None:
        """Applies new controls; requests in flight stay."""
        self.n_run = controls.n_run
        self.token_budget = controls.token_budget
        self.guard = controls.guard
        self.advised = controls.advised
        self._controlled = True
        if not self.advised:
            self.routing_window = float(self.n_run)
        self._turn()

    def observe(self, snapshot: EngineSnapshot) -> bool:
        """Reads the engine's report: health, KV size if none is set, and the ceilings of its knobs. True if it is back from an outage.

        Of active values the highest counts as the ceiling: a knob that was turned down does not lower it.
        """
        returns = self.recovery.returns(snapshot.taken_s, healthy=snapshot.healthy)
        if self.engine is not None and snapshot.healthy and not self.engine.healthy and not self.recovery.probed:
            self.recovery.begin(self.in_flight)
        self.recovery.seen(snapshot.taken_s)
        self.engine = snapshot
        self.engine_count.saw(snapshot)
        if snapshot.kv_capacity_tokens and self._fenced and self.spec.kv_capacity_tokens == 0:
            self.fence.resize(snapshot.kv_capacity_tokens)
        before = 0 if returns else self._stated_n_run  # one that is back may have other settings
        self._stated_n_run = snapshot.max_num_seqs_ceiling or max(before, snapshot.max_num_seqs or 0)
        self.max_token_budget = snapshot.max_num_batched_tokens_ceiling or max(self.max_token_budget, snapshot.max_num_batched_tokens or 0)
        if self._stated_n_run:
            self.capacity_n_run = self._stated_n_run
            if not self._controlled:
                self.n_run = self.capacity_n_run
                self.routing_window = float(self.n_run)
        if snapshot.healthy:
            self.preemptions.counted(snapshot.preemptions_total, snapshot.waiting)
        room.correct_fence(self, snapshot)
        self._turn()
        return returns

    def start(
        self, entry: QueueEntry, tokens: int, policy: str, now_s: float, *, late: bool = False, cached_tokens: int | None = None
    ) -> Running:
        """Books a dispatched request: its KV tokens at the upper length, whether it was demoted, and `Choice.cached_tokens`."""
        usage = self.engine.kv_usage if self.engine is not None else None
        if usage is None:
            usage = self.fence.share if self.fence.capacity_tokens else -1.0
        request = entry.request
        run = Running(entry, self, policy, now_s, kv_usage=usage, cached_tokens=cached_tokens)
        self.prompts.sent(run, self.prefill_ms(entry), now_s)
        if not request.stream:
            run.from_step = self.pace.foresight.steps + (self.prompts.left_ms(now_s) / self.token_ms if self.token_ms else 0.0)
            self._stops(run, self.in_flight)
        self.running[request.id] = run
        self.in_flight += 1
        self.sequences += request.sequences
        self.tally.sent(request, now_s)
        self.token_ms = self.pace.token_ms(self.sequences)
        self._turn()
        self.in_flight_tokens += run.expected_tokens
        if not self.fence.admits(tokens):
            self.preemptions.dispatched(request.id, tokens)
        self.fence.commit(request.id, tokens)
        self.version += 1
        if not late:
            self._on_time_s = now_s
            if now_s - request.arrival_s > _AT_ONCE_S:
                self._contended_s = now_s
            self._busy = max(float(self.sequences), _BUSY_DECAY * self._busy)
        return run

    def progress(self, run: Running, tokens: int, now_s: float) -> None:
        """Records that a running request has produced `tokens` output tokens so far, counted as events of its stream."""
        request = run.entry.request
        if run.first_s is None:
            run.first_s = now_s
            run.expectation = self.pace.expectation(self.sequences)
            self._prefilled(run, now_s)
            self.tally.began(request, now_s, tokens)
            self.version += 1
            self.answered()
        run.last_s = now_s
        if self.tally.pinned:
            tokens = self.tally.tokens(request, tokens)
        if tokens > run.tokens:
            self.tally.decoded += tokens - run.tokens
            run.tokens = tokens
            self.fence.outgrow(request.id, request.prompt_tokens + tokens)

    def refresh(self, now_s: float) -> None:
        """Updates the token counts of all requests in flight, unless `progress` reports each. O(in flight), once per point in time."""
        if self.source is None or (self._fresh_s == now_s and self._fresh_version == self.version):
            return
        self._fresh_s, self._fresh_version = now_s, self.version
        running, outgrow, last_s = self.running, self.fence.outgrow, self.source.last_step_s(now_s)
        for request_id, tokens in self.source.tokens(now_s):
            run = running.get(request_id)
            if run is not None and tokens > run.tokens:
                run.tokens, run.last_s = tokens, last_s
                outgrow(request_id, run.entry.request.prompt_tokens + tokens)

    def sample(self, now_s: float) -> None:
        """Learns the pace from the tokens decoded since the last sample."""
        if (sample := self.tally.sample(now_s, self.source)) is not None:
            self.pace.decoded(*sample, quiet=not self.prompts.recent)
            self.engine_count.restart()
        elif not (self.tally.streams or len(self.prompts)) and (counted := self.engine_count.take(now_s)) is not None:
            self.pace.counted(counted)
        else:
            return
        self.token_ms = self.pace.token_ms(self.sequences)
        self.prompts.sampled()

    def produced(self, now_s: float) -> tuple[int, int]:
        """Prompt tokens computed and output tokens produced since the start, as far as they were reported."""
        return self.tally.produced(now_s, self.source)

    def finish(self, run: Running, now_s: float) -> None:
        """Removes a request that is no longer in flight from the accounts."""
        request = run.entry.request
        del self.running[request.id]
        self.prompts.ended(run, now_s, is_last=self.in_flight == 1)
        self.in_flight, self.sequences = self.in_flight - 1, self.sequences - request.sequences
        self.token_ms = self.pace.token_ms(self.sequences)
        self._turn()
        self.in_flight_tokens -= run.expected_tokens
        self.tally.ended(request, now_s, begun=run.first_s is not None)
        self.fence.release(request.id)
        self.preemptions.ended(request.id)
        self.version += 1

    def prefill_ms(self, entry: QueueEntry, cached_tokens: int | None = None) -> float:
        """How long the request's prefill would take here, and so delay the requests that decode. `cached_tokens`: see `Choice`."""
        if cached_tokens is None:
            return self.pace.prefill_ms(entry.request.prompt_tokens, entry.estimates.ttft_ms)
        return self.pace.computed_ms(entry.request.prompt_tokens, cached_tokens, entry.estimates.ttft_ms)

    def first_token_ms(self, entry: QueueEntry) -> float | None:
        """Time within which the request's first token would usually come if it were sent here, None if nothing is known."""
        return None if self.lead is None or self.lead.ms is None else self.prefill_ms(entry) + self.lead.ms

    def _prefilled(self, run: Running, now_s: float) -> None:
        shown = self.prompts.began(run, now_s)
        if shown is None:
            return
        request, took_ms = run.entry.request, 1000.0 * (now_s - run.dispatched_s)
        self._stops(run, self.in_flight - 1)
        if self.lead is not None:
            self.lead.shown(took_ms - self.pace.prefill_ms(request.prompt_tokens, took_ms))
        self.pace.prefilled(shown.ms, request.prompt_tokens, run.cached_tokens, alone=run.alone, shown=shown)

    def _stops(self, run: Running, others: int) -> None:
        """Records that the prompt of a request stops the others."""
        if others:
            self.pace.stops.stopped(self.pace.prefill_ms(run.entry.request.prompt_tokens, 0.0))

    def rebook(self, run: Running, bounds: Sequence[LengthBound]) -> None:
        """Books a running request again at its currently estimated upper length, and at no less than it holds already."""
        tokens = max(upper_tokens(run.entry, bounds), run.entry.request.prompt_tokens + run.tokens)
        self.fence.commit(run.entry.request.id, tokens)
