"""Draws output lengths for requests that have not ended yet. Pure and bounded.

Predicted lengths are about medians, often of an earlier workload, and a running request is probably longer the more it has generated. A
replay of all open requests at their predicted lengths would be far too light. So each gets the length of an ended request of the same
kind (task type and size of its TTFT target, because requests with loose targets ask for more) and a similar predicted length. The request's
id determines which one is drawn. A waiting request is like any other. A running request is the more likely to be met the longer it is
(length-biased sampling, as of any process observed at one moment), so for the running share lengths are weighted by their size.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf, log2
from operator import itemgetter
from zlib import crc32

from msgspec.structs import replace

from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import OutcomeKind

KEPT = 256
"""Completions that are kept of each kind. `KINDS_MOST`: most kinds that are distinguished."""
KINDS_MOST = 64
LIKE = 40
"""Number of completions with the most similar predictions from which a length is drawn; a kind with fewer uses those of all kinds."""

Ended = tuple[float, int]
"""Predicted and true tokens."""


class Lengths:
    """Predicted and true output lengths of the newest completions, by kind and overall."""

    def __init__(self) -> None:
        self._all: deque[Ended] = deque(maxlen=KEPT)
        self._kinds: dict[tuple[str, int], deque[Ended]] = {}

    def learn(self, ended: Completion) -> None:
        """Records a completed answer."""
        if ended.outcome is not OutcomeKind.COMPLETED or not ended.output_tokens > 0 or not ended.predicted_output_tokens > 0.0:
            return
        told = (ended.predicted_output_tokens, ended.output_tokens)
        self._all.append(told)
        kind = _kind(ended.task_type, ended.ttft_slo_ms)
        if kind in self._kinds or len(self._kinds) < KINDS_MOST:
            self._kinds.setdefault(kind, deque(maxlen=KEPT)).append(told)

    def draw(self, asked: Iterable[PastRequest], running: float) -> Iterator[PastRequest]:
        """Gives each open request a length; the same request gets the same length as long as the completions are the same.

        Args:
            asked: The requests. Ended ones keep their length; so do all while there are too few completions to draw from.
            running: Share of the open requests that runs, 0 to 1.
        """
        tables = {kind: sorted(ended, key=itemgetter(0)) for kind, ended in self._kinds.items() if len(ended) >= LIKE}
        otherwise = sorted(self._all, key=itemgetter(0))
        for one in asked:
            table = tables.get(_kind(one.believed.task_type, one.believed.slo.ttft_ms), otherwise)
            if one.has_ended or len(table) < LIKE:
                yield one
                continue
            tokens = _drawn(table, one.believed.output_tokens, crc32(one.request.id.encode()[::-1]) / (1 << 32), running)
            yield replace(one, output_tokens=min(tokens, one.request.max_output_tokens or tokens))


def _kind(task_type: str, ttft_slo_ms: float) -> tuple[str, int]:
    """Returns the task type and the octave of the target."""
    return task_type, round(log2(max(1.0, ttft_slo_ms)))


def _drawn(table: list[Ended], believed: float, share: float, running: float) -> int:
    """Returns the quantile at `share` of the lengths with a similar prediction; a share `running` of the weight is by size."""
    lengths = sorted(tokens for _, tokens in _alike(table, believed))
    number, total = len(lengths), sum(lengths)
    cumulated = list(accumulate((1.0 - running) / number + running * tokens / total for tokens in lengths))
    return lengths[min(bisect_left(cumulated, share), number - 1)]


def _alike(table: list[Ended], believed: float) -> list[Ended]:
    """Returns the `LIKE` entries with the nearest predictions, and all that are as near as the last."""
    low = high = bisect_left(table, believed, key=itemgetter(0))
    farthest = 0.0
    while True:
        below = believed - table[low - 1][0] if low > 0 else inf
        above = table[high][0] - believed if high < len(table) else inf
        nearest = min(below, above)
        if nearest == inf or (high - low >= LIKE and nearest > farthest):
            return table[low:high]
        farthest = nearest
        if below <= above:
            low -= 1
        else:
            high += 1
