"""The KV fence: which requests may run together without the KV cache overflowing (H-MAS Eq. 2 and 4)."""

import math
from collections.abc import Hashable, Sequence

from hmas.controller.core.messages import LengthBound
from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


def upper_output(request: Request, estimates: Estimates, bounds: Sequence[LengthBound]) -> float:
    """Calibrated upper length of a request's output, l_upper = l_pred + q_(1-eps)(D_b) (Eq. 4), in tokens.

    The bucket is that of the prompt's length. Without any bounds the estimate's own upper quantile stands in. The client's cap on output
    and the model's context bound both; at least one token counts, and what the client insists on.
    """
    upper = estimates.output_tokens_upper
    for bound in bounds:
        if bound.prompt_tokens_below == 0 or request.prompt_tokens < bound.prompt_tokens_below:
            upper = estimates.output_tokens + bound.add_tokens
            break
    return max(1.0, request.min_output_tokens, min(upper, request.output_limit))


def upper_tokens(entry: QueueEntry, bounds: Sequence[LengthBound]) -> int:
    """KV tokens of a request at its calibrated upper length: prompt plus `upper_output`.

    Bounds do not count where the forecast of the length has not proven right yet.
    """
    estimates, request = entry.estimates, entry.request
    return request.prompt_tokens + math.ceil(upper_output(request, estimates, bounds if estimates.proven else ()))


def least_tokens(request: Request) -> int:
    """KV tokens that a request is certain to take: its prompt and the output that the client insists on, one token at least."""
    return request.prompt_tokens + max(1, request.min_output_tokens)


class Fence:
    """The account of Eq. 2 for one instance: sum of m_KV(l_upper) over those in flight <= M_cap (1 - delta_frag).

    A request whose upper bound alone passes the limit commits the limit instead: it waits until it has the instance to
    itself. So a guess that is too high delays a request but never locks it out. What cannot fit whatever the guess
    (`fits` is false) has to be refused by the caller.

    The engine's own report corrects the account: what it says is in use beyond, or short of, what the requests in flight hold by our count
    is added to what is booked (`measured`). Then what is booked is the engine's own figure and what those in flight may still grow by.

    Tokens that requests in flight share (a prefix in the engine's cache) are booked once for all of them, from the first that
    comes to the last that goes. What a request finds cached of others that have ended earns it nothing: such blocks count as free
    in the engine and are taken out of the free ones by whoever holds them next.
    """

    __slots__ = (
        "_bytes_per_token",
        "_capacity_tokens",
        "_committed",
        "_correction",
        "_held",
        "_limit",
        "_margin",
        "_prefixes",
        "_reported",
        "_shares",
    )

    def __init__(self, capacity_tokens: int, bytes_per_token: int, margin: float) -> None:
        self._bytes_per_token = bytes_per_token
        self._margin = margin
        self._held: dict[str, int] = {}
        self._shares: dict[str, tuple[Hashable, int]] = {}
        self._prefixes: dict[Hashable, list[int]] = {}
        self._committed = 0
        self._correction = self._reported = 0
        self.resize(capacity_tokens)

    @property
    def limit_bytes(self) -> int:
        """M_cap (1 - delta_frag) in bytes; 0 without a fence."""
        return self._limit

    @property
    def committed_bytes(self) -> int:
        """Bytes that those in flight may come to need, as corrected by the engine's report; 0 or more."""
        return max(0, self._committed + self._correction) if self._held else 0

    @property
    def free_bytes(self) -> int:
        """What is left; less than 0 after the capacity shrank or requests grew past their bounds."""
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
        """Takes a new capacity; nobody is evicted."""
        self._capacity_tokens = capacity_tokens
        self._limit = int(capacity_tokens * (1.0 - self._margin)) * self._bytes_per_token

    def fits(self, tokens: int) -> bool:
        """Whether a request of so many tokens fits at all, on an empty instance."""
        return self._capacity_tokens == 0 or tokens * self._bytes_per_token <= self._limit

    def admits(self, tokens: int, prefix: Hashable = None, shared: int = 0) -> bool:
        """Whether a request may join now. An empty instance admits every request, as none commits more than the limit.

        Args:
            tokens: At its upper length, the shared ones included.
            prefix: What it shares tokens by, None for nothing.
            shared: How many of them it shares.
        """
        if self._capacity_tokens == 0:
            return True
        need = self._need(tokens)
        if prefix is not None:
            need -= min(need, shared * self._bytes_per_token, self._prefixes.get(prefix, (0, 0))[0])
        return self.committed_bytes + need <= self._limit

    def measured(self, used_tokens: int, held_least: int, held_most: int) -> None:
        """The engine reports the use of its cache.

        Args:
            used_tokens: Tokens of the cache in use, by its report.
            held_least: What those in flight hold by our count at least, without prompts that the engine may not have computed yet.
            held_most: The same at most, with those prompts. A report between the two agrees with our count.
        """
        off = (used_tokens - min(held_most, max(held_least, used_tokens))) * self._bytes_per_token
        # A report below our count counts once the next one confirms it: what has ended in the engine may not have ended here yet.
        self._correction = max(off, self._reported)
        self._reported = min(0, off)

    def commit(self, request_id: str, tokens: int, prefix: Hashable = None, shared: int = 0) -> None:
        """Books a request, or books the same one anew; what it shares is settled by the first booking."""
        held = self._held.get(request_id)
        if held is None and prefix is not None and shared:
            self._share(request_id, prefix, min(self._need(tokens), shared * self._bytes_per_token))
        own = self._need(tokens) - self._shares.get(request_id, _NOTHING)[1]
        self._hold(request_id, max(0, own), held or 0)

    def outgrow(self, request_id: str, tokens: int) -> None:
        """A running request holds so many tokens: raises its booking where it has passed its bound."""
        held = self._held.get(request_id)
        if held is None:
            return
        own = tokens * self._bytes_per_token - self._shares.get(request_id, _NOTHING)[1]
        if own > held:
            self._hold(request_id, own, held)

    def release(self, request_id: str) -> None:
        """Takes a request's booking out, and what it shared once nobody shares it any more."""
        own = self._held.pop(request_id, 0)
        self._committed -= own
        # What it held less than its booking, by the engine's report, goes with it.
        self._correction = min(self._correction + own, 0) if self._correction < 0 else self._correction
        prefix, shared = self._shares.pop(request_id, _NOTHING)
        if shared:
            booked = self._prefixes[prefix]
            booked[1] -= 1
            if not booked[1]:
                self._committed -= booked[0]
                del self._prefixes[prefix]

    def _share(self, request_id: str, prefix: Hashable, shared: int) -> None:
        """Books the bytes of a prefix once: as many as the one that shares the most of it does."""
        booked = self._prefixes.setdefault(prefix, [0, 0])
        self._committed += max(0, shared - booked[0])
        booked[0] = max(shared, booked[0])
        booked[1] += 1
        self._shares[request_id] = (prefix, shared)

    def _hold(self, request_id: str, own: int, before: int) -> None:
        self._committed += own - before
        self._held[request_id] = own

    def _need(self, tokens: int) -> int:
        need = tokens * self._bytes_per_token
        return min(need, self._limit) if self._capacity_tokens else need


_NOTHING: tuple[Hashable, int] = (None, 0)
