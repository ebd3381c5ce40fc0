"""A perception model in shadow mode: it reads the same traffic as the active one and is scored, but its results are not used. Pure."""

from collections import deque
from collections.abc import Sequence

from hmas.agents.model_store.comparison import Comparison, Verdict
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.reading import Reading, view_of
from hmas.agents.perception.tally import Score
from hmas.agents.runtime.work import Deferred
from hmas.controller.core.messages import Completion, Message, RequestFeatures, RequestNotice
from hmas.controller.core.types import TaskType

BATCHES = 8
"""Most batches that wait for the shadow; on a busy machine the oldest are dropped, and the active model is never delayed."""


class Shadow:
    """One model in shadow mode: it learns lengths from the same completions, and its losses are compared with the active model's."""

    def __init__(self, name: str, model: PerceptionModel, comparison: Comparison) -> None:
        self.name = name
        self.model = model
        self._comparison = comparison
        self._waiting: deque[tuple[Sequence[RequestNotice], Sequence[RequestFeatures]]] = deque()
        self._dropped = 0
        self._compared = 0
        self._agreed = 0

    def offer(self, notices: Sequence[RequestNotice], said: Sequence[RequestFeatures]) -> None:
        """Queues a batch with the active model's answers."""
        self._waiting.append((notices, said))
        if len(self._waiting) > BATCHES:
            self._dropped += len(self._waiting.popleft()[0])

    def work(self) -> Deferred[list[Reading]] | None:
        """Returns the next batch to read, or None."""
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
        """Takes a completion; `in_force`: score of the active model's forecast, None if it made none."""
        found = self.model.settle(completion)
        if found is not None and in_force is not None:
            self._comparison.add(in_force.pinball, found.pinball)

    def verdict(self) -> Verdict:
        """Returns the state of the length comparison."""
        return self._comparison.verdict()

    def figures(self) -> dict[str, float]:
        """Returns `Tally.figures`, and those of the comparison."""
        verdict = self.verdict()
        found = {**self.model.tally.figures(), "pairs": float(verdict.pairs), "gain": verdict.gain, "evidence": verdict.evidence}
        if self._compared:
            found["agreement"] = self._agreed / self._compared
        found["dropped"] = float(self._dropped)
        return found
