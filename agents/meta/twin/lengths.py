"""How long the answers are that have not come to their end yet. Pure and bounded.

Believed lengths are medians or thereabouts, often of the workload of a while ago; and what is still there is the longer the more of it has
run. Who takes every open request at its believed length replays a load that is far too light. So each is given the length of one that has
ended: of the same kind (task type and size of its TTFT target, for who may wait asks for more), and about as long in belief. Which of those
is drawn by the request's id. One that waits is like any other; one that runs is met the more likely the longer it is (length-biased
sampling, as of any process looked into at a moment), so for the share that runs lengths count by their size.
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
"""Completions that are remembered of each kind. `KINDS_MOST`: kinds that are told apart."""
KINDS_MOST = 64
LIKE = 40
"""Completions of a kind, those with the most similar belief, that one is drawn from; with fewer, from those of all kinds."""

Ended = tuple[float, int]
"""Believed and true tokens."""


class Lengths:
    """Believed and true output lengths of the newest completions, by kind and over all."""

    def __init__(self) -> None:
        self._all: deque[Ended] = deque(maxlen=KEPT)
        self._kinds: dict[tuple[str, int], deque[Ended]] = {}

    def learn(self, ended: Completion) -> None:
        """One more answer has come to its end."""
        if ended.outcome is not OutcomeKind.COMPLETED or not ended.output_tokens > 0 or not ended.predicted_output_tokens > 0.0:
            return
        told = (ended.predicted_output_tokens, ended.output_tokens)
        self._all.append(told)
        kind = _kind(ended.task_type, ended.ttft_slo_ms)
        if kind in self._kinds or len(self._kinds) < KINDS_MOST:
            self._kinds.setdefault(kind, deque(maxlen=KEPT)).append(told)

    def draw(self, asked: Iterable[PastRequest], running: float) -> Iterator[PastRequest]:
        """Gives open requests a length each: always the same one for the same request, as far as the completions are the same.

        Args:
            asked: Those that have ended keep their length; so do all as long as there are too few completions to draw from.
            running: Share of the open ones that runs, 0 to 1.
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
    """Task type and the octave of the target."""
    return task_type, round(log2(max(1.0, ttft_slo_ms)))


def _drawn(table: list[Ended], believed: float, share: float, running: float) -> int:
    """The length that a share of those with a similar belief does not exceed, when of a share of them lengths count by their size."""
    lengths = sorted(tokens for _, tokens in _alike(table, believed))
    number, total = len(lengths), sum(lengths)
    cumulated = list(accumulate((1.0 - running) / number + running * tokens / total for tokens in lengths))
    return lengths[min(bisect_left(cumulated, share), number - 1)]


def _alike(table: list[Ended], believed: float) -> list[Ended]:
    """`LIKE` of them with the nearest beliefs, and whoever is as near as the last."""
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
