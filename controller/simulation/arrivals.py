"""The arrivals of a simulation in order of time: a sorted stream, and requests that follow from ended ones."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.prompt_texts import BLOCK_TOKENS, BLOCKS_MOST
from hmas.controller.core.types import Estimates, Request


@dataclass(frozen=True)
class Arrival:
    """One request that arrives at `request.arrival_s`.

    Attributes:
        estimate: Returns the estimates of the request from `(request, now_s)`; called at its arrival.
        output_tokens: The true output length, 1 or more, which only the engine gets.
        weight: Its tenant's weight.
        block_hashes, hash_tokens: Its prompt's prefix hashes, as in `hmas.engines.sim.request.SimRequest`.
        answer: The estimates of the agents from `(request, now_s)`, called `answer_s` seconds after its arrival, whether it waits or runs.
            It may return None for no estimates. Without `answer`, the estimates made at its arrival stay.
    """

    request: Request
    estimate: Callable[[Request, float], Estimates]
    output_tokens: int
    weight: float = 1.0
    block_hashes: tuple[int, ...] = ()
    hash_tokens: int = 512
    answer: Callable[[Request, float], Estimates | None] | None = None
    answer_s: float = 0.0

    def gateway_blocks(self) -> tuple[int, ...]:
        """The prompt's blocks in the size that a gateway has them, with numbers made from those of the larger ones of the workload."""
        each = self.hash_tokens // BLOCK_TOKENS
        if each <= 1:
            return self.block_hashes
        most = min(BLOCKS_MOST, self.request.prompt_tokens // BLOCK_TOKENS)
        return tuple([each * block + part for block in self.block_hashes[: most // each + 1] for part in range(each)][:most])


class ArrivalFeed:
    """A stream of arrivals, read one ahead so that a million requests cost no memory, and a heap of follow-up requests.

    Attributes:
        next_s: Time of the next arrival, infinite if none is left.
        last_s: Time of the latest arrival that was taken; before that, the time of the first arrival.
        taken: Number of arrivals taken.
    """

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        """Accepts a stream in order of arrival; a sequence is sorted first."""
        if isinstance(arrivals, Sequence):
            arrivals = sorted(arrivals, key=lambda arrival: arrival.request.arrival_s)
        self._stream: Iterator[Arrival] = iter(arrivals)
        self._extra: list[tuple[float, int, Arrival]] = []
        self._pushed = 0
        self._head = next(self._stream, None)
        self.taken = 0
        self.last_s = self._head.request.arrival_s if self._head is not None else 0.0
        self.next_s = float("inf")
        self._look()

    def push(self, arrival: Arrival, now_s: float) -> None:
        """Adds a follow-up request.

        Raises:
            SchedulingError: Its arrival is in the past.
        """
        at_s = arrival.request.arrival_s
        if not at_s >= now_s:
            raise SchedulingError(f"request {arrival.request.id!r} follows at {at_s!r} s, which is before now, {now_s!r} s")
        self._pushed += 1
        heapq.heappush(self._extra, (at_s, self._pushed, arrival))
        self._look()

    def pop(self) -> Arrival:
        """Takes the next arrival; at equal times the stream goes first.

        Raises:
            SchedulingError: The stream is not in order of arrival.
        """
        self.taken += 1
        head = self._head
        if head is None or (self._extra and self._extra[0][0] < head.request.arrival_s):
            taken = heapq.heappop(self._extra)[2]
        else:
            taken = head
            self._head = following = next(self._stream, None)
            if following is not None and not following.request.arrival_s >= head.request.arrival_s:
                raise SchedulingError(
                    f"arrival {self.taken} ({following.request.id!r}) comes at {following.request.arrival_s!r} s, before the one ahead, "
                    f"{head.request.arrival_s!r} s; arrivals must be sorted by time"
                )
        self.last_s = taken.request.arrival_s
        self._look()
        return taken

    def _look(self) -> None:
        at_s = float("inf") if self._head is None else self._head.request.arrival_s
        self.next_s = min(at_s, self._extra[0][0]) if self._extra else at_s
