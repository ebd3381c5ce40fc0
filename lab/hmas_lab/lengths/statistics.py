"""Output length before it is known: bounded statistics of what like requests produced, shrunk towards coarser groups. Pure.

Groups from coarse to fine: the task type; the task type within a prompt-length bucket; the same for one tenant. A request of
unknown type is looked up among all types together (H-MAS 3.2, the historical safety prior). Quantiles are
taken of logarithms, since lengths spread over orders of magnitude.
"""

import math
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator

from hmas.agents.perception.lengths.priors import PRIOR, Length
from hmas.controller.core.types import TaskType

KEEP = 64
"""Lengths remembered per group: the newest, so that a shift of the workload is followed."""
GROUPS = 4096
"""Groups remembered; the one longest without news goes first."""
SHRINKAGE = 4.0
"""Observations that the coarser group counts for."""
BUCKET_EDGES = (64, 256, 1024, 4096, 16_384)


def bucket(prompt_tokens: int) -> int:
    """Number of the prompt-length bucket, 0 for the shortest."""
    return bisect_right(BUCKET_EDGES, prompt_tokens)


class _Group:
    """The newest lengths of one group, as logarithms."""

    __slots__ = ("_cached", "_logs")

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=KEEP)
        self._cached: tuple[float, float] | None = None

    def add(self, tokens: int) -> None:
        self._logs.append(math.log(tokens))
        self._cached = None

    def __len__(self) -> int:
        return len(self._logs)

    def quantiles(self) -> tuple[float, float]:
        """Logarithms of the median and of the 90 % quantile."""
        if self._cached is None:
            ordered = sorted(self._logs)
            last = len(ordered) - 1
            self._cached = ordered[round(0.5 * last)], ordered[math.ceil(0.9 * last)]
        return self._cached


class LengthStatistics:
    """Learns lengths and tells quantiles; memory is bounded by `GROUPS` x `KEEP` numbers."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, str, int], _Group] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def learn(self, *, tenant: str, task: TaskType, prompt_tokens: int, output_tokens: int) -> None:
        """Takes a completed request into account; `output_tokens` is 1 or more."""
        number = bucket(prompt_tokens)
        keys = [*_keys(tenant, TaskType.UNKNOWN, number)]
        if task is not TaskType.UNKNOWN:
            keys += [key for key in _keys(tenant, task, number) if key not in keys]
        for key in keys:
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group()
            self._groups.move_to_end(key)
            group.add(output_tokens)
        while len(self._groups) > GROUPS:
            self._groups.popitem(last=False)

    def estimate(self, *, tenant: str, task: TaskType, prompt_tokens: int, demanded: float = 0.0) -> Length:
        """Quantiles for a request.

        Args:
            tenant: Who asks.
            task: Its type; `unknown` takes the history of all types.
            prompt_tokens: Its prompt's length.
            demanded: What `demanded_tokens` found. Models fall short of long demands and overshoot short ones, so the middle is taken
                (geometric mean of demand and statistics).
        """
        prior = PRIOR[task]
        low, high = math.log(prior.p50), math.log(prior.p90)
        for key in _keys(tenant, task, bucket(prompt_tokens)):
            group = self._groups.get(key)
            if group is not None:
                share = len(group) / (len(group) + SHRINKAGE)
                group_low, group_high = group.quantiles()
                low += share * (group_low - low)
                high += share * (group_high - high)
        if demanded > 0:
            shift = 0.5 * (math.log(demanded) - low)
            low, high = low + shift, high + shift
        return Length(math.exp(low), math.exp(max(low, high)))


def _keys(tenant: str, task: TaskType, number: int) -> Iterator[tuple[str, str, int]]:
    """The groups of a request from coarse to fine. No tenant's name is empty, so the coarse groups' keys are their own."""
    yield ("", task, -1)
    yield ("", task, number)
    yield (tenant or "-", task, number)
