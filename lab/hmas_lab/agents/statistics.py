"""Rules and statistics only: H-MAS's deterministic path (3.2, C.2), as an installation without any trained model has it. Pure."""

from collections import OrderedDict

from hmas.agents.perception.importance import importance_of
from hmas.agents.perception.lengths.demands import demanded_tokens
from hmas.agents.perception.tagging import tag
from hmas.controller.core.messages import Completion, RequestFeatures, RequestNotice
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import OutcomeKind, TaskType
from hmas_lab.lengths.statistics import LengthStatistics

REMEMBERED = 20_000


class RulesAndStatistics:
    """Cue words name the task type; lengths are quantiles of what like requests produced.

    Args:
        min_confidence: Below it the task type is `unknown`.
        slo_scale: As in `slo_for`.
    """

    def __init__(self, *, min_confidence: float, slo_scale: float) -> None:
        self._min_confidence = min_confidence
        self._slo_scale = slo_scale
        self._lengths = LengthStatistics()
        self._tags: OrderedDict[str, TaskType] = OrderedDict()

    def perceive(self, notice: RequestNotice, now_s: float) -> RequestFeatures:
        """What is believed of one request."""
        found = tag(notice.excerpt, has_tools=notice.has_tools, turns=notice.turns)
        task = found.task if found.confidence >= self._min_confidence else TaskType.UNKNOWN
        importance = importance_of(notice.excerpt, has_tools=notice.has_tools)
        slo = slo_for(task, importance, self._slo_scale)
        length = self._lengths.estimate(
            tenant=notice.tenant, task=task, prompt_tokens=notice.prompt_tokens, demanded=demanded_tokens(notice.excerpt.lower())
        )
        cap = float(notice.max_output_tokens) if notice.max_output_tokens > 0 else float("inf")
        self._tags[notice.request_id] = task
        if len(self._tags) > REMEMBERED:
            self._tags.popitem(last=False)
        return RequestFeatures(
            request_id=notice.request_id,
            sent_s=now_s,
            tenant=notice.tenant,
            model=notice.model,
            prompt_tokens=notice.prompt_tokens,
            task_type=task,
            confidence=found.confidence,
            ttft_slo_ms=slo.ttft_ms,
            tpot_slo_ms=slo.tpot_ms,
            importance=importance,
            output_tokens=max(1.0, min(cap, length.p50)),
            output_tokens_p90=max(1.0, min(cap, length.p90)),
            source="rules and statistics",
        )

    def learn(self, completion: Completion) -> None:
        """Takes in how long an answer was; what did not complete has no length of its own."""
        if completion.outcome is OutcomeKind.COMPLETED and completion.output_tokens >= 1:
            self._lengths.learn(
                tenant=completion.tenant,
                task=self._tags.pop(completion.request_id, completion.task_type),
                prompt_tokens=completion.prompt_tokens,
                output_tokens=completion.output_tokens,
            )
