"""What a request will cost on each instance: the analytic formula, corrected by a regressor and by live residuals. Pure.

H-MAS 3.2: features to (ttft, tpot), from which T_tot = ttft + tpot * l_pred follows.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from agents.prediction.features import FEATURES, Estimate, InstanceState, analytic, row
from agents.prediction.residuals import Residual
from agents.prediction.speed import LoadHistory, SpeedFit
from controller.core.messages import Completion, InstanceView, RequestCost, RequestFeatures, SystemSnapshot
from controller.core.types import OutcomeKind

REMEMBERED = 20_000
"""Answered requests whose residual is still awaited, and completions already learnt from, at most each."""
INSTANCES = 256
"""Instances kept apart; beyond it the one longest without a snapshot is forgotten."""
LOG_LIMIT = 2.0
"""The regressor's word is taken up to a factor of e^2 either way; beyond lies extrapolation."""
LEAST_MS = 0.1
MOST_MS = 3_600_000.0
STALE_S = 15.0
"""Without a snapshot for this long nothing is predicted: the gateway's own history knows as much."""
_TREND_S = 2.0
_PREFILL_WINDOW_S = 5.0
_T = TypeVar("_T")


class Regressor(Protocol):
    """The learnt part."""

    def log_corrections(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """For each row of `FEATURES` the logarithms of actual over analytic TTFT and TPOT, shape (rows, 2)."""
        ...


class _Instance:
    """What is known about one instance."""

    def __init__(self) -> None:
        self.view: InstanceView | None = None
        self.queued = 0.0
        self.load = LoadHistory()
        self.fit = SpeedFit()
        self.ttft = Residual()
        self.tpot = Residual()
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=512)

    def observe(self, view: InstanceView, queued: float, at_s: float) -> None:
        self.view, self.queued = view, queued
        self.load.add(at_s, view.in_flight)
        prompt_total = view.engine.prompt_tokens_total if view.engine is not None else -1
        self._recent.append((at_s, view.in_flight, prompt_total))
        while self._recent and at_s - self._recent[0][0] > _PREFILL_WINDOW_S:
            self._recent.popleft()

    def state(self, view: InstanceView) -> InstanceState:
        speed = self.fit.speed
        trend = prefill_load = float("nan")
        if len(self._recent) > 1:
            now_s, in_flight, total = self._recent[-1]
            earlier = next((point for point in self._recent if now_s - point[0] <= _TREND_S), self._recent[-1])
            trend = float(in_flight - earlier[1])
            first_s, _, first_total = self._recent[0]
            # A total below the earlier one is an engine that restarted: no rate until the window has passed it.
            if 0 <= first_total <= total and now_s > first_s:
                prefill_load = (total - first_total) / (now_s - first_s) * speed.per_prompt_token_ms / 1000.0
        return InstanceState(view, speed, self.queued, prefill_load, trend)


class PredictionModel:
    """Follows the instances and predicts costs in batches.

    Args:
        regressor: The learnt correction; None leaves the analytic formula and the residuals.
    """

    def __init__(self, regressor: Regressor | None) -> None:
        self._regressor = regressor
        self._instances: OrderedDict[str, _Instance] = OrderedDict()
        self._candidates: list[str] = []
        self._seen_s = float("-inf")
        self._answered: OrderedDict[str, dict[str, Estimate]] = OrderedDict()
        self._learnt: OrderedDict[str, None] = OrderedDict()

    def observe(self, snapshot: SystemSnapshot) -> None:
        """Takes in how the instances stand. Draining and unhealthy ones are no candidates, unless there are no others."""
        self._seen_s = max(self._seen_s, snapshot.sent_s)
        feeding = max(1, sum(not view.draining for view in snapshot.instances))
        for view in snapshot.instances:
            instance = self._instances.setdefault(view.name, _Instance())
            self._instances.move_to_end(view.name)
            instance.observe(view, snapshot.queued / feeding, snapshot.sent_s)
        while len(self._instances) > INSTANCES:
            self._instances.popitem(last=False)
        usable = [view.name for view in snapshot.instances if not view.draining and (view.engine is None or view.engine.healthy)]
        self._candidates = (usable or [view.name for view in snapshot.instances])[:INSTANCES]

    def learn(self, completion: Completion) -> None:
        """Takes a completion into account, once per request: the instance's speed, and the error of what was predicted for it."""
        instance = self._instances.get(completion.instance)
        if completion.outcome is not OutcomeKind.COMPLETED or instance is None or completion.request_id in self._learnt:
            return
        _remember(self._learnt, completion.request_id, None)
        first_s = completion.arrival_s + completion.ttft_ms / 1000.0
        end_s = completion.arrival_s + completion.total_ms / 1000.0
        load = instance.load.mean(first_s, end_s)
        instance.fit.learn(completion, max(1.0, load if load is not None else completion.running + 1.0))
        said = self._answered.pop(completion.request_id, {}).get(completion.instance)
        if said is not None:
            instance.ttft.learn(completion.service_ttft_ms, said.ttft_ms)
            instance.tpot.learn(completion.tpot_ms, said.tpot_ms)

    def predict(self, batch: Sequence[RequestFeatures], now_s: float) -> list[RequestCost]:
        """Costs of each request on each candidate instance, in one call of the regressor; [] without a fresh snapshot."""
        if not batch or not self._candidates or now_s - self._seen_s > STALE_S:
            return []
        names, formulas, rows = self.rows(batch)
        raw = self._corrected(formulas, rows)
        costs = []
        for index, features in enumerate(batch):
            ours = dict(zip(names, raw[index * len(names) : (index + 1) * len(names)], strict=True))
            _remember(self._answered, features.request_id, ours)
            costs.append(
                RequestCost(
                    request_id=features.request_id,
                    sent_s=now_s,
                    ttft_ms={name: _bounded(said.ttft_ms * self._instances[name].ttft.factor) for name, said in ours.items()},
                    tpot_ms={name: _bounded(said.tpot_ms * self._instances[name].tpot.factor) for name, said in ours.items()},
                    output_tokens=features.output_tokens,
                )
            )
        return costs

    def rows(self, batch: Sequence[RequestFeatures]) -> tuple[list[str], list[Estimate], NDArray[np.float32]]:
        """Candidates, and per request and candidate (in this order) the formula's answer and the regressor's row."""
        names = [name for name in self._candidates if self._instances[name].view is not None]
        states = []
        for name in names:
            instance = self._instances[name]
            assert instance.view is not None
            states.append(instance.state(instance.view))
        formulas: list[Estimate] = []
        rows: list[list[float]] = []
        for features in batch:
            for state in states:
                formula = analytic(state, features.prompt_tokens)
                formulas.append(formula)
                rows.append(row(state, formula, features.prompt_tokens, features.output_tokens))
        return names, formulas, np.asarray(rows, dtype=np.float32).reshape(-1, len(FEATURES))

    def _corrected(self, formulas: list[Estimate], rows: NDArray[np.float32]) -> list[Estimate]:
        if self._regressor is None:
            return formulas
        factors = np.exp(np.clip(self._regressor.log_corrections(rows), -LOG_LIMIT, LOG_LIMIT))
        return [
            Estimate(formula.ttft_ms * float(factor[0]), formula.tpot_ms * float(factor[1]))
            for formula, factor in zip(formulas, factors, strict=True)
        ]


def _bounded(milliseconds: float) -> float:
    return min(MOST_MS, max(LEAST_MS, milliseconds))


def _remember(memory: OrderedDict[str, _T], key: str, value: _T) -> None:
    memory[key] = value
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)
