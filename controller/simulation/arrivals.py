"""What comes into a simulation, in order of time: a sorted stream, and what follows from what has ended."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.types import Estimates, Request
from hmas.engines.sim.request import Pause


@dataclass(frozen=True)
class Arrival:
    """One request to come, at `request.arrival_s`.

    Attributes:
        estimate: What is believed when it comes: `(request, now_s)` to estimates, asked at its arrival.
        output_tokens: The true output length, 1 or more: the engine alone gets it.
        weight: Its tenant's weight.
        block_hashes, hash_tokens: Its prompt's prefix hashes, as in `hmas.engines.sim.request.SimRequest`.
        pauses: Tool calls within it. `tool_s`: how long each of them takes, seconds.
        answer: What the agents make of it: `(request, now_s)` to estimates, asked `answer_s` seconds after its arrival, waiting or running;
            None where they say nothing. Without one, what was believed at its arrival stands.
    """

    request: Request
    estimate: Callable[[Request, float], Estimates]
    output_tokens: int
    weight: float = 1.0
    block_hashes: tuple[int, ...] = ()
    hash_tokens: int = 512
    pauses: tuple[Pause, ...] = ()
    tool_s: tuple[float, ...] = ()
    answer: Callable[[Request, float], Estimates | None] | None = None
    answer_s: float = 0.0


class ArrivalFeed:
    """A stream that is read one ahead, so that a million requests cost no memory, and a heap of those that followed.

    Attributes:
        next_s: When the next one comes, infinite when none is left.
        last_s: When the latest that was taken came; before the first is taken, when that one comes.
        taken: How many were taken.
    """

    __slots__ = ("_extra", "_head", "_pushed", "_stream", "last_s", "next_s", "taken")

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        """Takes a stream by rising arrival; what is a sequence is put into that order first."""
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
        """Adds one that follows from something that has just happened.

        Raises:
            SchedulingError: It lies in the past.
        """
        at_s = arrival.request.arrival_s
        if not at_s >= now_s:
            raise SchedulingError(f"request {arrival.request.id!r} follows at {at_s!r} s, which is before now, {now_s!r} s")
        self._pushed += 1
        heapq.heappush(self._extra, (at_s, self._pushed, arrival))
        self._look()

    def pop(self) -> Arrival:
        """Takes the next one; of equal times the stream's goes first.

        Raises:
            SchedulingError: The stream goes back in time.
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
