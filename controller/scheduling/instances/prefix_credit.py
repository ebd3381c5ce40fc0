"""How many of a request's prompt tokens it will share with others in flight, learned from what engines said was cached."""

from collections import OrderedDict, deque

from hmas.controller.core.types import Request

_KEEP = 8
_LEAST = 2
_KEYS = 4096


class PrefixCredit:
    """Per prefix key: the least that was found in the cache of the last 8 requests with that key, once there are two.

    The key is what the client says belongs together (session or `prompt_cache_key`), within its tenant and model; prompts are
    never looked at. The least, because a request that found less shows that the others' prefix is not all shared or not kept:
    one that found nothing ends the credit until it has passed out of the window. So it is never more than was seen. One table for
    each instance: a cache is the instance's own. The 4096 keys last learned are kept.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str, str], deque[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def learn(self, request: Request, cached_tokens: int) -> None:
        """A request has ended, and so many of its prompt's tokens came from the cache, as the engine says."""
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
        """Prompt tokens that it will find cached; one at least is always computed."""
        seen = self._seen.get(prefix_key(request)) if request.session else None
        if seen is None or len(seen) < _LEAST:
            return 0
        return max(0, min(*seen, request.prompt_tokens - 1))


def prefix_key(request: Request) -> tuple[str, str, str]:
    """What requests with the same prefix have in common."""
    return request.tenant, request.model, request.session
