"""The dispatchers of HeteroServe's comparison as published (4.1), which differ from the product's: data sheets, queues 100 ms old."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Choice, InstanceState, Routable
from hmas.controller.core.statistics.quantiles import SortedWindow
from hmas.controller.core.statistics.recent_ids import RecentIds
from hmas.controller.core.types import Request
from hmas.controller.routing.scorers.capability import DAMPING, Q_MAX, REGIMES, WINDOW

EPOCH_S = 0.1
"""Devices broadcast their queues this often (3.4)."""
LONG = 2048
"""Prompts beyond this many tokens are the last of the four bins (4.1)."""


@dataclass(frozen=True, slots=True)
class Capability:
    """The data sheet of an instance: F (TFLOP/s), M (GB) and B (TB/s) of Eq. 2, each more than 0."""

    tflops: float
    memory_gb: float
    bandwidth_tb_s: float


class _Broadcast:
    """What each device last said of itself: `read` of it at the beginning of the epoch; with an epoch of 0, at any moment."""

    def __init__(self, read: Callable[[InstanceState], int], epoch_s: float) -> None:
        self._read = read
        self._epoch_s = epoch_s
        self._next_s = float("-inf")
        self._said: dict[str, int] = {}

    def of(self, instances: Sequence[InstanceState], now_s: float) -> list[int]:
        if now_s >= self._next_s:
            self._said = {one.name: self._read(one) for one in instances}
            self._next_s = now_s + self._epoch_s
        return [self._said.get(one.name, 0) for one in instances]


class CapabilityWeighted:
    """Chooses the highest weight kappa_i exp(-lambda q_i / Q_max), kappa_i = F^alpha M^beta B^gamma (HeteroServe Eq. 2 and 5).

    Eq. 3 divides all weights by the same sum and so changes no choice. The paper does not define what the queue depth q_i counts; here it
    is the requests in flight. Instances with q_i at or above Q_max are passed over while another is below it. Ties go to the given order.
    Eq. 4 admits every prompt up to 4,096 tokens on every device of the paper, so the bins have no effect and are left out.

    Args:
        capabilities: Capability by instance.
        damping: lambda; with 0 queues have no influence (the ablation "no queue-awareness").
        epoch_s: Age that a queue depth may have.
        long_on: The only instances for prompts of the last bin, if there are any: Eq. 4 admits them everywhere, but the paper's account of
            its results (4.4) says that they all go to the H100.

    Raises:
        PolicyError: There is no capability, or a figure is not more than 0.
    """

    name: ClassVar[str] = "capability-weighted as published"

    def __init__(
        self,
        capabilities: Mapping[str, Capability],
        *,
        damping: float = DAMPING,
        epoch_s: float = EPOCH_S,
        long_on: Collection[str] = (),
    ) -> None:
        if not capabilities:
            raise PolicyError("capabilities: there is none; allowed: one for each instance")
        for name, one in capabilities.items():
            if not min(one.tflops, one.memory_gb, one.bandwidth_tb_s) > 0.0:
                raise PolicyError(f"capability of instance {name!r} is {one}; allowed: figures more than 0")
        # One table per regime, so that a choice only needs a look-up for Eq. 2.
        self._kappa = [{name: _kappa(one, exponents) for name, one in capabilities.items()} for _, exponents in REGIMES]
        self._damping = damping
        self._long_on = frozenset(long_on)
        self._depths = _Broadcast(lambda one: one.in_flight, epoch_s)
        self._recent = RecentIds(WINDOW)
        self._prompts = SortedWindow(WINDOW)

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Sequence[Choice]:
        """The highest weight first; instances at or above Q_max come after all others, and those of another bin last."""
        self._learn(entry.request)
        kappa = self._kappa[self._regime()]
        long = entry.request.prompt_tokens > LONG and bool(self._long_on)
        weights = [
            (
                not long or one.name in self._long_on,
                depth < Q_MAX or not self._damping,
                kappa[one.name] * math.exp(-self._damping * depth / Q_MAX),
                one.name,
            )
            for one, depth in zip(instances, self._depths.of(instances, now_s), strict=True)
        ]
        ordered = sorted(weights, key=lambda one: one[:3], reverse=True)
        return [Choice(name, f"weight {weight:.3g} among {len(instances)}") for _, _, weight, name in ordered]

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
        speeds: Speed by instance, each more than 0, in any common unit, such as requests per second under full load.
        epoch_s: Age that a queue depth may have.

    Raises:
        PolicyError: A speed is not more than 0.
    """

    name: ClassVar[str] = "latency-aware as published"

    def __init__(self, speeds: Mapping[str, float], epoch_s: float = EPOCH_S) -> None:
        self._speeds = dict(speeds)
        for instance, speed in self._speeds.items():
            if not speed > 0.0:
                raise PolicyError(f"speed of instance {instance!r} is {speed!r}; allowed: more than 0")
        self._depths = _Broadcast(lambda one: one.awaiting, epoch_s)

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Sequence[Choice]:  # noqa: ARG002  the protocol's
        """The lowest expected wait first."""
        waits = [
            ((depth + 1) / self._speeds[one.name], one.in_flight_tokens, one.name, depth)
            for one, depth in zip(instances, self._depths.of(instances, now_s), strict=True)
        ]
        return [
            Choice(name, f"{depth} before it without a first token, among {len(instances)}")
            for _, _, name, depth in sorted(waits, key=lambda one: one[:2])
        ]


class Oracle:
    """Fixed shares, whatever the load: short prompts by bandwidth, long ones to the instances with the most compute (4.1, 4.2).

    The shares are spread as evenly as possible: a dispatch gives each instance its share as credit and takes one from that which got it.

    Args:
        capabilities: Capability by instance.
    """

    name: ClassVar[str] = "oracle"

    def __init__(self, capabilities: Mapping[str, Capability]) -> None:
        most = max(one.tflops for one in capabilities.values())
        self._weights = (
            {name: one.bandwidth_tb_s for name, one in capabilities.items()},
            {name: float(one.tflops == most) for name, one in capabilities.items()},
        )
        self._credit: list[dict[str, float]] = [dict.fromkeys(capabilities, 0.0) for _ in self._weights]

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Sequence[Choice]:  # noqa: ARG002  likewise
        """The instance with the most credit first."""
        kind = int(entry.request.prompt_tokens > LONG)
        weights, credit = self._weights[kind], self._credit[kind]
        ordered = sorted(instances, key=lambda one: -(credit[one.name] + weights[one.name]))
        return [Choice(one.name, f"its turn by {weights[one.name]:g} among {len(instances)}") for one in ordered]

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """All get credit; the instance pays for them."""
        kind = int(entry.request.prompt_tokens > LONG)
        credit = self._credit[kind]
        for name, weight in self._weights[kind].items():
            credit[name] += weight
        credit[instance] -= sum(self._weights[kind].values())
