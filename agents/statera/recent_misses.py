"""Counts which of the requests that recently ended missed a target: TPOT by instance, TTFT by model. Pure and bounded.

The figures of a short view are of the whole gateway. With several instances they would lower the window of one for what another misses, and
with several models they would set the guard of one by what another's requests miss.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from hmas.agents.statera.guard_factor import KEPT, SAMPLES_MIN
from hmas.controller.core.messages import Completion, InstanceView, ShortView
from hmas.controller.core.objectives import is_judged, missed_tpot, missed_ttft


class RecentMisses:
    """The newest ends, `KEPT` at most, counted as qos counts those of the gateway; `missed` tells which missed."""

    def __init__(self, missed: Callable[[Completion], bool] = missed_tpot) -> None:
        self._is_missed = missed
        self._ended: deque[tuple[float, bool]] = deque()
        self._missed = 0

    def learn(self, completion: Completion) -> None:
        """Takes an ended request; one that is not judged does not count."""
        if not is_judged(completion):
            return
        missed = self._is_missed(completion)
        self._ended.append((completion.arrival_s + completion.total_ms / 1000.0, missed))
        self._missed += missed
        if len(self._ended) > KEPT:
            self._forget_oldest()

    def share(self, view: ShortView, now_s: float) -> float:
        """Share of misses among the requests that ended within the view's window; 0 if they are fewer than `SAMPLES_MIN`."""
        while self._ended and self._ended[0][0] < now_s - view.window_s:
            self._forget_oldest()
        return self._missed / len(self._ended) if len(self._ended) >= SAMPLES_MIN else 0.0

    def _forget_oldest(self) -> None:
        self._missed -= self._ended.popleft()[1]


class InstanceMisses(RecentMisses):
    """TPOT misses of one instance.

    With a single instance the view's own share is used, which also counts requests that never ran, unless requests with several answers are
    in it: their TPOT is longer than the instance's pace.
    """

    def __init__(self) -> None:
        super().__init__()
        self._several_s = -inf

    def learn(self, completion: Completion) -> None:
        """As `RecentMisses.learn`, without requests with several answers."""
        if completion.sequences == 1:
            super().learn(completion)
        else:
            self._several_s = max(self._several_s, completion.arrival_s + completion.total_ms / 1000.0)

    def share(self, view: ShortView, now_s: float) -> float:
        """As `RecentMisses.share`."""
        if len(view.instances) == 1 and not now_s - view.window_s <= self._several_s <= now_s:
            return view.tpot_violation_rate if view.ended >= SAMPLES_MIN else 0.0
        return super().share(view, now_s)


class ModelMisses:
    """TTFT misses of each model, where instances serve different ones; else the view's own share, which also counts requests that wait."""

    def __init__(self) -> None:
        self._by_model: dict[str, RecentMisses] = {}

    def meet(self, instances: Sequence[InstanceView]) -> None:
        """Counts for the models of these instances, and for no others."""
        unlike = any(instance.models != instances[0].models for instance in instances)
        models = {model for instance in instances for model in instance.models if unlike}
        if models != self._by_model.keys():
            self._by_model = {model: self._by_model.get(model) or RecentMisses(missed_ttft) for model in models}

    def learn(self, completion: Completion) -> None:
        """Takes an ended request, also one that never ran."""
        if (misses := self._by_model.get(completion.model)) is not None:
            misses.learn(completion)

    def share(self, instance: InstanceView, view: ShortView, now_s: float) -> float:
        """Share of TTFT misses among the recent requests of the instance's models, of the worst one."""
        return max(
            [self._by_model[model].share(view, now_s) for model in instance.models if self._by_model], default=view.ttft_violation_rate
        )
