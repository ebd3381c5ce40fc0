"""The engine protocol: what the gateway asks of an engine, and what an engine tells about itself.

Priority polarity inside H-MAS: the LOWER value goes first (as in vLLM). An adapter converts to its engine's own sign.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

SNAPSHOT_EVERY_S = 0.25
"""How often a gateway reads each engine's state, live and in simulation."""

KnobName = Literal["n_run", "token_budget", "long_prefill_tokens"]


class EngineCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this engine lets an outside controller do, as detected, not as assumed.

    Attributes:
        kind: Adapter's name: `openai`, `vllm`, `sglang` or `sim`.
        version: The engine's own version text, empty where it does not say.
        live_knobs: Knobs that `Engine.apply_knobs` can change while the engine serves.
        abort: Whether `Engine.abort` reaches the engine (else closing the connection is all there is).
        priority: Whether the engine orders its own queue by the request's `priority`.
        load_signals: Whether snapshots carry the engine's own running, waiting and KV figures.
        reprioritize: Whether `Engine.reprioritize` reaches the engine's own queue.
        evict: Whether `Engine.evict` can put running requests back into it.
        control: How live control stands, in words for an operator: which knobs are live, and why others are not.
    """

    kind: str
    version: str = ""
    live_knobs: tuple[KnobName, ...] = ()
    abort: bool = False
    priority: bool = False
    load_signals: bool = False
    reprioritize: bool = False
    evict: bool = False
    control: str = ""


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of an engine's state.

    Attributes:
        engine: The instance's name.
        taken_s: When it was read, seconds since the epoch.
        healthy: Whether the engine answered as it should.
        detail: Why it is not healthy, in words; empty when it is.
        running: Sequences in the running batch.
        waiting: Sequences in the engine's own queue.
        kv_usage: Share of KV blocks in use, 0 to 1; None where the engine does not say.
        kv_capacity_tokens: Tokens the KV cache holds; None where the engine does not say.
        max_num_seqs: The engine's concurrency cap in force; None where unknown.
        max_num_batched_tokens: The engine's tokens per step in force; None where unknown.
        max_num_seqs_ceiling: Highest value that live control may set it to (the start-up value); None where unknown.
        max_num_batched_tokens_ceiling: Likewise for tokens per step.
        long_prefill_tokens: Threshold in force beyond which a prompt is computed in pieces, 0 for none; None where unknown.
        long_prefill_tokens_start: The start-up value of that threshold.
        preemptions_total: Sequences preempted since start.
        prompt_tokens_total: Prompt tokens computed since start.
        generation_tokens_total: Output tokens produced since start.
    """

    engine: str
    taken_s: float
    healthy: bool
    detail: str = ""
    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs_ceiling: int | None = None
    max_num_batched_tokens_ceiling: int | None = None
    long_prefill_tokens: int | None = None
    long_prefill_tokens_start: int | None = None
    preemptions_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0


class Knobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduler knobs of an engine; None leaves a knob as it is.

    Attributes:
        n_run: Sequences that may run at once, 1 or more.
        token_budget: Tokens per engine step (prefill and decode together), 1 or more.
        long_prefill_tokens: Prompts longer than this are computed in pieces: one step takes at most so many tokens of each; 0 for none.
    """

    n_run: int | None = None
    token_budget: int | None = None
    long_prefill_tokens: int | None = None


class KnobReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a `Knobs`: every knob that was set is in exactly one of the two maps."""

    applied: dict[str, int] = {}
    refused: dict[str, str] = {}


class EngineResponse(Protocol):
    """An engine's answer whose head has arrived and whose body is still streaming."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive.

        Raises:
            EngineUnavailable: The connection broke before the body's end.
        """
        ...

    async def relay(self, take: Callable[[bytes], bool]) -> None:
        """Hands the body over as it arrives and returns at its end: the way of `chunks` without a switch of tasks for each piece.

        Args:
            take: Called from the event loop with each piece. False holds the engine back until `resume` is called.

        Raises:
            EngineUnavailable: The connection broke before the body's end.
            Exception: Whatever `take` raises; nothing more is read then.
        """
        ...

    def resume(self) -> None:
        """Reads on, after `take` has returned False."""
        ...

    async def close(self) -> None:
        """Lets the connection go; closing before the end makes the engine see its client leave."""
        ...


class Engine(Protocol):
    """One engine instance behind the gateway."""

    name: str
    url: str
    capabilities: EngineCapabilities

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, priority: int = 0) -> EngineResponse:
        """Posts `body` to `path` (such as `/v1/chat/completions`) and returns when the response's head is there.

        Args:
            path: The OpenAI path.
            body: The JSON document, sent as it is unless the engine's priority has to be written into it.
            headers: Headers to add (`x-request-id`, `traceparent`, authorization towards the engine).
            request_id: Fixed-length id by which `abort` can name this request later.
            priority: Lower goes first; converted to the engine's sign, dropped where it has none.

        Raises:
            EngineUnavailable: No response head came.
        """
        ...

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET on the engine, for `/v1/models` and the like.

        Raises:
            EngineUnavailable: No answer came.
        """
        ...

    async def abort(self, request_id: str) -> bool:
        """Tells the engine to drop a request. True where the engine took the order; never raises."""
        ...

    async def snapshot(self, now_s: float) -> EngineSnapshot:
        """Reads the engine's state; an engine that does not answer gives `healthy=False`, never an exception."""
        ...

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Sets live knobs. What the engine cannot do is refused in the report, never raised."""
        ...

    async def reprioritize(self, priorities: Mapping[str, int]) -> frozenset[str]:
        """Gives requests that wait in the engine's own queue another priority; never raises.

        Args:
            priorities: The new priority (lower first, as everywhere in H-MAS) by the `request_id` of `send`.

        Returns:
            Ids of those that were changed: an id that is unknown, or no longer waits, is left out.
        """
        ...

    async def evict(self, request_ids: Sequence[str]) -> frozenset[str]:
        """Puts running requests back into the engine's own queue, to be computed again later; never raises.

        Returns:
            Ids of those that were evicted.
        """
        ...

    async def close(self) -> None:
        """Lets every connection go."""
        ...
