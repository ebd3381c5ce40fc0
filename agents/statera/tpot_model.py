"""Statera's model of an instance: how TPOT grows with concurrency, and what the requests need. Pure and bounded.

In steady state an instance with n requests in flight spends d(n) = s + c n on a decode step, and each request's prefill of w ms is spread
over its L output tokens by all n, so tpot(n) = s + (c + w / L) n: affine in n. What the law does not contain, such as the scatter between
requests and their lengths, comes from the newest requests themselves.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.messages import Completion
from hmas.controller.core.objectives import whole_due_ms
from hmas.controller.core.statistics.cumulative_trace import CumulativeTrace
from hmas.controller.core.types import OutcomeKind, Slo, are_other_models

N = TypeVar("N", float, NDArray[np.float64])

SERVED_MAX = 256
SERVED_MIN = 8
FORGETTING = 0.99
"""Factor by which older requests lose weight with each new one: the law rests on about the last 100."""
LEAST_RISE = 1.0005
"""Factor by which the least TPOT is forgotten with each request."""
BASE_MAX = (0.5, 0.9)
"""Largest share of the mean TPOT that the base may be. Half is safe on any plant: a window that follows the fit then approaches its target
from any start (docs/statera.md). A larger share is used after SETTLED requests if the least was seen at `BASE_SEEN` of the mean n."""
BASE_SEEN = (0.25, 0.5)
"""Concurrency of the least TPOT relative to the mean: up to the first it counts fully, from the second on not at all."""
SETTLED = 64
WHOLE_TOKENS = 16
"""Fewest output tokens of an answer whose TPOT may be the least: a few tokens can arrive in one piece."""
HEAVIEST = 4.0
"""Largest weight of one answer, in mean answers."""
MS_MIN, MS_MAX = 1e-3, 1e7
"""Times outside this range are impossible and ignored."""
N_MAX = 1e4


class TpotLaw:
    """tpot(n) = base_ms + slope_ms * n, of mean requests.

    The base is the least recent TPOT, that of a nearly empty batch. The slope makes the law pass through the recent means of n and TPOT.
    A regression of TPOT on n (`statistics.step_fit`) would fail where it matters: under a full window n hardly varies, and TPOT varies with
    the prefill of a burst, so the slope would be almost 0.
    """

    def __init__(self) -> None:
        self._least_ms = math.inf
        self._least_n = math.inf
        self._samples = 0
        self._weight = 0.0
        self._n = 0.0
        self._tpot_ms = 0.0
        self.n_max = 0.0

    @property
    def base_ms(self) -> float:
        """TPOT of an empty batch."""
        fully, not_at_all = BASE_SEEN
        seen = max(0.0, min(1.0, (not_at_all - self._least_n / max(1.0, self._n)) / (not_at_all - fully)))
        share = BASE_MAX[0] + (BASE_MAX[1] - BASE_MAX[0]) * min(1.0, self._samples / SETTLED) * seen
        return min(self._least_ms, share * self._tpot_ms)

    @property
    def slope_ms(self) -> float:
        """TPOT added by each request in flight."""
        return (self._tpot_ms - self.base_ms) / max(1.0, self._n)

    def predict(self, n: N) -> N:
        """Returns the expected TPOT at a concurrency of n."""
        return self.base_ms + self.slope_ms * n

    def add(self, n: float, tpot_ms: float, weight: float, *, whole: bool) -> None:
        """Takes a request's TPOT at a concurrency of 1 or more. `whole`: it was long enough for its TPOT to count as the least."""
        self._samples += 1
        self._weight = self._weight * FORGETTING + weight
        self._n += (n - self._n) * weight / self._weight
        self._tpot_ms += (tpot_ms - self._tpot_ms) * weight / self._weight
        self.n_max = max(self.n_max * FORGETTING, n)
        self._least_ms *= LEAST_RISE
        if whole and tpot_ms < self._least_ms:
            self._least_ms, self._least_n = tpot_ms, n


class TpotModel:
    """The fitted model of one instance: the law tpot(n), and the newest requests to compare with it."""

    def __init__(self) -> None:
        self.trace = CumulativeTrace()
        self.tpot = TpotLaw()
        # A ring of the newest requests, a row each: mean concurrency while decoding, TPOT, TPOT target (0: none), service time.
        self._rows: NDArray[np.float64] = np.zeros((SERVED_MAX, 4))
        self._learnt = 0
        self._tokens = 0.0
        self._models: Sequence[str] = ()

    @property
    def ready(self) -> bool:
        """Whether there are enough samples."""
        return self._learnt >= SERVED_MIN

    def watch(self, at_s: float, occupied: int, models: Sequence[str]) -> bool:
        """Takes the slots that are taken from now on and the models that the instance serves, empty if they are not known.

        If none of the models from before is left, all measurements are dropped: they are another model's. Returns whether that is so.
        """
        is_other = are_other_models(self._models, models)
        if is_other:
            self.tpot, self._learnt, self._tokens = TpotLaw(), 0, 0.0
        self._models = models or self._models
        self.trace.hold(at_s, max(0, occupied))
        return is_other

    def learn(self, completion: Completion) -> None:
        """Takes the end of a request that this instance served; those that did not complete, or have several answers, are ignored.

        Of several answers only the sum of their lengths is known, and the longest takes the time.
        """
        service_ms, tokens = completion.total_ms - completion.queue_ms, float(completion.output_tokens)
        ended = completion.outcome is OutcomeKind.COMPLETED and completion.sequences == 1
        if not ended or tokens < 2.0 or completion.queue_ms < 0:
            return
        # An answer in one piece shows no first token: all of its service counts as decoding, which errs to the slow side.
        in_pieces = completion.ttft_ms >= 0
        tpot_ms = completion.tpot_ms if in_pieces else service_ms / tokens
        if not (MS_MIN < tpot_ms < MS_MAX and MS_MIN < service_ms < MS_MAX):
            return
        first_s = completion.arrival_s + (completion.ttft_ms if in_pieces else completion.queue_ms) / 1000.0
        beside = self.trace.mean(first_s, completion.arrival_s + completion.total_ms / 1000.0)
        if beside is None:
            # The concurrency is not known. The number in flight at dispatch is a poor substitute: in a burst it is low.
            return
        n = max(1.0, min(N_MAX, beside))
        self._tokens += (tokens - self._tokens) / (min(SERVED_MAX, self._learnt) + 1)
        self.tpot.add(n, tpot_ms, min(HEAVIEST, tokens / self._tokens), whole=tokens >= WHOLE_TOKENS)
        slo_ms = max(0.0, completion.tpot_slo_ms)
        if slo_ms and not in_pieces:
            slo_ms = whole_due_ms(tokens, Slo(ttft_ms=completion.ttft_slo_ms, tpot_ms=slo_ms)) / tokens
        self._rows[self._learnt % SERVED_MAX] = (n, tpot_ms, slo_ms, service_ms)
        self._learnt += 1

    def rps(self, n: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns X(n): requests per second completed with n in flight.

        Little's law with S(n) = steps * tpot(n). `steps` is the mean service time over the mean expected TPOT of recent requests: it covers
        the output length and the time to the first token, and makes the rate at the present window the measured one.
        """
        served = self._served()
        expected_ms = float(self.tpot.predict(served[:, 0]).sum())
        steps = float(served[:, 3].sum()) / max(MS_MIN, expected_ms)
        rps: NDArray[np.float64] = 1000.0 * n / np.maximum(MS_MIN, steps * self.tpot.predict(n))
        return rps

    @property
    def service_s(self) -> float:
        """Mean service time of recent requests; 0 if there were none."""
        return float(self._served()[:, 3].mean()) / 1000.0 if self._learnt else 0.0

    def borne_ms(self) -> NDArray[np.float64]:
        """Returns, ascending, the expected TPOT up to which each recent request would have met its target; empty if none had one.

        It is the target divided by the request's own ratio of measured to expected TPOT. Using both values of the same request preserves
        that short answers scatter most and tend to have strict targets.
        """
        served = self._served()
        served = served[served[:, 2] > 0.0]
        borne: NDArray[np.float64] = np.sort(served[:, 2] * self.tpot.predict(served[:, 0]) / served[:, 1])
        return borne

    def _served(self) -> NDArray[np.float64]:
        return self._rows[: min(SERVED_MAX, self._learnt)]
