"""Who tells the scheduler what a request is: the very models of the two agents, and oracles that know parts of the truth."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from hmas.agents.prediction.model import PredictionModel
from hmas.controller.control.estimates import Declared, bounded_forecast, fault_of_cost, fault_of_features, with_cost, with_features
from hmas.controller.core.messages import Completion, RequestCost, RequestFeatures, RequestNotice, SystemSnapshot
from hmas.controller.core.notices import without_texts
from hmas.controller.core.types import Estimates, Request
from hmas_lab.agents.requests import Truth

NOTHING_DECLARED = Declared()


class Perceiver(Protocol):
    """Perception's model."""

    def perceive(self, notice: RequestNotice, now_s: float) -> RequestFeatures:
        """What it believes of one request."""
        ...

    def learn(self, completion: Completion) -> None:
        """Takes in how a request ended."""
        ...


class Believer:
    """Perception and prediction as they work behind the bus, without the bus.

    Args:
        perception: Tells task, targets and length.
        prediction: Tells costs, from these features and the instances' state.
        shares_prompts: Whether notices carry an excerpt.
    """

    def __init__(self, perception: Perceiver, prediction: PredictionModel, *, shares_prompts: bool = True) -> None:
        self.perception = perception
        self._prediction = prediction
        self._shares_prompts = shares_prompts
        self.said: dict[str, RequestFeatures] = {}

    def observe(self, snapshot: SystemSnapshot) -> None:
        """The gateway's snapshot of a cycle."""
        self._prediction.observe(snapshot)

    def learn(self, completion: Completion) -> None:
        """A request has ended."""
        self.perception.learn(completion)
        self._prediction.learn(completion)

    def tell(self, notices: Sequence[RequestNotice], now_s: float) -> tuple[list[RequestFeatures], list[RequestCost]]:
        """What both say of requests, as they would say it over the bus."""
        features = [self._features(notice, now_s) for notice in notices]
        return features, self._prediction.predict(features, now_s)

    def answer(self, request: Request, notice: RequestNotice, before: Estimates, now_s: float) -> Estimates | None:
        """What the gateway believes once both have answered; None where what they say is of no use."""
        features = self._features(notice if self._shares_prompts else without_texts(notice), now_s)
        self.said[request.id] = features
        if fault_of_features(features):
            return None
        forecast = bounded_forecast(features, request.output_limit)
        lengths = (forecast.output_tokens, forecast.output_tokens_upper)
        after = with_features(before, features, NOTHING_DECLARED, *lengths, proven=True)
        for cost in self._prediction.predict([features], now_s):
            if not fault_of_cost(cost):
                after = with_cost(after, cost)
        return after

    def _features(self, notice: RequestNotice, now_s: float) -> RequestFeatures:
        return self.perception.perceive(notice, now_s)


class FixedBeliever(Believer):
    """The same, but nothing is learnt from how requests end: lengths and speeds stay as they were at the start."""

    def learn(self, completion: Completion) -> None:
        """Leaves everything as it is."""


class Oracle(Believer):
    """The same, put right by one who knows.

    Args:
        truth_of: What is true of a request; None where it does not know it.
        targets: Whether it knows task types, and the targets that go with them.
        lengths: Whether it knows output lengths.
    """

    def __init__(
        self,
        perception: Perceiver,
        prediction: PredictionModel,
        truth_of: Callable[[RequestNotice], Truth | None],
        *,
        targets: bool,
        lengths: bool,
    ) -> None:
        super().__init__(perception, prediction)
        self._truth_of = truth_of
        self._targets = targets
        self._lengths = lengths

    def _features(self, notice: RequestNotice, now_s: float) -> RequestFeatures:
        features, truth = super()._features(notice, now_s), self._truth_of(notice)
        if truth is None:
            return features
        if self._targets:
            features = msgspec.structs.replace(
                features,
                task_type=truth.task,
                confidence=1.0,
                ttft_slo_ms=truth.slo.ttft_ms,
                tpot_slo_ms=truth.slo.tpot_ms,
                importance=truth.importance,
                source="oracle",
            )
        if self._lengths:
            tokens = float(truth.output_tokens)
            features = msgspec.structs.replace(features, output_tokens=tokens, output_tokens_p90=tokens, source="oracle")
        return features
