"""How strict the gateway's TPOT guard is with an instance. Pure and bounded.

The guard lets a prompt join where it fits into a share of the least room of those in flight. How many more prompts come before those end
nobody knows, so no share is right for all loads: where many long ones come, half of what is left each time uses up everybody's room; where
few do, less than half keeps prompts waiting for nobody's sake. What tells is the share of requests that begin in time and miss their TPOT
target all the same. Integral action on the logarithm of a factor on the configured share holds it at `ALLOWED`.

The plant: that share rises by k with each unit of the factor's logarithm, k = 0.12 where it was measured (shift and drift workloads on an
A100, guard at 0.5 and at 0.2: 0.15 and 0.05), and shows half a span and a request's own length later, D = 12 s. An integrator behind a dead
time with gain K = 1 / (2 k D) has a phase margin of 61 degrees (SIMC, docs/statera.md).
"""

import math
from collections import deque

from hmas.controller.core.messages import Completion
from hmas.controller.core.types import OutcomeKind

ALLOWED = 0.05
"""Share of TPOT misses among requests that begin in time."""
GAIN_PER_S = 0.35
ERROR_MOST = 0.1
"""Misses further above `ALLOWED` count as this. The whole way to `LEAST` mends k log(1 / LEAST) = 0.19 of the share, so what exceeds it
comes from elsewhere (a burst into a cold engine, a window too wide), and the way back, at `ALLOWED` at most, would take the longer."""
LEAST = 0.2
"""Smallest factor: below it long prompts would hardly run at all."""
SPAN_S = 10.0
"""How far back it looks, and `KEPT` how many requests at most."""
KEPT = 512
SAMPLES_MIN = 10
"""Requests in the span without which the factor goes back to 1, with the time constant `FADE_S`."""
FADE_S = 60.0
STEP = 0.05
"""Factors are told in steps of this: a new one is an event that operators see."""


class GuardFactorController:
    """The factor of one instance."""

    def __init__(self, factor: float = 1.0) -> None:
        """`factor`: where to begin, 1 for the configured share."""
        self._log = math.log(min(1.0, max(LEAST, factor)))
        self._ended: deque[tuple[float, bool]] = deque(maxlen=KEPT)
        self._updated_s = math.inf
        self._missed = 0

    @property
    def factor(self) -> float:
        """On the guard's share, `LEAST` to 1."""
        return min(1.0, max(LEAST, STEP * round(math.exp(self._log) / STEP)))

    def learn(self, completion: Completion) -> None:
        """Takes the end of a request; only one that completed, began in time and has a TPOT to speak of counts."""
        in_time = completion.outcome is OutcomeKind.COMPLETED and 0.0 <= completion.ttft_ms <= completion.ttft_slo_ms
        if in_time and completion.tpot_ms >= 0.0 and completion.tpot_slo_ms > 0.0:
            self._ended.append((completion.arrival_s + completion.total_ms / 1000.0, completion.tpot_ms > completion.tpot_slo_ms))

    @property
    def missed_share(self) -> float | None:
        """Share of TPOT misses among those that began in time and ended within the span, as of the last step; None where they are few."""
        return self._missed / len(self._ended) if len(self._ended) >= SAMPLES_MIN else None

    @property
    def account(self) -> str:
        """In words, empty where it is as configured."""
        if self.factor == 1.0:
            return ""
        return f"TPOT guard factor {self.factor:.2f}: {self._missed} of {len(self._ended)} requests that met TTFT missed TPOT"

    def update(self, now_s: float, *, heeded: bool = True, ttft_missed: float = 0.0) -> None:
        """One step of at most a second since the last.

        Args:
            now_s: The time.
            heeded: Whether the factor is in force; where it is not, it begins anew.
            ttft_missed: Share of requests that missed their TTFT target lately. A stricter guard keeps TPOT at the price of TTFT: it is not
                made stricter while TTFT is what more requests miss.
        """
        dt = min(1.0, max(0.0, now_s - self._updated_s))
        self._updated_s = now_s
        while self._ended and self._ended[0][0] < now_s - SPAN_S:
            self._ended.popleft()
        self._missed = sum(missed for _, missed in self._ended)
        if not heeded:
            self._log = 0.0
        elif len(self._ended) < SAMPLES_MIN:
            self._log *= math.exp(-dt / FADE_S)
        else:
            # Clipped in the state itself: nothing stands behind the limits waiting to be unwound.
            missed = self._missed / len(self._ended)
            error = min(ERROR_MOST, missed - ALLOWED) if missed > ttft_missed else min(0.0, missed - ALLOWED)
            wanted = self._log - GAIN_PER_S * dt * error
            self._log = min(0.0, max(math.log(LEAST), wanted))
