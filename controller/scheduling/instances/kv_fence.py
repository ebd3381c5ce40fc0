"""The KV fence: decides which requests may run together without overflowing the KV cache (H-MAS Eq. 2 and 4)."""

import math
from collections.abc import Sequence

from hmas.controller.core.messages import LengthBound
from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


def upper_output(request: Request, estimates: Estimates, bounds: Sequence[LengthBound]) -> float:
    """Calibrated upper length of a request's output, l_upper = l_pred + q_(1-eps)(D_b) (Eq. 4), in tokens.

    The prompt's length selects the bucket; bounds of its model stand before those of all. Without any bounds the estimate's own upper
    quantile is used. The client's cap on output and the model's context limit both. The result is at least one token per sequence, and at
    least the client's minimum output.
    """
    upper = estimates.output_tokens_upper
    for bound in bounds:
        fits = bound.prompt_tokens_below == 0 or request.prompt_tokens < bound.prompt_tokens_below
        if fits and (not bound.model or bound.model == request.model):
            upper = estimates.output_tokens + bound.add_tokens * request.sequences
            break
    return max(float(request.sequences), request.min_output_tokens, min(upper, request.output_limit))


def upper_tokens(entry: QueueEntry, bounds: Sequence[LengthBound]) -> int:
    """KV tokens of a request at its calibrated upper length: prompts plus `upper_output`. The answers to one prompt share its tokens.

    The bounds are ignored while the length forecast has not proven right yet.
    """
    estimates, request = entry.estimates, entry.request
    return request.prompt_tokens + math.ceil(upper_output(request, estimates, bounds if estimates.proven else ()))


ESTIMATED_OVER = 4
"""How many times longer than it is a text may look (`hmas.engines.tokens`). Texts of runs of one sign look twice as long."""


def least_tokens(request: Request) -> int:
    """KV tokens that a request takes at least: its prompts and the client's minimum output, at least one token per sequence."""
    return request.prompt_tokens + max(request.sequences, request.min_output_tokens)


def least_sequence_tokens(request: Request) -> int:
    """The same of one sequence of a request. An engine computes sequences that do not fit together one after another."""
    return request.prompt_tokens // request.prompts + max(1, request.min_output_tokens // request.sequences)


def certain_tokens(request: Request) -> int:
    """KV tokens that one sequence of a request takes however wrong the estimate of its prompt is."""
    prompt_tokens = request.prompt_tokens // request.prompts
    least = max(1, request.min_output_tokens // request.sequences)
    return (prompt_tokens if request.counted else prompt_tokens // ESTIMATED_OVER) + least


class Fence:
    """The account of Eq. 2 for one instance: sum of m_KV(l_upper) over the requests in flight <= M_cap (1 - delta_frag).

    If the upper bound of one request alone exceeds the limit, it commits the limit instead: it waits until it has the instance to itself.
    So an estimate that is too high delays a request but never locks it out. The caller has to refuse a request that can never fit
    (`holds` is false).

    The engine's own report corrects the account (`measured`): the difference between the use that it reports and what the requests in
    flight hold by our count is added to the bookings. Then the bookings are the engine's own figure plus what the requests in flight may
    still grow by. Tokens that requests share (a prefix in the engine's cache) are booked for each of them; the engine counts them once.
    """

    __slots__ = (
        "_bytes_per_token",
        "_capacity_tokens",
        "_clipped",
        "_committed",
        "_correction",
        "_held",
        "_limit",
        "_margin",
        "_reported",
    )

    def __init__(self, capacity_tokens: int, bytes_per_token: int, margin: float) -> None:
        self._bytes_per_token = bytes_per_token
        self._margin = margin
        self._held: dict[str, int] = {}
        self._clipped: dict[str, int] = {}
        self._committed = 0
        self._correction = self._reported = 0
        self.resize(capacity_tokens)

    @property
    def limit_bytes(self) -> int:
        """M_cap (1 - delta_frag) in bytes; 0 without a fence."""
        return self._limit

    @property
    def committed_bytes(self) -> int:
        """Bytes that the requests in flight may come to need, corrected by the engine's report; 0 or more."""
        return max(0, self._committed + self._correction) if self._held else 0

    @property
    def free_bytes(self) -> int:
        """Bytes left; less than 0 after the capacity shrank or requests grew past their bounds."""
        return self._limit - self.committed_bytes

    @property
    def share(self) -> float:
        """Committed share of the limit, 0 without a fence."""
        return self.committed_bytes / self._limit if self._limit > 0 else 0.0

    @property
    def capacity_tokens(self) -> int:
        """M_cap in tokens; 0 without a fence."""
        return self._capacity_tokens

    @property
    def limit_tokens(self) -> int:
        """M_cap (1 - delta_frag) in tokens; 0 without a fence."""
        return self._limit // self._bytes_per_token

    def resize(self, capacity_tokens: int) -> None:
        """Sets a new capacity; no request is evicted. A booking that the former limit cut grows with the limit."""
        self._capacity_tokens = capacity_tokens
        self._limit = int(capacity_tokens * (1.0 - self._margin)) * self._bytes_per_token
        for request_id, tokens in self._clipped.items():
            own, held = self._need(tokens), self._held[request_id]
            if own > held:
                self._hold(request_id, own, held)

    def holds(self, tokens: int) -> bool:
        """Whether the cache can hold a request of `tokens` KV tokens at all, with nothing beside it and no margin."""
        return self._capacity_tokens == 0 or tokens <= self._capacity_tokens

    def fits(self, tokens: int) -> bool:
        """Whether a request of `tokens` KV tokens fits on an empty instance with the margin."""
        return self._capacity_tokens == 0 or tokens * self._bytes_per_token <= self._limit

    def admits(self, tokens: int) -> bool:
        """Whether a request of `tokens` KV tokens at its upper length may join now. An empty instance admits every request."""
        return self._capacity_tokens == 0 or self.committed_bytes + self._need(tokens) <= self._limit

    def measured(self, used_tokens: int, held_least: int, held_most: int) -> None:
        """Takes the engine's report about the use of its cache.

        Args:
            used_tokens: Cache tokens in use, as reported.
            held_least: What the requests in flight hold at least by our count, without prompts that the engine may not have computed yet
                and answers of which nothing is known.
            held_most: The most that they hold, including those prompts and answers. A report between the two agrees with our count.
        """
        off = (used_tokens - min(held_most, max(held_least, used_tokens))) * self._bytes_per_token
        # A report below our count is used only once the next report confirms it: a request that the engine has ended may not have ended
        # here yet.
        self._correction = max(off, self._reported)
        self._reported = min(0, off)

    def commit(self, request_id: str, tokens: int) -> None:
        """Books a request, or updates its booking. None commits more than the limit."""
        held = self._held.get(request_id)
        self._hold(request_id, self._need(tokens), held or 0)
        if not self.fits(tokens):
            self._clipped[request_id] = tokens
        elif held is not None:
            self._clipped.pop(request_id, None)

    def booked_bytes(self, request_id: str) -> int:
        """What is booked for a request."""
        return self._held.get(request_id, 0)

    def booked_tokens(self, request_id: str) -> int:
        """The same in tokens."""
        return self.booked_bytes(request_id) // self._bytes_per_token

    def outgrow(self, request_id: str, tokens: int) -> None:
        """Raises the booking of a running request that holds `tokens` tokens, if it has passed its bound."""
        held = self._held.get(request_id)
        if held is None:
            return
        own = tokens * self._bytes_per_token
        if own > held:
            self._hold(request_id, own, held)

    def release(self, request_id: str) -> None:
        """Removes a request's booking."""
        own = self._held.pop(request_id, 0)
        self._clipped.pop(request_id, None)
        self._committed -= own
        # If the engine reported less than was booked for this request, that difference is removed with it.
        self._correction = min(self._correction + own, 0) if self._correction < 0 else self._correction

    def _hold(self, request_id: str, own: int, before: int) -> None:
        self._committed += own - before
        self._held[request_id] = own

    def _need(self, tokens: int) -> int:
        need = tokens * self._bytes_per_token
        return min(need, self._limit) if self._capacity_tokens else need
