"""What statera knows of an instance: how TPOT grows with concurrency, and what the requests ask for. Pure and bounded.

In steady state an instance with n requests in flight spends d(n) = s + c n on a decode step, and each request's prefill of w ms is spread
over its L output tokens by all n, so tpot(n) = s + (c + w / L) n: affine in n. The two numbers are fitted online by least squares over bins
of concurrency, each an exponentially forgetting mean with a capped weight. That is recursive least squares with forgetting, kept well
posed: a long stay at one n can neither drown what was seen at others nor let the estimate drift.
"""

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.core.messages import Completion
from controller.core.types import OutcomeKind

BIN_RATIO = 1.25
"""Width of a concurrency bin: each is this much wider than the one before."""
BIN_WEIGHT_MAX = 40.0
FORGETTING = 0.997
"""By which every bin's weight shrinks with each sample: a bin not visited for 1,000 samples has lost 95 % of its say."""
SAMPLES_MAX = 256
SAMPLES_MIN = 5
TRACE_MAX = 2_048
PRIOR_SPREAD = 0.15
"""Relative spread of concurrency at which the data weighs as much as the prior slope."""
OUTLIER = 5.0
"""A measured TPOT is cut to this many times the expected one."""


class ConcurrencyTrace:
    """In-flight requests over time, a step function of bounded memory."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._areas: list[float] = []
        self._values: list[int] = []

    def add(self, at_s: float, in_flight: int) -> None:
        """Appends a reading; one that is not newer than the last is ignored, one far older starts the trace anew."""
        if self._times and at_s <= self._times[-1]:
            if at_s > self._times[-1] - 30.0:
                return
            self._times, self._areas, self._values = [], [], []
        area = self._areas[-1] + self._values[-1] * (at_s - self._times[-1]) if self._times else 0.0
        self._times.append(at_s)
        self._areas.append(area)
        self._values.append(in_flight)
        if len(self._times) > 2 * TRACE_MAX:
            del self._times[:TRACE_MAX], self._areas[:TRACE_MAX], self._values[:TRACE_MAX]

    def mean(self, start_s: float, end_s: float) -> float | None:
        """Mean over an interval; None where the trace does not cover its start."""
        if not self._times or start_s < self._times[0]:
            return None
        if end_s - start_s < 1e-6:
            return float(self._values[max(0, bisect_right(self._times, end_s) - 1)])
        return (self._area(end_s) - self._area(start_s)) / (end_s - start_s)

    def _area(self, at_s: float) -> float:
        place = bisect_right(self._times, at_s) - 1
        return self._areas[place] + self._values[place] * (at_s - self._times[place])


@dataclass(slots=True)
class Bin:
    """Mean concurrency and TPOT of the samples that fell here."""

    n: float
    tpot_ms: float
    weight: float


class TpotModel:
    """tpot(n) = base_ms + slope_ms * n, and how single requests scatter around it."""

    def __init__(self) -> None:
        self._bins: dict[int, Bin] = {}
        self._samples = 0
        self._ratios: deque[float] = deque(maxlen=SAMPLES_MAX)
        self.base_ms = 0.0
        self.slope_ms = 0.0

    @property
    def ready(self) -> bool:
        """Whether there are enough samples to go by."""
        return self._samples >= SAMPLES_MIN

    @property
    def n_max(self) -> float:
        """Largest concurrency that still has a say."""
        return max((held.n for held in self._bins.values() if held.weight >= 0.5), default=0.0)

    def predict_ms(self, n: float) -> float:
        """Expected TPOT at a concurrency of n."""
        return self.base_ms + self.slope_ms * n

    def observe(self, n: float, tpot_ms: float) -> None:
        """Takes one request's TPOT and the mean concurrency while it decoded; values that cannot be are ignored."""
        if not (1e-3 < tpot_ms < 1e7 and 0 <= n < 1e6):
            return
        n = max(1.0, n)
        if self.ready:
            tpot_ms = min(tpot_ms, OUTLIER * self.predict_ms(n))
            self._ratios.append(tpot_ms / self.predict_ms(n))
        for held in self._bins.values():
            held.weight *= FORGETTING
        self._bins = {place: held for place, held in self._bins.items() if held.weight > 0.01}
        held = self._bins.setdefault(round(math.log(n, BIN_RATIO)), Bin(n, tpot_ms, 0.0))
        held.weight = min(BIN_WEIGHT_MAX, held.weight + 1.0)
        held.n += (n - held.n) / held.weight
        held.tpot_ms += (tpot_ms - held.tpot_ms) / held.weight
        self._samples += 1
        self._fit()

    def ratios(self) -> NDArray[np.float64]:
        """Measured over expected TPOT of the newest requests, ascending; a single 1 where there are too few."""
        if len(self._ratios) < 2 * SAMPLES_MIN:
            return np.ones(1)
        return np.sort(np.asarray(self._ratios, dtype=np.float64))

    def _fit(self) -> None:
        """Weighted least squares with a prior on the slope.

        The prior says that TPOT is proportional to n, the steepest of all affine laws through the mean. Where concurrency has hardly varied
        it decides, and a window computed from it falls short of what the instance can do rather than overshooting it.
        """
        weight = sum(held.weight for held in self._bins.values())
        n_mean = sum(held.weight * held.n for held in self._bins.values()) / weight
        tpot_mean = sum(held.weight * held.tpot_ms for held in self._bins.values()) / weight
        n_var = sum(held.weight * (held.n - n_mean) ** 2 for held in self._bins.values()) / weight
        cov = sum(held.weight * (held.n - n_mean) * (held.tpot_ms - tpot_mean) for held in self._bins.values()) / weight
        steepest = tpot_mean / n_mean
        prior = (PRIOR_SPREAD * n_mean) ** 2
        self.slope_ms = min(steepest, max(0.0, (cov + prior * steepest) / (n_var + prior)))
        self.base_ms = tpot_mean - self.slope_ms * n_mean


class Plant:
    """One instance as statera has come to know it."""

    def __init__(self) -> None:
        self.trace = ConcurrencyTrace()
        self.tpot = TpotModel()
        self._slo_ms: deque[float] = deque(maxlen=SAMPLES_MAX)
        self.output_tokens = 0.0
        self.service_ttft_ms = 0.0
        self._served = 0

    def learn(self, completion: Completion) -> None:
        """Takes the end of a request that this instance served."""
        if completion.tpot_slo_ms > 0:
            self._slo_ms.append(completion.tpot_slo_ms)
        if completion.outcome is not OutcomeKind.COMPLETED or completion.output_tokens < 1 or completion.service_ttft_ms < 0:
            return
        self._served += 1
        gain = max(1.0 / self._served, 1.0 / 64)
        self.output_tokens += (completion.output_tokens - self.output_tokens) * gain
        self.service_ttft_ms += (completion.service_ttft_ms - self.service_ttft_ms) * gain
        if completion.tpot_ms > 0:
            first_s = completion.arrival_s + completion.ttft_ms / 1000.0
            beside = self.trace.mean(first_s, completion.arrival_s + completion.total_ms / 1000.0)
            self.tpot.observe(float(completion.running) if beside is None else beside, completion.tpot_ms)

    def want(self, completion: Completion) -> None:
        """Takes what a request asked for that no instance served."""
        if completion.tpot_slo_ms > 0:
            self._slo_ms.append(completion.tpot_slo_ms)

    def slos_ms(self) -> NDArray[np.float64]:
        """TPOT targets of the newest requests."""
        return np.asarray(self._slo_ms, dtype=np.float64)
