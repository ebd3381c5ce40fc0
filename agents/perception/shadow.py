"""A perception model that reads the same traffic as the one in force, is scored on what comes, and is not listened to. Pure."""

from collections import deque
from collections.abc import Sequence

from hmas.agents.model_store.comparison import Comparison, Verdict
from hmas.agents.perception.bodies import view_of
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.reading import Reading
from hmas.agents.perception.tally import Score
from hmas.agents.runtime.work import Deferred
from hmas.controller.core.messages import Completion, Message, RequestFeatures, RequestNotice
from hmas.controller.core.types import TaskType

BATCHES = 8
"""Batches that may wait to be read along; when the machine is busy the oldest go, and what is in force is never held up."""


class Shadow:
    """One model in the shadow.

    Args:
        name: Its version.
        model: A model of its own: it learns lengths from the same completions.
        comparison: Where its losses are set against those of the model in force.
    """

    def __init__(self, name: str, model: PerceptionModel, comparison: Comparison) -> None:
        self.name = name
        self.model = model
        self._comparison = comparison
        self._waiting: deque[tuple[Sequence[RequestNotice], Sequence[RequestFeatures]]] = deque()
        self._dropped = 0
        self._compared = 0
        self._agreed = 0

    def offer(self, notices: Sequence[RequestNotice], said: Sequence[RequestFeatures]) -> None:
        """Puts by what was asked, and what the model in force said."""
        self._waiting.append((notices, said))
        if len(self._waiting) > BATCHES:
            self._dropped += len(self._waiting.popleft()[0])

    def work(self) -> Deferred[list[Reading]] | None:
        """The next batch to read along, None where there is none."""
        if not self._waiting:
            return None
        notices, said = self._waiting.popleft()
        views = [view_of(notice) for notice in notices]

        def finish(readings: list[Reading], now_s: float) -> list[Message]:
            for mine, theirs in zip(self.model.conclude(notices, readings, now_s), said, strict=True):
                if TaskType.UNKNOWN not in (mine.task_type, theirs.task_type):
                    self._compared += 1
                    self._agreed += mine.task_type is theirs.task_type
            return []

        return Deferred(lambda: self.model.reader.read(views), finish)

    def learn(self, completion: Completion, in_force: Score | None) -> None:
        """Takes a completion into account; `in_force`: how good the forecast of the model in force was, None where it made none."""
        found = self.model.settle(completion)
        if found is not None and in_force is not None:
            self._comparison.add(in_force.pinball, found.pinball)

    def verdict(self) -> Verdict:
        """How the comparison of lengths stands."""
        return self._comparison.verdict()

    def figures(self) -> dict[str, float]:
        """As `Tally.figures`, and how it compares."""
        verdict = self.verdict()
        found = {**self.model.tally.figures(), "pairs": float(verdict.pairs), "gain": verdict.gain, "evidence": verdict.evidence}
        if self._compared:
            found["agreement"] = self._agreed / self._compared
        found["dropped"] = float(self._dropped)
        return found
