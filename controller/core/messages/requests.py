"""Messages about one request: its notice, its features, its cost, and its end."""

from msgspec import field

from hmas.controller.core.messages.base import Message
from hmas.controller.core.types import OutcomeKind, TaskType

NOTICE_FRESH_S = 10.0
"""Age above which a notice, or the features of a request, are not answered: it has been dispatched on defaults, or is about to be."""


class RequestNotice(Message, frozen=True, tag="request"):
    """A request has been queued (gateway -> perception).

    Attributes:
        excerpt: Head and tail of the question: the last user message, or the prompt. Like the two texts after it, it is bounded
            (`hmas.controller.core.prompt_texts`), and empty if prompts must not leave the gateway.
        system: Head of the system prompts.
        history: The earlier messages before the question, newest last.
        question_chars, question_tokens: Length of the whole question, 0 if unknown.
        ttft_slo_ms: Declared target, 0 if none was declared. Likewise `tpot_slo_ms`.
        max_output_tokens: The client's cap, 0 if none.
        has_tools: Whether the request has tool definitions.
        turns: Messages of the conversation, 0 if unknown (a plain completion).
        tool_results: Number of messages with a tool's answer.
        wants_json: Whether the answer must be JSON.
        choices: Number of answers requested: `n` to each of its prompts.
        context_tokens: Most tokens of prompt and answer together on the engines of the model, 0 if unknown.
        session: Opaque name of the conversation (`session_digest`), empty if unknown.
        stream: Whether the client asked for a stream.
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
    stream: bool = True


class RequestFeatures(Message, frozen=True, tag="features"):
    """Perception's estimates of a request (perception -> prediction, gateway).

    Attributes:
        confidence: Confidence in the task type, 0 to 1; below the configured floor the type is `unknown`.
        output_tokens: Median of the predicted output length of one answer.
        output_tokens_p90: 90 % quantile of the predicted output length.
        prompt_tokens: Passed on so that prediction needs no second stream. `choices`, `stream`: as in the notice.
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
    choices: int = 1
    stream: bool = True


class RequestCost(Message, frozen=True, tag="cost"):
    """The predicted cost of a request (prediction -> gateway).

    Attributes:
        ttft_ms: Median time from dispatch to first token, by instance name, under the load of the instances at that time.
        tpot_ms: Median time per output token, by instance name.
        output_tokens: The predicted length that these are based on.
        alone_ttft_ms, alone_tpot_ms: Both as they would be without any load, for some of these instances; empty if not known.
    """

    request_id: str
    sent_s: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    output_tokens: float
    alone_ttft_ms: dict[str, float] = field(default_factory=dict)
    alone_tpot_ms: dict[str, float] = field(default_factory=dict)


class Completion(Message, frozen=True, tag="completion"):
    """The end of a request (gateway -> qos, statera, prediction, perception). There is exactly one per submitted request.

    Attributes:
        queue_ms: Time from arrival to dispatch; -1 if it was never dispatched.
        ttft_ms: Time from arrival to first token; -1 if none came.
        service_ttft_ms: Time from dispatch to first token; -1 if none came.
        tpot_ms: Mean time per output token of one answer after the first; -1 with fewer than two tokens of each.
        total_ms: Time from arrival to end.
        predicted_*: The forecasts before the first token came, for residuals.
        running: Requests in flight on the instance at dispatch; `kv_usage`: its cache use at that time.
        slo_met: Whether both targets were met (H-MAS Eq. 1), or an answer in one piece came by `objectives.whole_due_ms`; never true
            unless completed.
        reason: Why it ended in this way, as text.
        max_output_tokens: The client's cap, 0 if none: an output that reaches it is only a lower bound of its natural length.
        session: As in `RequestNotice`.
        sequences: Answers that the engine computed; tokens are those of all of them.
        asked: Whether the gateway posted the request's notice; it does not for some that are sent at once.
        ttft_declared: Whether the client declared the TTFT target.
        stream: Whether the client asked for a stream.
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
    sequences: int = 1
    asked: bool = True
    ttft_declared: bool = False
    stream: bool = True
