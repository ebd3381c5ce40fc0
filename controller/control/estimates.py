"""Applies the answers of perception and prediction to the estimates of a request. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from hmas.controller.core.messages import RequestCost, RequestFeatures
from hmas.controller.core.slo import IMPORTANCE_MAX, IMPORTANCE_MIN, TargetTable
from hmas.controller.core.types import Estimates, Slo

MAX_MS = 86_400_000.0
MAX_TOKENS = 10_000_000.0
LEAST_ALONE_MS = 0.001
"""Shortest time that is accepted of an instance without load: scorers divide by these times."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The targets that the client declared, each None if it declared none. A declared target takes precedence over every estimate."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def half(self) -> Literal["", "ttft", "tpot"]:
        """Which target is declared if only one is; else empty."""
        if (self.ttft_ms is None) is (self.tpot_ms is None):
            return ""
        return "tpot" if self.ttft_ms is None else "ttft"

    def over(self, slo: Slo) -> Slo:
        """`slo` with the declared targets in place of its own."""
        if self.ttft_ms is None and self.tpot_ms is None:
            return slo
        return Slo(
            ttft_ms=slo.ttft_ms if self.ttft_ms is None else self.ttft_ms, tpot_ms=slo.tpot_ms if self.tpot_ms is None else self.tpot_ms
        )


def fault_of_features(features: RequestFeatures) -> str:
    """The value in perception's answer that is out of range; empty if there is none."""
    return (
        _out_of("ttft_slo_ms", features.ttft_slo_ms, 1.0, MAX_MS)
        or _out_of("tpot_slo_ms", features.tpot_slo_ms, 1.0, MAX_MS)
        or _out_of("importance", features.importance, IMPORTANCE_MIN, IMPORTANCE_MAX)
        or _out_of("confidence", features.confidence, 0.0, 1.0)
        or _out_of("output_tokens", features.output_tokens, 0.0, MAX_TOKENS)
        or _out_of("output_tokens_p90", features.output_tokens_p90, features.output_tokens, MAX_TOKENS)
    )


def fault_of_cost(cost: RequestCost) -> str:
    """The value in prediction's answer that is out of range; empty if there is none."""
    if not cost.ttft_ms or not cost.tpot_ms:
        return "no instance is named in ttft_ms or tpot_ms"
    for name, values in (("ttft_ms", cost.ttft_ms), ("tpot_ms", cost.tpot_ms)):
        fault = _out_of_any(name, values, 0.0)
        if fault:
            return fault
    for name, values in (("alone_ttft_ms", cost.alone_ttft_ms), ("alone_tpot_ms", cost.alone_tpot_ms)):
        if not values.keys() <= cost.ttft_ms.keys():
            strange = next(instance for instance in values if instance not in cost.ttft_ms)
            return f"{name} names {strange!r}; allowed: instances that ttft_ms names"
        fault = _out_of_any(name, values, LEAST_ALONE_MS)
        if fault:
            return fault
    return _out_of("output_tokens", cost.output_tokens, 0.0, MAX_TOKENS)


def bounded_forecast(features: RequestFeatures, limit: float, sequences: int = 1) -> Estimates:
    """Perception's lengths of one answer, for all answers together, within the client's cap and the model's context (`limit`)."""
    output = _within(sequences * features.output_tokens, limit)
    upper = max(output, _within(sequences * features.output_tokens_p90, limit))
    slo = Slo(ttft_ms=features.ttft_slo_ms, tpot_ms=features.tpot_slo_ms)
    return Estimates(slo=slo, output_tokens=output, output_tokens_upper=upper, source="perception")


def covered_upper(forecast: Estimates, default: Estimates, *, inconsistent: bool) -> float:
    """The upper length that admission takes from a forecast that counts: at least the history's if the forecast is inconsistent with recent
    answers (the conservative rolling estimate of H-MAS C.2).

    Where agents are judged, an inconsistent forecast has not proven right and does not count at all.
    """
    return max(forecast.output_tokens_upper, default.output_tokens_upper if inconsistent else 0.0)


def within_targets(features: RequestFeatures, targets: TargetTable) -> RequestFeatures:
    """Perception's answer with its targets brought into the range of the table."""
    said = Slo(ttft_ms=features.ttft_slo_ms, tpot_ms=features.tpot_slo_ms)
    kept = targets.within(said)
    return features if kept == said else msgspec.structs.replace(features, ttft_slo_ms=kept.ttft_ms, tpot_slo_ms=kept.tpot_ms)


def with_features(
    now: Estimates, features: RequestFeatures, declared: Declared, output_tokens: float, output_tokens_upper: float, *, proven: bool
) -> Estimates:
    """The estimates after perception's answer: task type, importance and targets, with the given lengths.

    Declared targets stay as they are. A forecast that has not proven right does not raise the upper length, which may hold a request back.
    """
    return Estimates(
        slo=declared.over(Slo(ttft_ms=features.ttft_slo_ms, tpot_ms=features.tpot_slo_ms)),
        task_type=features.task_type,
        importance=features.importance,
        output_tokens=output_tokens,
        output_tokens_upper=max(output_tokens, output_tokens_upper) if proven else output_tokens_upper,
        ttft_ms=now.ttft_ms,
        tpot_ms=now.tpot_ms,
        source="perception",
        proven=proven,
        alone=now.alone,
    )


def with_cost(now: Estimates, cost: RequestCost) -> Estimates:
    """The estimates after prediction's answer.

    Of the times under load the mean over the instances is used, because the instance is not known yet. Those without load stay by instance,
    for the routers.
    """
    tpot_ms = cost.alone_tpot_ms
    alone = {instance: (ttft_ms, tpot_ms[instance]) for instance, ttft_ms in cost.alone_ttft_ms.items() if instance in tpot_ms}
    return msgspec.structs.replace(now, ttft_ms=_mean(cost.ttft_ms), tpot_ms=_mean(cost.tpot_ms), source="prediction", alone=alone)


def _within(tokens: float, limit: float) -> float:
    return min(max(1.0, tokens), limit)


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def _out_of_any(name: str, values: Mapping[str, float], low: float) -> str:
    for instance, value in values.items():
        if not low <= value <= MAX_MS:
            return _out_of(f"{name}[{instance}]", value, low, MAX_MS)
    return ""


def _out_of(name: str, value: float, low: float, high: float) -> str:
    if math.isfinite(value) and low <= value <= high:
        return ""
    return f"{name} is {value}; allowed: {low:g} to {high:g}"
