"""The engine protocol: what the gateway asks of an engine, and what an engine reports about itself.

Inside H-MAS the LOWER priority value goes first, as in vLLM. Each adapter converts it to its engine's own sign.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal, Protocol

import msgspec

SNAPSHOT_EVERY_S = 0.25
"""How often a gateway reads each engine's state, live and in simulation."""

KnobName = Literal["n_run", "token_budget"]


class EngineCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an outside controller can do with this engine, as detected on the running engine.

    Attributes:
        kind: The adapter's name in `hmas.engines.registry.ADAPTERS`.
        version: The engine's own version text, empty if it reports none.
        live_knobs: Knobs that `Engine.apply_knobs` can change while the engine serves.
        budget_least: The lowest `token_budget` that it takes; of higher ones, it takes multiples of `budget_step`.
        abort: Whether `Engine.abort` reaches the engine; if not, a request can only be aborted by closing its connection.
        priority: Whether the engine orders its own queue by the request's `priority`.
        load_signals: Whether snapshots carry the engine's own running, waiting and KV figures.
        token_counters: Whether the token totals in snapshots grow with every step, so that totals that stand still mean that nothing is
            computed.
        completion_cap: Most tokens of one answer to a plain completion whose body sets no cap; 0 if it sets none then, or is unknown.
        control: The state of live control, as text for an operator: which knobs are live, and why the others are not.
    """

    kind: str
    version: str = ""
    live_knobs: tuple[KnobName, ...] = ()
    budget_least: int = 1
    budget_step: int = 1
    abort: bool = False
    priority: bool = False
    load_signals: bool = False
    token_counters: bool = False
    completion_cap: int = 0
    control: str = ""


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of an engine's state.

    Attributes:
        engine: The instance's name.
        taken_s: When it was read, seconds since the epoch.
        healthy: Whether the engine answered correctly.
        detail: Why the engine is not healthy, as text; empty if it is healthy.
        running: Sequences in the running batch.
        waiting: Sequences in the engine's own queue.
        kv_usage: Share of KV blocks in use, 0 to 1; None if the engine does not report it.
        kv_capacity_tokens: Tokens the KV cache holds; None if the engine does not report it.
        max_num_seqs: The engine's active concurrency cap; None if unknown.
        max_num_batched_tokens: The engine's active limit of tokens per step; None if unknown.
        max_num_seqs_ceiling: Highest value that live control may set `max_num_seqs` to (the start-up value); None if unknown.
        max_num_batched_tokens_ceiling: The same for tokens per step.
        caches_prefixes: Whether it keeps the KV cache of prompts for others that begin alike; None if the engine does not say.
        preemptions_total: Sequences preempted since start.
        prompt_tokens_total: Prompt tokens processed since start: whole prompts, whether or not they were found cached. SGLang tells the
            cached ones only with `--enable-metrics`.
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
    caches_prefixes: bool | None = None
    preemptions_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0


class Knobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduler knobs of an engine; None leaves a knob unchanged.

    Attributes:
        n_run: Sequences that may run at once, 1 or more.
        token_budget: Tokens per engine step (prefill and decode together), 1 or more.
    """

    n_run: int | None = None
    token_budget: int | None = None


class KnobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of applying a `Knobs`: every knob that was set is in exactly one of the two maps."""

    applied: dict[str, int] = {}
    refused: dict[str, str] = {}


class EngineResponse(Protocol):
    """An engine's answer: its head has arrived, its body is still streaming."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive.

        Raises:
            EngineSilent: Nothing more came for too long.
            EngineUnavailable: The connection broke before the body's end.
        """

    async def relay(self, take: Callable[[bytes], bool]) -> None:
        """Passes the body to `take` as it arrives and returns at its end: like `chunks`, without a task switch for each piece.

        Args:
            take: Called from the event loop with each piece. If it returns False, reading stops until `resume` is called.

        Raises:
            EngineSilent: Nothing more came for too long.
            EngineUnavailable: The connection broke before the body's end.
            Exception: Any error that `take` raises; nothing more is read then.
        """

    def begun(self) -> None:
        """Tells that a stream has begun its answer: from now on too long a silence ends it. Before, only the caller limits the time."""

    def resume(self) -> None:
        """Continues reading after `take` has returned False."""

    def took_s(self) -> float:
        """Seconds from sending the request to reading the newest bytes of the answer: the time that the engine took, and the network."""

    async def close(self) -> None:
        """Releases the connection; closing before the end makes the engine see that its client disconnected."""


class Engine(Protocol):
    """One engine instance behind the gateway."""

    name: str
    capabilities: EngineCapabilities

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, priority: int = 0) -> EngineResponse:
        """Posts `body` to `path` (such as `/v1/chat/completions`) and returns when the response's head has arrived.

        Args:
            path: The OpenAI path.
            body: The JSON document, sent unchanged unless the engine's priority has to be written into it.
            headers: Headers to add (`x-request-id`, `traceparent`, authorization for the engine).
            request_id: Fixed-length id by which `abort` can name this request later.
            priority: Lower goes first; converted to the engine's sign, dropped if the engine has no priorities.

        The request is sent once. The caller decides whether it is sent again.

        Raises:
            StaleConnection: A kept connection ended before any byte of the answer.
            EngineUnavailable: No response head came for another reason.
        """

    async def call(self, method: str, path: str) -> tuple[int, bytes]:
        """Returns status and body of a request without a document, such as a GET of `/v1/models`.

        Raises:
            EngineUnavailable: No answer came.
        """

    async def abort(self, request_id: str) -> bool:
        """Asks the engine to drop a request. Returns True if the engine accepted; never raises."""

    async def snapshot(self, now_s: float) -> EngineSnapshot:
        """Reads the engine's state. If the engine does not answer, the result has `healthy=False`; never raises."""

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Sets live knobs. The report lists knobs that the engine cannot set as refused; never raises."""

    async def close(self) -> None:
        """Closes every connection."""
