"""The scheduler's account of one engine instance."""

from collections.abc import Hashable, Sequence

from hmas.controller.core.messages import InstanceView, LengthBound
from hmas.controller.core.types import Controls, Request
from hmas.controller.scheduling.instances import room
from hmas.controller.scheduling.instances.kv_fence import Fence, upper_tokens
from hmas.controller.scheduling.instances.lateness import FirstTokenOverhead
from hmas.controller.scheduling.instances.overcommit import Preemptions
from hmas.controller.scheduling.instances.prefix_credit import PrefixCredit, prefix_key
from hmas.controller.scheduling.instances.running import Running
from hmas.controller.scheduling.instances.slots import Slots
from hmas.controller.scheduling.instances.speed import InstanceSpeed
from hmas.controller.scheduling.instances.token_source import TokenSource
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.settings import InstanceSpec
from hmas.engines.base import EngineSnapshot

_UNCONTENDED_SHARE = 0.5
"""Share of the window that demoted requests may fill where those in time are dispatched at once."""
_PRESSURE_QUANTILE = 0.9
_LULL_S = 5.0
_AT_ONCE_S = 0.05
"""A request that is dispatched so soon after it came has not waited for a place."""
_BUSY_DECAY = 0.99
_SAMPLE_TOKENS = 8
"""Tokens that a sample of the pace needs: a read of a stream may bring several at once, or a part of one."""


class Instance:
    """One instance: window, fence, health, and what is in flight. Satisfies `hmas.controller.core.placement.InstanceState`.

    Attributes:
        name: The spec's name.
        spec: What was configured. `models`: those it serves now, None for any.
        n_run: Window in force. `token_budget`: tokens per step in force, None for the engine's own.
        advised: Whether an agent has set the window, not an operator or the configuration.
        guard: Factor on the TPOT guard's share. `guard_overridden`: whether someone has named the share, so that it holds for all alike.
            `guarded`: whether the TPOT guard is on.
        capacity_n_run: Ceiling of the window: what the engine states, the spec's until it states something.
        max_token_budget: Ceiling of tokens per step as the engine states it, 0 until then.
        running: In flight, by request id.
        in_flight, in_flight_tokens, prefill_tokens: As in `InstanceState`.
        source: Who is asked for tokens, None where each is reported by `progress`.
        pace: How fast it works.
        lead: What a first token takes here beyond the prompt's own prefill, None where nobody asks for it.
        preemptions: What dispatches beyond the fence have brought about.
        prefixes: What requests have been found to share, None where the fence gives no credit for it.
        version: Grows with every start, first token and end.
        probe_limit: Most in flight while it is tried whether it serves again, None where that is not in question.
        draining: Takes no new requests. `engine`: the engine's last snapshot.
        slots: Who is told when it opens or closes.
    """

    __slots__ = (
        "_awaiting",
        "_busy",
        "_contended_s",
        "_controlled",
        "_decoded",
        "_decoding",
        "_fenced",
        "_first_tokens",
        "_fresh_s",
        "_fresh_version",
        "_on_time_s",
        "_prefill_until_s",
        "_reading",
        "_sampled",
        "_seq_s",
        "_since_s",
        "_stated_n_run",
        "_was_open",
        "advised",
        "capacity_n_run",
        "draining",
        "engine",
        "fence",
        "guard",
        "guard_overridden",
        "guarded",
        "in_flight",
        "in_flight_tokens",
        "lead",
        "max_token_budget",
        "models",
        "n_run",
        "name",
        "pace",
        "preemptions",
        "prefill_tokens",
        "prefixes",
        "probe_limit",
        "running",
        "slots",
        "source",
        "spec",
        "token_budget",
        "version",
    )

    def __init__(self, spec: InstanceSpec, *, fenced: bool, margin: float, credit: bool = False, confidence: float = 0.0) -> None:
        self.name = spec.name
        self.models = spec.models
        self.spec = spec
        self.n_run = spec.capacity_n_run
        self.token_budget: int | None = None
        self.guard = 1.0
        self.guard_overridden = False
        self.guarded = False
        self.capacity_n_run = spec.capacity_n_run
        self.max_token_budget = 0
        margin = margin if spec.fence_margin is None else spec.fence_margin
        self.fence = Fence(spec.kv_capacity_tokens if fenced else 0, spec.kv_bytes_per_token, margin)
        self.preemptions = Preemptions()
        self.prefixes = PrefixCredit() if credit else None
        self.running: dict[str, Running] = {}
        self.in_flight = 0
        self.in_flight_tokens = 0
        self.prefill_tokens = 0
        self.pace = InstanceSpeed()
        self.lead = FirstTokenOverhead(confidence, spec.first_token_overhead_ms) if confidence > 0.0 else None
        self.source: TokenSource | None = None
        self.version = 0
        self._decoding = self._decoded = self._first_tokens = self._sampled = 0
        self._seq_s = self._since_s = 0.0
        self._reading = False
        self._fresh_s = float("-inf")
        self._fresh_version = -1
        self._awaiting: dict[str, Running] = {}
        self._prefill_until_s = 0.0
        self._busy = 0.0
        self._on_time_s = self._contended_s = float("-inf")
        self.advised = False
        self.draining = False
        self.probe_limit: int | None = None
        self.engine: EngineSnapshot | None = None
        self._fenced = fenced
        self._controlled = False
        self._stated_n_run = 0
        self.slots: list[Slots[Instance]] = []
        self._was_open = self.open

    @property
    def available(self) -> bool:
        """Whether it may be given requests at all: not draining, and not known to be unhealthy."""
        return not self.draining and (self.engine is None or self.engine.healthy)

    @property
    def open(self) -> bool:
        """Whether it may be given one more now."""
        return self.in_flight < self.n_run and (self.probe_limit is None or self.in_flight < self.probe_limit) and self.available

    def drain(self, *, draining: bool) -> None:
        """Takes no new requests any more, or takes them again."""
        self.draining = draining
        self._turn()

    def probe(self, *, probing: bool) -> None:
        """Takes one more than it has, or as many as its window lets in again."""
        self.probe_limit = self.in_flight + 1 if probing else None
        self._turn()

    def _turn(self) -> None:
        """Tells who asked for it where it has opened or closed. After everything that `open` depends on."""
        if self._was_open is not (is_open := self.open):
            self._was_open = is_open
            for slots in self.slots:
                slots.turned(self, is_open=is_open)

    def late_window(self, share: float, now_s: float) -> float:
        """Requests in flight up to which a demoted one may join.

        Where requests in time had to wait within the last 5 s: `share` of what they have lately filled, so that a burst finds slots free
        and an engine that is not slowed down. Where they came and went at once: half of the window, since nobody else wants it. Where none
        has come: the whole window.
        """
        if now_s - self._on_time_s > _LULL_S:
            return self.n_run
        contended = max(1.0, share * min(self.n_run, self._busy))
        return contended if now_s - self._contended_s <= _LULL_S else max(contended, _UNCONTENDED_SHARE * self.n_run)

    def wanted(self, now_s: float) -> None:
        """A request in time would have come, and was held back for its own TPOT target or those of others in flight.

        To demoted requests it leaves their share of the window as if it had come. Else they would fill an instance that they themselves
        have slowed down, and those in time would be held back until they are late, too.
        """
        self._on_time_s = self._contended_s = now_s

    @property
    def awaiting(self) -> int:
        """Requests with a stream that were sent and have no first token yet."""
        return len(self._awaiting)

    @property
    def kv_committed(self) -> float:
        """Share of the KV fence taken."""
        return self.fence.share

    def serves(self, model: str) -> bool:
        """Whether it serves the model."""
        return self.models is None or model in self.models

    def control(self, controls: Controls) -> None:
        """Takes new controls; those in flight stay."""
        self.n_run = controls.n_run
        self.token_budget = controls.token_budget
        self.guard = controls.guard
        self.advised = controls.advised
        self._controlled = True
        self._turn()

    def observe(self, snapshot: EngineSnapshot) -> None:
        """Takes the engine's word: health, KV size where none is configured, and the ceilings of its knobs.

        An engine that states only the values in force is taken at the highest stated so far, because a knob that was turned
        down is no new ceiling.
        """
        self.engine = snapshot
        if snapshot.kv_capacity_tokens and self._fenced and self.spec.kv_capacity_tokens == 0:
            self.fence.resize(snapshot.kv_capacity_tokens)
        self._stated_n_run = snapshot.max_num_seqs_ceiling or max(self._stated_n_run, snapshot.max_num_seqs or 0)
        self.max_token_budget = snapshot.max_num_batched_tokens_ceiling or max(self.max_token_budget, snapshot.max_num_batched_tokens or 0)
        if self._stated_n_run:
            self.capacity_n_run = self._stated_n_run
            if not self._controlled:
                self.n_run = self.capacity_n_run
        self.preemptions.counted(snapshot.preemptions_total)
        room.correct_fence(self, snapshot)
        self._turn()

    def fence_admits(self, request: Request, tokens: int) -> bool:
        """Whether the fence lets a request of so many tokens at its upper length join now."""
        return self.fence.admits(tokens, *self._shared(request))

    def learn_cached(self, request: Request, cached_tokens: int) -> None:
        """The engine has said how many of a request's prompt tokens it found cached."""
        if self.prefixes is not None:
            self.prefixes.learn(request, cached_tokens)

    def _shared(self, request: Request) -> tuple[Hashable, int]:
        """What a request shares with others in flight here, and how many tokens."""
        shared = self.prefixes.expected(request) if self.prefixes is not None else 0
        return (prefix_key(request), shared) if shared else (None, 0)

    def start(self, entry: QueueEntry, tokens: int, policy: str, now_s: float, *, late: bool = False) -> Running:
        """Books a request that is dispatched; `tokens` are those at its upper length, `late` says that it was demoted."""
        usage = self.engine.kv_usage if self.engine is not None else None
        if usage is None:
            usage = self.fence.share if self.fence.capacity_tokens else -1.0
        request = entry.request
        run = Running(entry, self, policy, now_s, kv_usage=usage, alone=not self._awaiting)
        for other in self._awaiting.values():
            other.alone = False
        if request.stream:
            self._awaiting[request.id] = run
        self._reading = True
        self._prefill_until_s = max(now_s, self._prefill_until_s) + self.prefill_ms(entry) / 1000.0
        self.running[request.id] = run
        self.in_flight += 1
        self._turn()
        self.in_flight_tokens += run.expected_tokens
        self.prefill_tokens += request.prompt_tokens
        if not self.fence_admits(request, tokens):
            self.preemptions.dispatched(tokens)
        self.fence.commit(request.id, tokens, *self._shared(request))
        self.version += 1
        if not late:
            self._on_time_s = now_s
            if now_s - request.arrival_s > _AT_ONCE_S:
                self._contended_s = now_s
            self._busy = max(float(self.in_flight), _BUSY_DECAY * self._busy)
        return run

    def progress(self, run: Running, tokens: int, now_s: float) -> None:
        """A running request has produced `tokens` output tokens so far."""
        request = run.entry.request
        if run.first_s is None:
            run.first_s = now_s
            self.prefill_tokens -= request.prompt_tokens
            self._prefilled(run, now_s)
            self._tally(now_s)
            self._decoding += 1
            self._first_tokens += 1
            self._decoded -= 1
            self.version += 1
        run.last_s = now_s
        if tokens > run.tokens:
            self._decoded += tokens - run.tokens
            run.tokens = tokens
            self.fence.outgrow(request.id, request.prompt_tokens + tokens)

    def refresh(self, now_s: float) -> None:
        """Brings the tokens of all in flight up to date, where they are not reported one by one. O(in flight), once a moment."""
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
        """Learns the pace from what has been decoded since the last sample: sequence-seconds over tokens."""
        self._tally(now_s)
        decoded = self._decoded if self.source is None else self.source.generated(now_s) - self._first_tokens
        tokens = decoded - self._sampled
        if tokens >= _SAMPLE_TOKENS:
            self.pace.decoded(1000.0 * self._seq_s / tokens, quiet=not self._reading)
            self._reading = bool(self._awaiting)
            self._sampled, self._seq_s = decoded, 0.0

    def _tally(self, now_s: float) -> None:
        self._seq_s += self._decoding * (now_s - self._since_s)
        self._since_s = now_s

    def finish(self, run: Running, now_s: float) -> None:
        """Takes a request out of the books."""
        request = run.entry.request
        del self.running[request.id]
        self._awaiting.pop(request.id, None)
        self.in_flight -= 1
        self._turn()
        self.in_flight_tokens -= run.expected_tokens
        if run.first_s is None:
            self.prefill_tokens -= request.prompt_tokens
        else:
            self._tally(now_s)
            self._decoding -= 1
        self.fence.release(request.id)
        self.version += 1

    def prefill_ms(self, entry: QueueEntry) -> float:
        """How long the request's prompt would take here, and so hold up those that decode."""
        return self.pace.prefill_ms(entry.request.prompt_tokens, entry.estimates.ttft_ms)

    def first_token_ms(self, entry: QueueEntry) -> float | None:
        """Within what time its first token would mostly come if it were sent here, None where nothing is known."""
        first_token_overhead_ms = None if self.lead is None else self.lead.ms
        return None if first_token_overhead_ms is None else self.prefill_ms(entry) + first_token_overhead_ms

    def pending_prefill_ms(self, now_s: float) -> float:
        """Prefill still to come of what has been sent, by estimate; 0 once all have their first token."""
        return 1000.0 * max(0.0, self._prefill_until_s - now_s)

    def _prefilled(self, run: Running, now_s: float) -> None:
        request = run.entry.request
        if self._awaiting.pop(request.id, None) is None:
            return
        took_ms = 1000.0 * (now_s - run.dispatched_s)
        if self.lead is not None:
            self.lead.shown(took_ms - self.pace.prefill_ms(request.prompt_tokens, took_ms))
        if run.alone:
            self.pace.prefilled(took_ms, request.prompt_tokens)
        if not self._awaiting:
            self._prefill_until_s = now_s

    def rebook(self, run: Running, bounds: Sequence[LengthBound]) -> None:
        """Books a running request at the upper length that is believed now, and at no less than it holds already."""
        tokens = max(upper_tokens(run.entry, bounds), run.entry.request.prompt_tokens + run.tokens)
        self.fence.commit(run.entry.request.id, tokens)

    def tpot_pressure(self, now_s: float) -> float:
        """90 % quantile over those decoding of mean TPOT so far over its target, 0 with none. O(in flight)."""
        self.refresh(now_s)
        ratios = sorted(ratio for run in self.running.values() if (ratio := run.tpot_over_slo(now_s)) is not None)
        return ratios[min(len(ratios) - 1, int(_PRESSURE_QUANTILE * len(ratios)))] if ratios else 0.0

    def view(self, now_s: float) -> InstanceView:
        """The account as it goes to the agents. O(in flight)."""
        self.refresh(now_s)
        return InstanceView(
            name=self.name,
            in_flight=self.in_flight,
            in_flight_tokens=sum(run.entry.request.prompt_tokens + run.tokens for run in self.running.values()),
            n_run=self.n_run,
            token_budget=self.token_budget or 0,
            guard=0.0 if self.guard_overridden else self.guard,
            guarded=self.guarded,
            kv_committed=self.fence.share,
            tpot_pressure=self.tpot_pressure(now_s),
            first_token_overhead_ms=0.0 if self.lead is None else self.lead.ms or 0.0,
            capacity_n_run=self.capacity_n_run,
            max_token_budget=self.max_token_budget,
            draining=self.draining,
            engine=self.engine,
        )
