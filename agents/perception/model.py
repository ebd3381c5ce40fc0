"""Perception's model: task types from a reader, lengths learnt online, targets by Table 6 and Eq. 14. Pure."""

import math
from collections import OrderedDict
from collections.abc import Sequence

from hmas.agents.model_store.ranges import figures_of
from hmas.agents.perception.importance import importance_of
from hmas.agents.perception.lengths.model import Forecast, LengthModel
from hmas.agents.perception.reading import TASKS, PromptView, Reader, Reading, view_of
from hmas.agents.perception.tagging import RulesReader
from hmas.agents.perception.tally import FrequentTask, Score, Tally, score
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS, MEDIAN, P90
from hmas.controller.core.messages import Completion, RequestFeatures, RequestNotice
from hmas.controller.core.slo import TargetTable
from hmas.controller.core.statistics.recent_ids import RecentIds
from hmas.controller.core.types import OutcomeKind, TaskType

REMEMBERED = 10_000
"""Most answered requests kept until their completion, and most completion ids kept; the newest, about 1.5 KB each."""
NOTHING_READ = Reading()
_TOLERANCE = 1e-3


class PerceptionModel:
    """Answers notices in batches and learns output lengths from completions.

    Args:
        min_confidence: Below it the task type is `unknown`.
        targets: The targets of requests that declare none, as the gateway has them; by default Table 6.
        reader: Reads the prompts; the rules by default.
        lengths: Predicts output lengths; by default one that knows only the tasks' priors.
        most_frequent: Whether an unknown request has the targets and lengths of the most frequent type, not those of all types.

    Attributes:
        tally: Figures on live traffic.
    """

    def __init__(
        self,
        *,
        min_confidence: float,
        targets: TargetTable | None = None,
        reader: Reader | None = None,
        lengths: LengthModel | None = None,
        most_frequent: bool = False,
    ) -> None:
        self._frequent = FrequentTask() if most_frequent else None
        self._min_confidence = min_confidence
        self._targets = targets or TargetTable()
        self.reader: Reader = reader or RulesReader()
        self.lengths = LengthModel() if lengths is None else lengths
        self.tally = Tally()
        self._said: OrderedDict[str, Forecast] = OrderedDict()
        self._learnt = RecentIds(REMEMBERED)

    def recount(self) -> None:
        """Starts the figures anew, as with another reader; what has been learnt stays."""
        self.tally = Tally()
        if self.lengths.ranges is not None:
            self.lengths.ranges.out_of_range.clear()

    def figures(self) -> dict[str, float]:
        """Returns `Tally.figures`, and counts of inputs outside the training ranges of the reader and the length model."""
        found = self.tally.figures()
        for name, part in (("reader", self.reader), ("lengths", self.lengths)):
            # Rules and language models have no ranges.
            found.update(figures_of(name, getattr(part, "ranges", None)))
        return found

    def perceive_all(self, notices: Sequence[RequestNotice], now_s: float) -> list[RequestFeatures]:
        """Returns the features of a batch, in its order: `read` and `conclude` in one."""
        return self.conclude(notices, self.reader.read([view_of(notice) for notice in notices]), now_s)

    def perceive(self, notice: RequestNotice, now_s: float) -> RequestFeatures:
        """Returns the features of one request."""
        return self.perceive_all([notice], now_s)[0]

    def conclude(
        self, notices: Sequence[RequestNotice], readings: Sequence[Reading], now_s: float, *, source: str = ""
    ) -> list[RequestFeatures]:
        """Derives features from a reader's readings of the prompts.

        Declared targets stay; missing ones come from Table 6 and Eq. 14. A doubtful type, or an invalid reading, becomes `unknown` with the
        table's middle row and the length history of all types (H-MAS 3.2): no specialisation on a guess.

        Args:
            notices: The requests' notices.
            readings: One for each, in their order.
            now_s: Time stamp of the features.
            source: Name of the reader, if it is not this model's own.

        Raises:
            ModelError: There are more or fewer readings than notices.
        """
        if len(readings) != len(notices):
            raise ModelError(f"{self.reader.name} gave {len(readings)} readings of {len(notices)} prompts; allowed: one each")
        return [
            self._conclude(notice, reading, now_s, source or self.reader.name) for notice, reading in zip(notices, readings, strict=True)
        ]

    def learn(self, completion: Completion) -> None:
        """Like `settle`, for callers that do not need the score."""
        self.settle(completion)

    def settle(self, completion: Completion) -> Score | None:
        """Learns from a completion's length, once per request; requests that did not complete have no length of their own.

        For a request that another instance answered, or this one before a restart, only the completion's own fields are known: see
        `LengthModel.learn_told`. It does not learn from a request that no instance was asked about, whose prompt none has read. Of several
        answers to one request only the sum of their lengths is known, from which it does not learn.

        Returns:
            The score of the forecast; None if this model had made none.
        """
        if completion.outcome is not OutcomeKind.COMPLETED or completion.output_tokens < 1 or not completion.asked:
            return None
        if not self._learnt.add(completion.request_id):
            return None
        self.tally.learnt += 1
        said = self._said.pop(completion.request_id, None)
        if completion.sequences > 1:
            return None
        if said is None:
            self.lengths.learn_told(self._as_told(completion), completion.output_tokens)
            return None
        found = score(said, completion.output_tokens)
        self.tally.came(found)
        self.lengths.learn(said, completion.output_tokens)
        return found

    def _conclude(self, notice: RequestNotice, reading: Reading, now_s: float, source: str) -> RequestFeatures:
        task, confidence = TaskType.UNKNOWN, 0.0
        if not is_sound(reading):
            # An unreadable prompt leaves only the history.
            reading = NOTHING_READ
        if reading.probabilities:
            confidence = min(1.0, max(reading.probabilities))
            if confidence >= self._min_confidence:
                task = TASKS[reading.probabilities.index(max(reading.probabilities))]
        importance = importance_of(notice.excerpt, has_tools=notice.has_tools)
        prior = task
        if self._frequent is not None:
            if task is not TaskType.UNKNOWN:
                self._frequent.add(task)
            else:
                prior = self._frequent.task
        slo = self._targets.target(prior, importance)
        forecast = self.lengths.forecast(
            view_of(notice),
            # A doubtful type does not make the length doubtful: the quantiles contain their own uncertainty.
            reading,
            task=prior,
            tenant=notice.tenant,
            model=notice.model,
            session=notice.session,
        )
        self._said[notice.request_id] = forecast
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        self.tally.answered(unknown=task is TaskType.UNKNOWN, confidence=confidence)
        cap = float(notice.max_output_tokens) if notice.max_output_tokens > 0 else math.inf
        return RequestFeatures(
            request_id=notice.request_id,
            sent_s=now_s,
            tenant=notice.tenant,
            model=notice.model,
            prompt_tokens=notice.prompt_tokens,
            task_type=task,
            confidence=confidence,
            ttft_slo_ms=notice.ttft_slo_ms or slo.ttft_ms,
            tpot_slo_ms=notice.tpot_slo_ms or slo.tpot_ms,
            importance=importance,
            output_tokens=min(cap, forecast.tokens[MEDIAN]),
            output_tokens_p90=min(cap, forecast.tokens[P90]),
            source=source,
            choices=notice.choices,
            stream=notice.stream,
        )

    def _as_told(self, completion: Completion) -> Forecast:
        view = PromptView(excerpt="", prompt_tokens=completion.prompt_tokens, max_output_tokens=completion.max_output_tokens)
        return self.lengths.forecast(
            view, NOTHING_READ, task=completion.task_type, tenant=completion.tenant, model=completion.model, session=completion.session
        )


def is_sound(reading: Reading) -> bool:
    """Whether a reading fulfils the contract of `Reading`; a model with nonsensical answers must not control anything."""
    probabilities, lengths = reading.probabilities, reading.log_lengths
    if probabilities and (
        len(probabilities) != len(TASKS)
        or not all(0.0 <= share <= 1.0 + _TOLERANCE for share in probabilities)
        or sum(probabilities) > 1.0 + _TOLERANCE
    ):
        return False
    return not lengths or (len(lengths) == len(LEVELS) and all(map(math.isfinite, lengths)))
