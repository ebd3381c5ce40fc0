"""HeteroServe's capability weight (Eq. 2 to 6), from what the product measures of the instances."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

from hmas.controller.core.placement import InstanceState, Routable
from hmas.controller.core.statistics.quantiles import SortedWindow
from hmas.controller.core.types import Request
from hmas.controller.routing.scorers.load import filled

WINDOW = 128
"""Dispatched requests whose median prompt sets the exponents, and whose lengths the bins keep (3.2)."""
REGIMES: tuple[tuple[float, tuple[float, float, float]], ...] = (
    (192, (0.55, 0.15, 0.30)),
    (768, (0.40, 0.30, 0.30)),
    (math.inf, (0.20, 0.50, 0.30)),
)
"""Exponents of compute, memory and bandwidth in Eq. 2, by the largest median prompt that they apply to (3.2)."""
Q_MAX, DAMPING = 32.0, 2.0
"""Q_max and lambda of Eq. 5."""
BINS = 4
"""Bins of prompt lengths for Eq. 4; their edges are quartiles of the traffic."""
MARGIN = 0.1
"""delta of Eq. 4 and 6."""
BIN_LEAST = 8
"""Requests of a bin before its KV quantile counts."""


class Capability:
    """kappa exp(-lambda q / Q_max) over the highest of the candidates, kappa = F^a M^b B^c; 0 where Eq. 4 or 6 does not admit the request.

    F is the measured prefill speed, B the measured decode speed of a request alone, M the KV cache: each only as a ratio to the others, so
    that the units do not count. q is the requests in flight, which the gateway knows at any moment: the paper's queue depth is up to 100 ms
    old, and a choice by an old depth sends every request of that time to the same instance. An instance has as many sequences as its KV
    cache holds of the mean context (Eq. 6, which counts tokens); it is a limit here and not a setting of the engine.
    """

    name: ClassVar[str] = "capability"
    summary: ClassVar[str] = "HeteroServe's weight: measured compute, memory and bandwidth, damped by the queue"

    def __init__(self) -> None:
        self._prompts = SortedWindow(WINDOW)
        self._kv: list[SortedWindow] = [SortedWindow(WINDOW) for _ in range(BINS)]
        self._contexts = SortedWindow(WINDOW)

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  the contract's
        """See `Scorer.score`."""
        alpha, beta, gamma = self._exponents()
        prefill = filled([instance.prefill_token_ms for instance in instances])
        decode = filled([instance.decode_token_ms for instance in instances])
        memory = filled([float(instance.kv_capacity_tokens) for instance in instances])
        needed, context = self._needed(entry.request), self._mean_context()
        # Only ratios of the weights count: a factor that all have in common is left out, so that no weight of deep queues becomes 0.
        least = min([instance.in_flight for instance in instances])
        weights = [
            prefill_ms**-alpha * tokens**beta * decode_ms**-gamma * math.exp(-DAMPING * (instance.in_flight - least) / Q_MAX)
            if not instance.kv_capacity_tokens
            or (needed <= (1.0 - MARGIN) * tokens and instance.sequences + 1 <= (1.0 - MARGIN) * tokens / context)
            else 0.0
            for instance, prefill_ms, decode_ms, tokens in zip(instances, prefill, decode, memory, strict=True)
        ]
        highest = max(weights) or 1.0
        return [weight / highest for weight in weights]

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """Learns the lengths once for each dispatch: a request may be ranked many times before it."""
        request = entry.request
        context = request.prompt_tokens + entry.estimates.output_tokens
        self._prompts.add(request.prompt_tokens)
        self._kv[self._bin(request)].add(context)
        self._contexts.add(context)

    def _exponents(self) -> tuple[float, float, float]:
        ordered = self._prompts.ordered
        median = ordered[len(ordered) // 2] if len(ordered) else 0.0
        return next(exponents for limit, exponents in REGIMES if median <= limit)

    def _bin(self, request: Request) -> int:
        """The bin of a prompt: the quarter of the recent ones that it falls into."""
        ordered = self._prompts.ordered
        return min(BINS - 1, BINS * bisect_left(ordered, request.prompt_tokens) // max(1, len(ordered)))

    def _needed(self, request: Request) -> float:
        """KV tokens of the request by the 90 % quantile of its bin (Eq. 4), at least its prompt."""
        ordered = self._kv[self._bin(request)].ordered
        p90 = ordered[int(0.9 * len(ordered))] if len(ordered) >= BIN_LEAST else 0.0
        return max(float(request.prompt_tokens), p90)

    def _mean_context(self) -> float:
        ordered = self._contexts.ordered
        return max(1.0, sum(ordered) / len(ordered)) if len(ordered) else 1.0
