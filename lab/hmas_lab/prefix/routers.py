"""Routers of other gateways by their published rules, and what is counted of any router's requests."""

import hashlib
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from hmas.controller.core.placement import Choice, InstanceState, Routable, Router
from hmas.controller.core.types import Request
from hmas.controller.routing.prefix_index import PrefixIndex
from hmas.engines.sim.model import EngineModel

CACHE_THRESHOLD = 0.3
BALANCE_ABS, BALANCE_REL = 64, 1.5
"""Defaults of sglang-router and vllm-router."""
POINTS = 64
"""Places of an instance on the ring."""
INDEX_BLOCKS = 10_000_000
"""More than any run has: their trees hold 2^26 characters of each instance."""


class CacheAware:
    """`cache_aware` of sglang-router and vllm-router, by their documentation.

    If the most loaded instance has more than `BALANCE_ABS` requests more than the least loaded one, and `BALANCE_REL` times as many, the
    request goes to the least loaded one. Else it goes to the instance that was sent the longest beginning of this prompt, if that is more
    than `CACHE_THRESHOLD` of it, and else to the least loaded one.
    """

    uses_blocks: ClassVar[bool] = True

    def __init__(self) -> None:
        self._index = PrefixIndex(INDEX_BLOCKS)

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterable[Choice]:  # noqa: ARG002  the protocol's
        """The chosen instance first, the others by load."""
        by_load = sorted(instances, key=lambda one: one.in_flight)
        least, most = by_load[0].in_flight, by_load[-1].in_flight
        blocks = entry.request.blocks
        if blocks and not (most - least > BALANCE_ABS and most > BALANCE_REL * least):
            matched = self._index.matched(blocks)
            longest = max((matched.get(one.name, 0) for one in by_load), default=0)
            if longest > CACHE_THRESHOLD * len(blocks):
                by_load.sort(key=lambda one: matched.get(one.name, 0) < longest)
        return [Choice(one.name, f"{one.in_flight} in flight") for one in by_load]

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """The instance has the prompt from now on."""
        self._index.sent(entry.request.blocks, instance)


class ConsistentHash:
    """`consistent_hash` of vllm-router, and session routing of the production stack: the session's place on a ring of instances."""

    def __init__(self, names: Collection[str]) -> None:
        self._ring = sorted((_point(f"{name}-{number}"), name) for name in names for number in range(POINTS))

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterable[Choice]:  # noqa: ARG002  likewise
        """The next instance on the ring first; a request without a session has a place of its own."""
        place = bisect(self._ring, (_point(entry.request.session or entry.request.id), ""))
        there = {one.name for one in instances}
        order = dict.fromkeys(name for _, name in (*self._ring[place:], *self._ring[:place]) if name in there)
        return [Choice(name, "its place on the ring") for name in order]


def _point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Watched:
    """Another router, whose requests' cached tokens are counted.

    Attributes:
        prompt_tokens, cached_tokens: Of all that ended and of which the engine reported cached tokens.
        requests: By instance, how many were sent there.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.uses_blocks = bool(getattr(router, "uses_blocks", False))
        self.rank = router.rank
        self._sent: Callable[..., None] | None = getattr(router, "sent", None)
        self._ended: Callable[..., None] | None = getattr(router, "ended", None)
        self._left: Callable[..., None] | None = getattr(router, "left", None)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.requests: dict[str, int] = {}

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:
        """Counts the request."""
        self.requests[instance] = self.requests.get(instance, 0) + 1
        if self._sent is not None:
            self._sent(entry, instance, now_s)

    def ended(self, request: Request, instance: str, cached_tokens: int | None) -> None:
        """Counts its tokens."""
        if cached_tokens is not None:
            self.prompt_tokens += request.prompt_tokens
            self.cached_tokens += cached_tokens
        if self._ended is not None:
            self._ended(request, instance, cached_tokens)

    def left(self, instance: str) -> None:
        """Passed on."""
        if self._left is not None:
            self._left(instance)


class InTheCaches:
    """What the simulated engines have cached of one prompt, as their KV events would say without delay (`EngineCached`)."""

    __slots__ = ("_engines", "_hash_tokens", "_hashes")

    def __init__(self, engines: Mapping[str, EngineModel], hashes: tuple[int, ...], hash_tokens: int) -> None:
        self._engines = engines
        self._hashes = hashes
        self._hash_tokens = hash_tokens

    @property
    def complete(self) -> Collection[str]:
        """All of them."""
        return self._engines.keys()

    def look(self) -> tuple[Mapping[str, int], int]:
        """See `EngineCached.look`."""
        each = self._hash_tokens
        found = {name: model.batch.pool.cached(self._hashes) * each for name, model in self._engines.items()}
        return {name: tokens for name, tokens in found.items() if tokens}, len(self._hashes) * each


def cached_at_best(seen: set[int], hashes: Sequence[int]) -> int:
    """How many leading blocks of a prompt an endless cache that all instances share would have; it has the prompt from now on."""
    found = 0
    for block in hashes:
        if block not in seen:
            break
        found += 1
    seen.update(hashes)
    return found
