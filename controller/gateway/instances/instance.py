"""One engine instance as the gateway knows it: its configuration, its last reading, and how its requests fared."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from hmas.controller.config.schema import EngineConfig
from hmas.controller.control.resolve import Ceiling
from hmas.controller.core.types import Controls
from hmas.controller.gateway.instances.circuit_breaker import CircuitBreaker
from hmas.controller.gateway.instances.stall import StallWatch
from hmas.engines.base import Engine, EngineSnapshot

READ_NOW_MOST_S = 1.0
"""How long a poll is waited for: an engine that is busy may take longer over it."""


@dataclass(slots=True)
class Instance:
    """One engine instance as the gateway knows it.

    Attributes:
        snapshot: The last reading, None before the first.
        down_since_s: Since when it does not answer; None while it does.
        models: The models it serves; None if it does not report them, and then any model may be tried.
        known: Whether it has ever answered to `/v1/models`, other than by a 5xx; before that nothing is known of its models, and it
            gets no requests.
        entries: Its entries of `/v1/models`, passed on as they are.
        context: Most tokens of one sequence, prompt and output, by model, for the models that report it.
        ceiling: The most it can take.
        wanted: The active controls for it.
        applied: Knobs as the engine last accepted them. `refused`: the knobs it refused last, with the reason, since `refused_s`.
        passing: Pass-through requests (embeddings) in progress.
        next_reading: Set at the end of the next poll that begins. `poll_now`: lets it begin at once.
        breaker: Its circuit breaker; while that is open, the instance counts as one that does not answer.
        answers: Whether the engine itself answered the last reading correctly, whatever its breaker says.
        given_up: Whether requests were taken back from it since it stopped answering.
        avoid_until_s: Until when it is not preferred.
    """

    config: EngineConfig
    engine: Engine
    ceiling: Ceiling
    snapshot: EngineSnapshot | None = None
    down_since_s: float | None = 0.0
    models: frozenset[str] | None = None
    known: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)
    context: dict[str, int] = field(default_factory=dict)
    models_read_s: float = float("-inf")
    wanted: Controls | None = None
    applied: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    refused_s: float = float("-inf")
    passing: int = 0
    draining: bool = False
    poll_now: asyncio.Event = field(default_factory=asyncio.Event)
    next_reading: asyncio.Event = field(default_factory=asyncio.Event)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    stall: StallWatch = field(default_factory=StallWatch)
    answers: bool = False
    given_up: bool = False
    avoid_until_s: float = float("-inf")

    @property
    def name(self) -> str:
        """The instance's name."""
        return self.config.name

    @property
    def healthy(self) -> bool:
        """Whether the last reading found it healthy."""
        return self.down_since_s is None

    @property
    def reported(self) -> int:
        """Requests that it runs or that wait in it, by its last report."""
        return 0 if self.snapshot is None else self.snapshot.running + self.snapshot.waiting

    @property
    def passes_through(self) -> bool:
        """Whether it may get a pass-through request now. While its circuit is half open, it gets one at a time."""
        return self.down_since_s is None and not self.draining and not (self.passing and self.breaker.state == "half-open")

    @property
    def closed_because(self) -> str:
        """Why it takes no requests, empty if it does. One that is probed takes requests: without any, its circuit would never close."""
        if self.breaker.state == "open":
            return "its circuit is open"
        if not self.healthy:
            return "it does not answer"
        if self.draining:
            return "it is being drained"
        return "its window is 0" if self.wanted is not None and self.wanted.n_run < 1 else ""

    def ceiling_by(self, snapshot: EngineSnapshot) -> Ceiling:
        """Its ceiling after a reading."""
        if not snapshot.healthy:
            return self.ceiling
        live = self.engine.capabilities.live_knobs
        n_run = snapshot.max_num_seqs_ceiling
        budget = snapshot.max_num_batched_tokens_ceiling
        # If a knob cannot be changed live, its active value is the ceiling.
        if n_run is None and "n_run" not in live:
            n_run = snapshot.max_num_seqs
        if budget is None and "token_budget" not in live:
            budget = snapshot.max_num_batched_tokens
        return Ceiling(n_run or self.config.n_run_max, budget or 0)

    def serves(self, model: str) -> bool:
        """Whether it may get a request for this model."""
        return self.models is None or model in self.models

    async def read_now(self) -> None:
        """Returns when a poll that begins now has ended, or after `READ_NOW_MOST_S`."""
        self.poll_now.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_NOW_MOST_S):
                await self.next_reading.wait()

    def down_for_s(self, now_s: float) -> float:
        """Seconds for which it has not answered; 0 while it does."""
        return 0.0 if self.down_since_s is None else now_s - self.down_since_s


def context_of(entry: dict[str, Any]) -> int:
    """The context length in a model's entry, as vLLM and SGLang report it; 0 if there is none."""
    length = entry.get("max_model_len")
    return length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else 0


def contexts_of(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The context length of each model that reports one; an adapter, whose entry has none in vLLM, has that of its base model."""
    own = {entry["id"]: length for entry in entries if (length := context_of(entry)) > 0}
    parents = {entry["id"]: entry["parent"] for entry in entries if isinstance(entry.get("parent"), str)}
    return {model: own[parent] for model, parent in parents.items() if parent in own} | own


def model_entries_of(body: bytes) -> list[dict[str, Any]]:
    """Entries with a usable id. An answer that is no list of models yields none, so that any model may be tried."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    data: Sequence[Any] = document.get("data", []) if isinstance(document, dict) else []
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)] if isinstance(data, list) else []
