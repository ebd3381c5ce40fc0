"""The shared types. Times are seconds since the epoch unless the name ends in `_ms`; lengths are tokens."""

import math
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

DEFAULT_IMPORTANCE = 0.75
"""Importance of a request without an estimate of its own."""


class TaskType(StrEnum):
    """The 13 task types of H-MAS Table 6, and `unknown` for requests that could not be classified with confidence (section 3.2)."""

    QA = "QA"
    DIALOGUE = "Dialogue"
    TRANSLATION = "Translation"
    EXTRACTION = "Extraction"
    PARAPHRASING = "Paraphrasing"
    CODE_GENERATION = "CodeGeneration"
    INSTRUCTION_FOLLOWING = "InstructionFollowing"
    SUMMARIZATION = "Summarization"
    LETTER_DRAFTING = "LetterDrafting"
    MATH_REASONING = "MathReasoning"
    ESSAY_GENERATION = "EssayGeneration"
    LONG_FORM_GENERATION = "LongFormGeneration"
    RESEARCH_AND_COMMUNICATION = "ResearchAndCommunication"
    UNKNOWN = "unknown"


class OutcomeKind(StrEnum):
    """How a request ended; each submitted request gets exactly one.

    `completed`: the engine's whole answer was passed on.
    `rejected`: refused by the gateway before it was queued (queue full, too large for the fence, draining), or by the engine (HTTP 4xx).
    `shed`: dropped from the queue because it could no longer meet its SLO.
    `timed_out`: its own deadline passed, queued or running.
    `cancelled`: the client left.
    `failed`: no engine could answer, or the engine broke off in the middle.
    """

    COMPLETED = "completed"
    REJECTED = "rejected"
    SHED = "shed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Latency targets of one request.

    Attributes:
        ttft_ms: Time to first token, milliseconds from arrival at the gateway, more than 0.
        tpot_ms: Time per output token after the first, milliseconds, more than 0.
    """

    ttft_ms: float
    tpot_ms: float


class EngineCached(Protocol):
    """What engines report of their caches, looked up for one prompt."""

    @property
    def complete(self) -> Collection[str]:
        """Instances of which every cached block is known."""

    def look(self) -> tuple[Mapping[str, int], int]:
        """Cached tokens of the prompt by instance, none left out that has any, and how many of the prompt's tokens could be looked up."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the scheduler sees it. The body itself stays with the gateway.

    Attributes:
        id: Fixed-length id, unique among live requests.
        tenant: The tenant that it belongs to.
        model: The model that it names.
        arrival_s: When the gateway had read the whole request.
        prompt_tokens: Estimated prompt length, 0 or more. `counted`: whether it is no estimate, as where a prompt comes as token ids.
        max_output_tokens: The client's own cap on output, None if it set none.
        min_output_tokens: Minimum output that the client requires (`min_tokens`, or `ignore_eos` with a cap), 0 if none.
        declared_slo: SLO that the client declared (limited by its tenant), None if it declared none.
        half_declared: Which target the client declared if it declared only one: the other one in `declared_slo` is the default.
        has_tools: Whether it has tool definitions.
        priority: LOWER goes first; 0 is ordinary.
        deadline_s: When the gateway gives up the request.
        session: The conversation that it belongs to, empty if unknown.
        stream: Whether the client asked for a stream.
        context_tokens: Most tokens, prompt and output together, that the model's engines hold for one sequence; 0 if they do not report it.
        prompts: Number of prompts, 1 or more; `prompt_tokens` is their sum.
        sequences: Number of answers that the engine computes, each a sequence of its own: `n` or `best_of` to each prompt. The caps apply
            to all of them together. A sequence takes a slot of a window; those of one prompt share its KV cache.
        body_bytes: Size of the body that the gateway holds while the request waits.
        blocks: Hashes of the prompt's pieces of equal length, each of all that stands before it and the tenant too: equal leading hashes
            are a shared prefix. Empty if no scorer of the model's router uses them.
        cached: What engines report to have cached of the prompt; None without KV events.
    """

    id: str
    tenant: str
    model: str
    arrival_s: float
    prompt_tokens: int
    counted: bool = True
    max_output_tokens: int | None = None
    min_output_tokens: int = 0
    declared_slo: Slo | None = None
    half_declared: Literal["", "ttft", "tpot"] = ""
    has_tools: bool = False
    priority: int = 0
    deadline_s: float = float("inf")
    session: str = ""
    stream: bool = True
    context_tokens: int = 0
    prompts: int = 1
    sequences: int = 1
    body_bytes: int = 0
    blocks: tuple[int, ...] = ()
    cached: EngineCached | None = None

    @property
    def context_needed(self) -> int:
        """Tokens of context with which an engine is not likely to refuse it: a prompt, with a fifth more as its length is an estimate, and
        the client's cap or one token.
        """
        return 6 * self.prompt_tokens // (5 * self.prompts) + max(1, (self.max_output_tokens or 0) // self.sequences)

    @property
    def declares_ttft(self) -> bool:
        """Whether the client declared a TTFT target, alone or with one for TPOT."""
        return self.declared_slo is not None and self.half_declared != "tpot"

    @property
    def output_limit(self) -> float:
        """Most output tokens of the answer: the client's cap, and what the prompt leaves of the context; infinite with neither."""
        limit = math.inf if self.max_output_tokens is None else float(self.max_output_tokens)
        if self.context_tokens <= 0:
            return limit
        # The prompt's length is an estimate: it may exceed the context although the true prompt fits.
        room = max(self.context_tokens - self.prompt_tokens // self.prompts, self.context_tokens // 8, 1)
        return min(limit, float(room * max(1, self.sequences)))


EstimateSource = Literal["default", "history", "perception", "prediction"]


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """The estimates of a request; the scheduler re-keys its entry whenever they are replaced.

    Attributes:
        slo: The active targets: declared by the client, else from Table 6 and Eq. 14.
        task_type: Task type, `unknown` until perception is confident.
        importance: 0.5 to 1.0 (H-MAS E.5).
        output_tokens: Predicted output length, the median.
        output_tokens_upper: Calibrated upper bound of the output length (H-MAS Eq. 4).
        ttft_ms: Predicted time from dispatch to first token on an instance under its current load.
        tpot_ms: Predicted time per output token.
        source: The source of the newest part.
        proven: Whether the upper length may hold the request back: it was measured, or similar forecasts have recently proven right.
        alone: Predicted TTFT and TPOT without any load, each more than 0, by instance; empty if not known.
    """

    slo: Slo
    task_type: TaskType = TaskType.UNKNOWN
    importance: float = DEFAULT_IMPORTANCE
    output_tokens: float = 128.0
    output_tokens_upper: float = 1024.0
    ttft_ms: float = 200.0
    tpot_ms: float = 30.0
    source: EstimateSource = "default"
    proven: bool = True
    alone: Mapping[str, tuple[float, float]] = msgspec.field(default_factory=dict)

    @property
    def total_ms(self) -> float:
        """Service-time proxy T_tot = ttft + tpot * l_pred (H-MAS section 3.2), milliseconds."""
        return self.ttft_ms + self.tpot_ms * self.output_tokens


class Controls(msgspec.Struct, frozen=True, kw_only=True):
    """Execution controls C_t of one instance (H-MAS section 3.1.1).

    Attributes:
        n_run: Sequences that may be in flight on the instance, 1 or more; a request with one answer is one sequence.
        token_budget: Tokens per engine step, None for the engine's own value.
        guard: Factor on the share that the TPOT guard allows a prompt on this instance, above 0 to 1.
        advised: Whether an agent has set `n_run`: then an engine with spare capacity may be given more requests.
    """

    n_run: int
    token_budget: int | None = None
    guard: float = 1.0
    advised: bool = False


def are_other_models(before: Collection[str] | None, now: Collection[str] | None) -> bool:
    """Whether an instance serves none of its models from before, so that what was measured is another model's speed.

    While its models are not known (empty or None), they are not others.
    """
    return bool(before and now and set(before).isdisjoint(now))
