"""One request on its way: what is told of it, what is believed, what it costs, how it ended."""

from msgspec import field

from hmas.controller.core.messages.base import Message
from hmas.controller.core.types import OutcomeKind, TaskType


class RequestNotice(Message, frozen=True, tag="request"):
    """A request has been queued (gateway -> perception).

    Attributes:
        excerpt: Head and tail of what is asked: the last user message, or the prompt. Like the two texts after it bounded
            (`hmas.controller.core.prompt_texts`), and empty where prompts may not leave the gateway.
        system: Head of the system prompts.
        history: What was said before the question, newest last.
        question_chars, question_tokens: Length of the whole question, 0 where not known.
        prompt_chars: Length of the whole prompt in characters.
        ttft_slo_ms: Declared target, 0 where none was declared. Likewise `tpot_slo_ms`.
        max_output_tokens: The client's cap, 0 where none.
        has_tools: Whether tool definitions came along.
        turns: Messages of the conversation, 0 where not known (a plain completion).
        images: Pictures among the content parts.
        tool_results: Messages that hold what a tool answered.
        wants_json: Whether the answer must be JSON.
        choices: Answers that are asked for (`n`).
        context_tokens: Tokens that prompt and answer may have together on the engines of the model, 0 where not known.
        session: Opaque name of the conversation (`session_digest`), empty where not known.
    """

    request_id: str
    sent_s: float
    tenant: str
    model: str
    prompt_tokens: int
    prompt_chars: int = 0
    excerpt: str = ""
    ttft_slo_ms: float = 0.0
    tpot_slo_ms: float = 0.0
    max_output_tokens: int = 0
    has_tools: bool = False
    turns: int = 0
    images: int = 0
    session: str = ""
    system: str = ""
    history: str = ""
    question_chars: int = 0
    question_tokens: int = 0
    tool_results: int = 0
    wants_json: bool = False
    choices: int = 1
    context_tokens: int = 0


class RequestFeatures(Message, frozen=True, tag="features"):
    """What perception believes about a request (perception -> prediction, gateway).

    Attributes:
        confidence: 0 to 1; below the configured floor the task type is `unknown`.
        output_tokens: Median of the predicted output length.
        output_tokens_p90: 90 % quantile of it.
        output_quantiles: Its quantiles at `hmas.controller.core.lengths.LEVELS`; empty where only the two above are known.
        prompt_tokens: Passed on so that prediction needs no second stream.
    """

    request_id: str
    sent_s: float
    tenant: str
    model: str
    prompt_tokens: int
    task_type: TaskType
    confidence: float
    ttft_slo_ms: float
    tpot_slo_ms: float
    importance: float
    output_tokens: float
    output_tokens_p90: float
    source: str = "rules"
    output_quantiles: tuple[float, ...] = ()


class RequestCost(Message, frozen=True, tag="cost"):
    """What a request will cost (prediction -> gateway).

    Attributes:
        ttft_ms: From dispatch to first token, by instance name, as the instances were loaded when asked.
        tpot_ms: Per output token, by instance name.
        output_tokens: The predicted length these stand on.
        ttft_p90_ms, tpot_p90_ms: Their 90 % quantiles, by instance name; the two above are medians.
        total_ms: Quantiles 0.1, 0.5 and 0.9 of dispatch to end, by instance name: cost and output length both uncertain.
    """

    request_id: str
    sent_s: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    output_tokens: float
    ttft_p90_ms: dict[str, float] = field(default_factory=dict)
    tpot_p90_ms: dict[str, float] = field(default_factory=dict)
    total_ms: dict[str, tuple[float, float, float]] = field(default_factory=dict)


class Completion(Message, frozen=True, tag="completion"):
    """A request has ended (gateway -> qos, statera, prediction, perception). Exactly one per submitted request.

    Attributes:
        queue_ms: Arrival to dispatch; -1 where it was never dispatched.
        ttft_ms: Arrival to first token; -1 where none came.
        service_ttft_ms: Dispatch to first token; -1 where none came.
        tpot_ms: Mean time per output token after the first; -1 with fewer than two tokens.
        total_ms: Arrival to end.
        predicted_*: What was forecast before the first token came, for residuals.
        running: In flight on the instance when this was dispatched; `kv_usage` likewise.
        slo_met: Whether both targets were met (H-MAS Eq. 1); never true unless completed.
        reason: Why it ended so, in words.
        max_output_tokens: The client's cap, 0 where none: a length that reaches it says only that it would have been longer.
        session: As in the notice.
    """

    request_id: str
    sent_s: float
    tenant: str
    model: str
    outcome: OutcomeKind
    arrival_s: float
    policy: str
    instance: str = ""
    task_type: TaskType = TaskType.UNKNOWN
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queue_ms: float = -1.0
    ttft_ms: float = -1.0
    service_ttft_ms: float = -1.0
    tpot_ms: float = -1.0
    total_ms: float = -1.0
    ttft_slo_ms: float = 0.0
    tpot_slo_ms: float = 0.0
    predicted_output_tokens: float = 0.0
    predicted_ttft_ms: float = 0.0
    predicted_tpot_ms: float = 0.0
    running: int = 0
    kv_usage: float = -1.0
    slo_met: bool = False
    status: int = 0
    reason: str = ""
    max_output_tokens: int = 0
    session: str = ""
