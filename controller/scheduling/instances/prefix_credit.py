"""Estimates how many prompt tokens a request will share with others in flight, from the cached tokens that engines report."""

from collections import OrderedDict, deque

from hmas.controller.core.types import Request

_KEEP = 8
_LEAST = 2
_KEYS = 4096


class PrefixCredit:
    """Per prefix key: the smallest number of cached tokens among the last 8 requests with that key, once there are two.

    The key is what the client declares as belonging together (session or `prompt_cache_key`), within its tenant and model; the prompt is
    never read. The minimum counts because a request that found less shows that the prefix is not fully shared or not kept in the cache: a
    request that found nothing ends the credit until it leaves the window. So the credit never exceeds what was measured. Each instance has
    its own table, because the cache belongs to the instance. The 4096 keys that were updated last are kept.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str, str], deque[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def learn(self, request: Request, cached_tokens: int) -> None:
        """Records how many prompt tokens of an ended request came from the cache, as the engine reports."""
        if not request.session:
            return
        key = prefix_key(request)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = deque(maxlen=_KEEP)
            if len(self._seen) > _KEYS:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        seen.append(max(0, cached_tokens))

    def expected(self, request: Request) -> int:
        """Prompt tokens that the request is expected to find cached; the engine always computes at least one."""
        seen = self._seen.get(prefix_key(request)) if request.session else None
        if seen is None or len(seen) < _LEAST:
            return 0
        return max(0, min(*seen, request.prompt_tokens - 1))


def prefix_key(request: Request) -> tuple[str, str, str]:
    """The key that requests with the same prefix have in common."""
    return request.tenant, request.model, request.session
