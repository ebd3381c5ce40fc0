"""What perception believes about a request, by rules and statistics: H-MAS's own deterministic path (3.2, C.2). Pure."""

from collections import OrderedDict

from agents.perception.length_demands import demanded_tokens
from agents.perception.length_statistics import LengthStatistics
from agents.perception.tagging import tag
from controller.core.messages import Completion, RequestFeatures, RequestNotice
from controller.core.slo import IMPORTANCE_MAX, IMPORTANCE_MIN, slo_for
from controller.core.types import OutcomeKind, TaskType

ORDINARY = 0.75
"""Importance of a request that says nothing about itself."""
REMEMBERED = 20_000
"""Tagged requests remembered until their completion comes."""

_URGENT = (
    "urgent",
    "asap",
    "as soon as possible",
    "immediately",
    "emergency",
    "right now",
    "critical incident",
    "time-sensitive",
    "outage",
)
_PATIENT = ("no rush", "no hurry", "take your time", "whenever you", "just for fun", "just testing", "this is a test", "background job")
_URGENCY_STEP = 0.15
_TOOLS_STEP = 0.05


def importance_of(text: str, *, has_tools: bool) -> float:
    """Importance between 0.5 and 1.0 (E.5), from what the prompt says of its urgency and from whether a program waits for the answer.

    It moves targets by a fifth at most (Eq. 14), so a client that shouts gains little.
    """
    text = text.lower()
    value = ORDINARY
    value += _URGENCY_STEP * any(word in text for word in _URGENT)
    value -= _URGENCY_STEP * any(word in text for word in _PATIENT)
    value += _TOOLS_STEP * has_tools
    return min(IMPORTANCE_MAX, max(IMPORTANCE_MIN, round(value, 4)))


class PerceptionModel:
    """Tags requests and learns output lengths from completions.

    Args:
        min_confidence: Below it the task type is `unknown`.
        slo_scale: As in `slo_for`.
    """

    def __init__(self, *, min_confidence: float, slo_scale: float) -> None:
        self._min_confidence = min_confidence
        self._slo_scale = slo_scale
        self._lengths = LengthStatistics()
        self._tags: OrderedDict[str, TaskType] = OrderedDict()
        self._learnt: OrderedDict[str, None] = OrderedDict()

    def perceive(self, notice: RequestNotice, now_s: float) -> RequestFeatures:
        """Features of one request. Declared targets stand; missing ones come from Table 6 and Eq. 14.

        A doubtful type becomes `unknown` with the table's middle row and the length history of all types: no specialisation on a guess.
        """
        found = tag(notice.excerpt, has_tools=notice.has_tools, turns=notice.turns)
        task = found.task if found.confidence >= self._min_confidence else TaskType.UNKNOWN
        importance = importance_of(notice.excerpt, has_tools=notice.has_tools)
        slo = slo_for(task, importance, self._slo_scale)
        length = self._lengths.estimate(
            tenant=notice.tenant, task=task, prompt_tokens=notice.prompt_tokens, demanded=demanded_tokens(notice.excerpt)
        )
        cap = float(notice.max_output_tokens) if notice.max_output_tokens > 0 else float("inf")
        self._remember(notice.request_id, task)
        return RequestFeatures(
            request_id=notice.request_id,
            sent_s=now_s,
            tenant=notice.tenant,
            model=notice.model,
            prompt_tokens=notice.prompt_tokens,
            task_type=task,
            confidence=found.confidence,
            ttft_slo_ms=notice.ttft_slo_ms or slo.ttft_ms,
            tpot_slo_ms=notice.tpot_slo_ms or slo.tpot_ms,
            importance=importance,
            output_tokens=max(1.0, min(cap, length.p50)),
            output_tokens_p90=max(1.0, min(cap, length.p90)),
        )

    def learn(self, completion: Completion) -> None:
        """Takes a completion's length into account, once per request; what did not complete has no length of its own."""
        if completion.outcome is not OutcomeKind.COMPLETED or completion.output_tokens < 1 or completion.request_id in self._learnt:
            return
        self._learnt[completion.request_id] = None
        if len(self._learnt) > REMEMBERED:
            self._learnt.popitem(last=False)
        self._lengths.learn(
            tenant=completion.tenant,
            # The gateway may have dispatched before the tag arrived; then it is remembered here.
            task=self._tags.pop(completion.request_id, completion.task_type),
            prompt_tokens=completion.prompt_tokens,
            output_tokens=completion.output_tokens,
        )

    def _remember(self, request_id: str, task: TaskType) -> None:
        self._tags[request_id] = task
        if len(self._tags) > REMEMBERED:
            self._tags.popitem(last=False)
