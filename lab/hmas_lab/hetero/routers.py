"""The routers of HeteroServe's comparison (4.1): its own dispatcher and two of its baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Choice, InstanceState, Routable
from hmas.controller.core.statistics.quantiles import SortedWindow
from hmas.controller.core.statistics.recent_ids import RecentIds
from hmas.controller.core.types import Request

WINDOW = 128
"""Number of recent requests that determine the regime by their prompt lengths (3.2)."""
REGIMES: tuple[tuple[float, tuple[float, float, float]], ...] = (
    (192, (0.55, 0.15, 0.30)),
    (768, (0.40, 0.30, 0.30)),
    (math.inf, (0.20, 0.50, 0.30)),
)
"""Exponents (alpha, beta, gamma) of Eq. 2, by the largest median prompt length that they apply to (3.2)."""


@dataclass(frozen=True, slots=True)
class Capability:
    """The data sheet of an instance: F (TFLOP/s), M (GB) and B (TB/s) of Eq. 2, each more than 0."""

    tflops: float
    memory_gb: float
    bandwidth_tb_s: float


class CapabilityWeighted:
    """Chooses the highest weight kappa_i exp(-lambda q_i / Q_max), kappa_i = F^alpha M^beta B^gamma (HeteroServe Eq. 2 and 5).

    Eq. 3 divides all weights by the same sum and so changes no choice. The paper does not define what the queue depth q_i counts; here it
    is the requests in flight, which a dispatcher knows without a query. Instances with q_i at or above Q_max are passed over while another
    is below it. Ties go to the given order.

    Args:
        capabilities: Capability by instance; an instance that is not named counts as the least capable of those named.
        q_max: Q_max. `damping`: lambda. Both more than 0.

    Raises:
        PolicyError: There is no capability, or a figure is not more than 0.
    """

    name: ClassVar[str] = "capability-weighted"

    def __init__(self, capabilities: Mapping[str, Capability], *, q_max: float = 32.0, damping: float = 2.0) -> None:
        if not capabilities:
            raise PolicyError("capabilities: there is none; allowed: one for each instance")
        for name, one in capabilities.items():
            if not min(one.tflops, one.memory_gb, one.bandwidth_tb_s) > 0.0:
                raise PolicyError(f"capability of instance {name!r} is {one}; allowed: figures more than 0")
        if not (q_max > 0.0 and damping > 0.0):
            raise PolicyError(f"q_max {q_max!r} and damping {damping!r}; allowed: more than 0")
        # One table per regime, so that a choice only needs a look-up for Eq. 2.
        self._kappa = [{name: _kappa(one, exponents) for name, one in capabilities.items()} for _, exponents in REGIMES]
        self._q_max = q_max
        self._damping = damping
        self._recent = RecentIds(WINDOW)
        self._prompts = SortedWindow(WINDOW)

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Sequence[Choice]:  # noqa: ARG002  the protocol's
        """The highest weight first; instances at or above Q_max come after all others."""
        self._learn(entry.request)
        kappa = self._kappa[self._regime()]
        least = min(kappa.values())
        weights = [
            (one.in_flight < self._q_max, kappa.get(one.name, least) * math.exp(-self._damping * one.in_flight / self._q_max), one.name)
            for one in instances
        ]
        ordered = sorted(weights, key=lambda one: one[:2], reverse=True)
        return [Choice(name, f"weight {weight:.3g} among {len(instances)}") for _, weight, name in ordered]

    def _learn(self, request: Request) -> None:
        """Adds a prompt to the window once: a request may be considered many times before it is dispatched."""
        if self._recent.add(request.id):
            self._prompts.add(request.prompt_tokens)

    def _regime(self) -> int:
        median = self._prompts.ordered[len(self._prompts) // 2]
        return next(index for index, (limit, _) in enumerate(REGIMES) if median <= limit)


def _kappa(one: Capability, exponents: tuple[float, float, float]) -> float:
    alpha, beta, gamma = exponents
    return float(one.tflops**alpha * one.memory_gb**beta * one.bandwidth_tb_s**gamma)


class LatencyAware:
    """Chooses the lowest expected wait: requests without a first token, including this one, over the instance's speed.

    This is HeteroServe's baseline of that name (4.1), pure queue feedback. Ties go to the fewest tokens in flight, then to the given order.
    It counts requests, not their prompt tokens: if the batch is full, a slot that becomes free is worth the same to a short prompt.

    Args:
        speeds: Speed by instance, each more than 0, in any common unit, such as requests per second under full load. An instance that is
            not named counts as the mean of those named; None treats all alike.

    Raises:
        PolicyError: A speed is not more than 0.
    """

    name: ClassVar[str] = "latency-aware"

    def __init__(self, speeds: Mapping[str, float] | None = None) -> None:
        self._speeds = dict(speeds or {})
        for instance, speed in self._speeds.items():
            if not speed > 0.0:
                raise PolicyError(f"speed of instance {instance!r} is {speed!r}; allowed: more than 0")
        self._mean = sum(self._speeds.values()) / len(self._speeds) if self._speeds else 1.0

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Sequence[Choice]:  # noqa: ARG002  the protocol's
        """The lowest expected wait first."""

        def wait(one: InstanceState) -> tuple[float, int]:
            return (one.awaiting + 1) / self._speeds.get(one.name, self._mean), one.in_flight_tokens

        return [
            Choice(one.name, f"{one.awaiting} before it without a first token, among {len(instances)}")
            for one in sorted(instances, key=wait)
        ]


class WeightedRoundRobin:
    """Gives each instance a share of the requests equal to its share of the weights, spread as evenly as possible.

    Each dispatch gives every candidate its weight as credit and takes the sum of the weights from the one with the most credit. The load of
    the instances has no influence.

    Args:
        weights: Weight by instance, each more than 0; an instance that is not named has 1, and with None all have 1.

    Raises:
        PolicyError: A weight is not more than 0.
    """

    name: ClassVar[str] = "weighted-round-robin"

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        for instance, weight in self._weights.items():
            if not weight > 0.0:
                raise PolicyError(f"weight of instance {instance!r} is {weight!r}; allowed: more than 0")
        self._credit: dict[str, float] = {}
        self._ranked: dict[str, float] = {}

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Sequence[Choice]:  # noqa: ARG002  the protocol's
        """The instance with the most credit first; ties go to the given order."""
        self._ranked = {instance.name: self._weights.get(instance.name, 1.0) for instance in instances}
        names = sorted(self._ranked, key=lambda name: -(self._credit.get(name, 0.0) + self._ranked[name]))
        return [Choice(name, f"its turn by weight {self._ranked[name]:g} among {len(instances)}") for name in names]

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """Those that were ranked get credit; the instance pays for all."""
        for name, weight in self._ranked.items():
            self._credit[name] = self._credit.get(name, 0.0) + weight
        self._credit[instance] -= sum(self._ranked.values())
