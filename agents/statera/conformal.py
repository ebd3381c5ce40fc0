"""Online bucketed conformal calibration of output lengths (H-MAS Eq. 4 and 10, B.3, Algorithm 2 A and B). Pure.

Each prompt-length bucket keeps the last errors e = l_real - l_pred. The bound adds their conformal bound (`SortedWindow`) at a level of
epsilon or less (`risk`). At epsilon, an error exchangeable with the kept ones lies at or below the bound with probability of at least
1 - epsilon; a lower level only raises the bound. While lengths drift and more than a share epsilon misses its bound, the level falls, so
that under any drift the excess of misses ends soon. docs/statera.md has both guarantees.
"""

from bisect import bisect_right
from collections import OrderedDict

from msgspec.structs import replace

from hmas.agents.statera.risk import AdaptiveRisk
from hmas.controller.core.messages import Completion, LengthBound
from hmas.controller.core.statistics.quantiles import SortedWindow
from hmas.controller.core.types import OutcomeKind

EDGES = (128, 512, 2048, 8192)
"""Upper edges of the prompt-length buckets in tokens (exclusive); the last bucket is open."""
WINDOW = 512
"""Errors kept per bucket. `POOL`: likewise over all buckets."""
POOL = 1024
MODELS = 8
"""Models with bounds of their own."""
FULL_AT = 64
"""Errors from which on a bucket is used alone. With fewer, the larger of its and the pool's quantile counts; a higher bound stays valid."""


class LengthCalibrator:
    """Error windows D_b and their bounds.

    Args:
        epsilon: Risk that an output is longer than its bound, between 0 and 1.
        adaptive: Whether an excess of misses lowers the level; if not, only the window follows a drift.
    """

    def __init__(self, epsilon: float, *, adaptive: bool = True) -> None:
        self._epsilon = epsilon
        self._adaptive = adaptive
        self._buckets = [SortedWindow(WINDOW) for _ in range(len(EDGES) + 1)]
        self._risks = [AdaptiveRisk(epsilon) for _ in self._buckets]
        self._pool = SortedWindow(POOL)

    def learn(self, completion: Completion) -> None:
        """Takes the length error of an ended request.

        An aborted answer shows only a lower bound of its length. It counts once it exceeds its bound; leaving it out would make long
        answers look rarer than they are. The lengths of several answers to one request are known only in sum, and do not count.
        """
        if not _shows_length(completion):
            return
        error = completion.output_tokens - completion.predicted_output_tokens
        bucket = _bucket(completion.prompt_tokens)
        bound = self._correction(bucket)
        if completion.outcome is not OutcomeKind.COMPLETED and error <= (bound or 0.0):
            return
        if bound is not None and self._adaptive:
            self._risks[bucket].note(missed=error > bound)
        self._buckets[bucket].add(error)
        self._pool.add(error)

    def add_tokens(self, prompt_tokens: int) -> float | None:
        """Returns the correction q_(1-eps) for a prompt of this length; None while there are too few errors."""
        return self._correction(_bucket(prompt_tokens))

    def bounds(self) -> list[LengthBound]:
        """Returns the corrections by bucket; with too few errors none, and then the scheduler's configured bound stays active."""
        pooled = len(self._pool)
        bounds: list[LengthBound] = []
        for bucket, (below, window) in enumerate(zip((*EDGES, 0), self._buckets, strict=True)):
            correction = self._correction(bucket)
            if correction is None:
                return []
            samples = len(window) if len(window) >= FULL_AT else pooled
            bounds.append(LengthBound(prompt_tokens_below=below, add_tokens=correction, samples=samples))
        return bounds

    def _correction(self, bucket: int) -> float | None:
        window, risk = self._buckets[bucket], self._risks[bucket]
        if self._pool.conformal_bound(self._epsilon) is None:
            return None
        windows = (window,) if len(window) >= FULL_AT else (window, self._pool)
        level = risk.level
        bounds = [bound for one in windows if (bound := one.conformal_bound(level)) is not None]
        # A level too low for so few errors uses their largest; errors above even that raise the bound further.
        return max(bounds) if bounds else risk.stretched(max(one.ordered[-1] for one in windows if one.ordered))


class ModelLengths:
    """The error windows of all requests, and of each of the `MODELS` that answered last: a model's own bounds hold where it has enough.

    A model's own windows begin once a second model answers: those of all are its own until then.
    """

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self._all = LengthCalibrator(epsilon)
        self._own: OrderedDict[str, LengthCalibrator] = OrderedDict()
        self._first: str | None = None

    def learn(self, completion: Completion) -> None:
        """As `LengthCalibrator.learn`."""
        # A request for a model that nobody serves ends without output; its wrong name must not push out a real model.
        if not _shows_length(completion):
            return
        self._all.learn(completion)
        if self._first is None:
            self._first = completion.model
        if not self._own and completion.model == self._first:
            return
        own = self._own.get(completion.model)
        if own is None:
            own = self._own[completion.model] = LengthCalibrator(self._epsilon)
            if len(self._own) > MODELS:
                self._own.popitem(last=False)
        self._own.move_to_end(completion.model)
        own.learn(completion)

    def bounds(self) -> list[LengthBound]:
        """The corrections of each model by bucket, then those of all requests."""
        own = [replace(bound, model=model) for model, lengths in self._own.items() for bound in lengths.bounds()]
        return own + self._all.bounds()


def _shows_length(completion: Completion) -> bool:
    return completion.predicted_output_tokens > 0 and completion.output_tokens > 0 and completion.sequences <= 1


def _bucket(prompt_tokens: int) -> int:
    return bisect_right(EDGES, prompt_tokens)
