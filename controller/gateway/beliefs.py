"""How the words of perception and prediction change what is believed about a request. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.messages import RequestCost, RequestFeatures
from controller.core.slo import IMPORTANCE_MAX, IMPORTANCE_MIN
from controller.core.types import Estimates, Slo

MAX_MS = 86_400_000.0
MAX_TOKENS = 10_000_000.0


@dataclass(frozen=True, slots=True)
class Declared:
    """Targets the client declared, each None where it declared none. A declared target wins over every estimate."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def over(self, slo: Slo) -> Slo:
        """`slo` with what was declared put over it."""
        if self.ttft_ms is None and self.tpot_ms is None:
            return slo
        return Slo(
            ttft_ms=slo.ttft_ms if self.ttft_ms is None else self.ttft_ms,
            tpot_ms=slo.tpot_ms if self.tpot_ms is None else self.tpot_ms,
        )


def fault_of_features(features: RequestFeatures) -> str:
    """What is out of range in perception's answer; empty where nothing is."""
    return (
        _out_of("ttft_slo_ms", features.ttft_slo_ms, 1.0, MAX_MS)
        or _out_of("tpot_slo_ms", features.tpot_slo_ms, 1.0, MAX_MS)
        or _out_of("importance", features.importance, IMPORTANCE_MIN, IMPORTANCE_MAX)
        or _out_of("confidence", features.confidence, 0.0, 1.0)
        or _out_of("output_tokens", features.output_tokens, 0.0, MAX_TOKENS)
        or _out_of("output_tokens_p90", features.output_tokens_p90, features.output_tokens, MAX_TOKENS)
    )


def fault_of_cost(cost: RequestCost) -> str:
    """What is out of range in prediction's answer; empty where nothing is."""
    if not cost.ttft_ms or not cost.tpot_ms:
        return "no instance is named in ttft_ms or tpot_ms"
    for name, values in (("ttft_ms", cost.ttft_ms), ("tpot_ms", cost.tpot_ms)):
        for instance, value in values.items():
            fault = _out_of(f"{name}[{instance}]", value, 0.0, MAX_MS)
            if fault:
                return fault
    return _out_of("output_tokens", cost.output_tokens, 0.0, MAX_TOKENS)


def with_features(now: Estimates, features: RequestFeatures, declared: Declared, cap: int | None) -> Estimates:
    """Estimates after perception's answer: task type, importance, targets and length; the client's targets and cap stay in force."""
    output = _capped(features.output_tokens, cap)
    return Estimates(
        slo=declared.over(Slo(ttft_ms=features.ttft_slo_ms, tpot_ms=features.tpot_slo_ms)),
        task_type=features.task_type,
        importance=features.importance,
        output_tokens=output,
        output_tokens_upper=max(output, _capped(features.output_tokens_p90, cap)),
        ttft_ms=now.ttft_ms,
        tpot_ms=now.tpot_ms,
        source="perception",
    )


def with_cost(now: Estimates, cost: RequestCost, cap: int | None) -> Estimates:
    """Estimates after prediction's answer. Over several instances the mean counts: which one it will be is not known yet."""
    output = _capped(cost.output_tokens, cap)
    return Estimates(
        slo=now.slo,
        task_type=now.task_type,
        importance=now.importance,
        output_tokens=output,
        output_tokens_upper=max(output, now.output_tokens_upper),
        ttft_ms=_mean(cost.ttft_ms),
        tpot_ms=_mean(cost.tpot_ms),
        source="prediction",
    )


def _capped(tokens: float, cap: int | None) -> float:
    tokens = max(1.0, tokens)
    return tokens if cap is None else min(tokens, float(cap))


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def _out_of(name: str, value: float, low: float, high: float) -> str:
    if math.isfinite(value) and low <= value <= high:
        return ""
    return f"{name} is {value}; allowed: {low:g} to {high:g}"
