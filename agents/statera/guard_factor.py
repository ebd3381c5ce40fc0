"""Regulates how strict the gateway's TPOT guard is with an instance. Pure and bounded.

The guard admits a prompt if it fits into a share of the least room among the requests in flight. It is unknown how many more prompts come
before those end, so no share suits all loads. If many long prompts come, taking half of what is left each time uses up every request's
room; if few come, less than half makes prompts wait for no benefit. The measure is the share of requests that begin in time but still miss
their TPOT target. Integral action on the logarithm of a factor on the configured share holds this measure at `ALLOWED`.

The plant: the measure rises by k per unit of the factor's logarithm, with k = 0.12 as measured (shift and drift workloads on an A100, guard
at 0.5 and at 0.2: 0.15 and 0.05). It shows half a span and a request's own length later, D = 12 s. An integrator behind a dead time with
gain K = 1 / (2 k D) has a phase margin of 61 degrees (SIMC, docs/statera.md).
"""

import math
from collections import deque

from hmas.controller.core.messages import Completion
from hmas.controller.core.types import OutcomeKind

ALLOWED = 0.05
"""Share of TPOT misses among requests that begin in time."""
GAIN_PER_S = 0.35
ERROR_MOST = 0.1
"""Largest excess of misses over `ALLOWED` that counts. The whole way to `LEAST` removes k log(1 / LEAST) = 0.19 of the share, so a larger
excess has another cause (a burst into a cold engine, a window too wide). It would only prolong the way back, where the
error is at most `ALLOWED`."""
LEAST = 0.2
"""Smallest factor: below it long prompts would hardly run at all."""
SPAN_S = 10.0
"""Span of past requests that count. `KEPT`: most requests in it."""
KEPT = 512
SAMPLES_MIN = 10
"""With fewer requests in the span the factor returns to 1, with the time constant `FADE_S`."""
FADE_S = 60.0
STEP = 0.05
"""Resolution of the factors that statera sends: each new one is an event that operators see."""


class GuardFactorController:
    """Controls the guard factor of one instance."""

    def __init__(self, factor: float = 1.0) -> None:
        """`factor`: initial value, 1 for the configured share."""
        self._log = math.log(min(1.0, max(LEAST, factor)))
        self._ended: deque[tuple[float, bool]] = deque(maxlen=KEPT)
        self._updated_s = math.inf
        self._missed = 0

    @property
    def factor(self) -> float:
        """Factor on the guard's share, `LEAST` to 1."""
        return min(1.0, max(LEAST, STEP * round(math.exp(self._log) / STEP)))

    def learn(self, completion: Completion) -> None:
        """Takes an ended request; it counts only if it completed, began in time, and has a TPOT and a TPOT target.

        The TPOT of several answers is that of their mean length, and longer than the pace.
        """
        in_time = completion.outcome is OutcomeKind.COMPLETED and 0.0 <= completion.ttft_ms <= completion.ttft_slo_ms
        in_time = in_time and completion.sequences == 1
        if in_time and completion.tpot_ms >= 0.0 and completion.tpot_slo_ms > 0.0:
            self._ended.append((completion.arrival_s + completion.total_ms / 1000.0, completion.tpot_ms > completion.tpot_slo_ms))

    @property
    def samples(self) -> int:
        """Number of requests in the span that began in time; at most `KEPT`."""
        return len(self._ended)

    @property
    def missed_share(self) -> float | None:
        """Share of TPOT misses among requests in the span that began in time, as of the last step; None if there are too few."""
        return self._missed / self.samples if self.samples >= SAMPLES_MIN else None

    @property
    def account(self) -> str:
        """Describes why the factor has its value, for a decision's reason."""
        if self.factor == 1.0:
            return "as strict as configured"
        return f"{self._missed} of {self.samples} requests that met TTFT missed TPOT, {ALLOWED:.0%} are allowed"

    def update(self, now_s: float, *, heeded: bool = True, ttft_missed: float = 0.0) -> None:
        """Runs one step over the time since the last, at most a second.

        Args:
            now_s: The time.
            heeded: Whether the factor is active; if not, it starts again from 1.
            ttft_missed: Share of requests that recently missed their TTFT target. A stricter guard trades TTFT for TPOT, so it does not get
                stricter while more requests miss TTFT than TPOT.
        """
        dt = min(1.0, max(0.0, now_s - self._updated_s))
        self._updated_s = now_s
        while self._ended and self._ended[0][0] < now_s - SPAN_S:
            self._ended.popleft()
        self._missed = sum(missed for _, missed in self._ended)
        if not heeded:
            self._log = 0.0
        elif self.samples < SAMPLES_MIN:
            self._log *= math.exp(-dt / FADE_S)
        else:
            # The state itself is clipped, so there is no windup beyond the limits.
            missed = self._missed / self.samples
            error = min(ERROR_MOST, missed - ALLOWED) if missed > ttft_missed else min(0.0, missed - ALLOWED)
            wanted = self._log - GAIN_PER_S * dt * error
            self._log = min(0.0, max(math.log(LEAST), wanted))
