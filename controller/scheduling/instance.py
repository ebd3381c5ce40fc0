"""The scheduler's account of one engine instance and of what runs there."""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.messages import InstanceView, LengthBound
from controller.core.types import Controls, Estimates
from controller.scheduling.admission import Fence, upper_tokens
from controller.scheduling.outcomes import InstanceSpec
from controller.scheduling.queue_entry import QueueEntry
from engines.base import EngineSnapshot

_PRESSURE_QUANTILE = 0.9


@dataclass(slots=True)
class Running:
    """A request in flight.

    Attributes:
        predicted: Estimates at dispatch.
        running: Requests in flight on the instance when this one came; `kv_usage` likewise, -1 where nothing is known.
        tokens: Output tokens so far.
        first_s: When the first token came, None before it. `last_s`: when the latest came.
    """

    entry: QueueEntry
    instance: "Instance"
    policy: str
    dispatched_s: float
    predicted: Estimates
    running: int
    kv_usage: float
    tokens: int = 0
    first_s: float | None = None
    last_s: float = 0.0

    def tpot_over_slo(self, now_s: float) -> float | None:
        """Mean TPOT so far over its target, None before two tokens. A stream that has stopped counts as slow while it stands."""
        if self.first_s is None or self.tokens < 2:
            return None
        mean_s = max((self.last_s - self.first_s) / (self.tokens - 1), (now_s - self.first_s) / self.tokens)
        return 1000.0 * mean_s / self.entry.estimates.slo.tpot_ms


class Instance:
    """One instance: window, fence, health, and what is in flight. Satisfies `controller.core.placement.InstanceState`.

    Attributes:
        name: The spec's name.
        spec: What was configured. `models`: those it serves now, None for any.
        n_run: Window in force. `token_budget`: tokens per step in force, None for the engine's own.
        capacity_n_run: Ceiling of the window: what the engine states, the spec's until it states something.
        max_token_budget: Ceiling of tokens per step as the engine states it, 0 until then.
        running: In flight, by request id.
        in_flight, in_flight_tokens, prefill_tokens: As in `InstanceState`.
        draining: Takes no new requests. `engine`: the engine's last snapshot.
    """

    __slots__ = (
        "_controlled",
        "_fenced",
        "_stated_n_run",
        "capacity_n_run",
        "draining",
        "engine",
        "fence",
        "in_flight",
        "in_flight_tokens",
        "max_token_budget",
        "models",
        "n_run",
        "name",
        "prefill_tokens",
        "running",
        "spec",
        "token_budget",
    )

    def __init__(self, spec: InstanceSpec, *, fenced: bool, margin: float) -> None:
        self.name = spec.name
        self.models = spec.models
        self.spec = spec
        self.n_run = spec.capacity_n_run
        self.token_budget: int | None = None
        self.capacity_n_run = spec.capacity_n_run
        self.max_token_budget = 0
        self.fence = Fence(spec.kv_capacity_tokens if fenced else 0, spec.kv_bytes_per_token, margin)
        self.running: dict[str, Running] = {}
        self.in_flight = 0
        self.in_flight_tokens = 0
        self.prefill_tokens = 0
        self.draining = False
        self.engine: EngineSnapshot | None = None
        self._fenced = fenced
        self._controlled = False
        self._stated_n_run = 0

    @property
    def available(self) -> bool:
        """Whether it may be given requests at all: not draining, and not known to be unhealthy."""
        return not self.draining and (self.engine is None or self.engine.healthy)

    @property
    def open(self) -> bool:
        """Whether it may be given one more now."""
        return self.in_flight < self.n_run and self.available

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
        self._controlled = True

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

    def start(self, entry: QueueEntry, tokens: int, policy: str, now_s: float) -> Running:
        """Books a request that is dispatched; `tokens` are those at its upper length."""
        usage = self.engine.kv_usage if self.engine is not None else None
        if usage is None:
            usage = self.fence.share if self.fence.capacity_tokens else -1.0
        run = Running(entry, self, policy, now_s, entry.estimates, self.in_flight, usage)
        self.running[entry.request.id] = run
        self.in_flight += 1
        self.in_flight_tokens += entry.request.prompt_tokens
        self.prefill_tokens += entry.request.prompt_tokens
        self.fence.commit(entry.request.id, tokens)
        return run

    def progress(self, run: Running, tokens: int, now_s: float) -> None:
        """A running request has produced `tokens` output tokens so far."""
        if run.first_s is None:
            run.first_s = now_s
            self.prefill_tokens -= run.entry.request.prompt_tokens
        run.last_s = now_s
        if tokens > run.tokens:
            self.in_flight_tokens += tokens - run.tokens
            run.tokens = tokens
            self.fence.outgrow(run.entry.request.id, run.entry.request.prompt_tokens + tokens)

    def finish(self, run: Running) -> None:
        """Takes a request out of the books."""
        del self.running[run.entry.request.id]
        self.in_flight -= 1
        self.in_flight_tokens -= run.entry.request.prompt_tokens + run.tokens
        if run.first_s is None:
            self.prefill_tokens -= run.entry.request.prompt_tokens
        self.fence.release(run.entry.request.id)

    def rebook(self, run: Running, bounds: Sequence[LengthBound]) -> None:
        """Books a running request at the upper length that is believed now, and at no less than it holds already."""
        tokens = max(upper_tokens(run.entry, bounds), run.entry.request.prompt_tokens + run.tokens)
        self.fence.commit(run.entry.request.id, tokens)

    def tpot_pressure(self, now_s: float) -> float:
        """90 % quantile over those decoding of mean TPOT so far over its target, 0 with none. O(in flight)."""
        ratios = sorted(ratio for run in self.running.values() if (ratio := run.tpot_over_slo(now_s)) is not None)
        return ratios[min(len(ratios) - 1, int(_PRESSURE_QUANTILE * len(ratios)))] if ratios else 0.0

    def view(self, now_s: float) -> InstanceView:
        """The account as it goes to the agents."""
        return InstanceView(
            name=self.name,
            in_flight=self.in_flight,
            in_flight_tokens=self.in_flight_tokens,
            n_run=self.n_run,
            token_budget=self.token_budget or 0,
            kv_committed=self.fence.share,
            tpot_pressure=self.tpot_pressure(now_s),
            capacity_n_run=self.capacity_n_run,
            max_token_budget=self.max_token_budget,
            draining=self.draining,
            engine=self.engine,
        )
