"""The newest ids, to recognise what is delivered twice. Pure, bounded."""

from collections import OrderedDict


class RecentIds:
    """The newest `limit` ids in the order in which they were first added; above the limit the oldest is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, identity: str) -> bool:
        """Adds an id; returns whether it is new."""
        if identity in self._ids:
            return False
        self._ids[identity] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True

    def discard(self, identity: str) -> bool:
        """Forgets an id; returns whether it was known."""
        if identity not in self._ids:
            return False
        del self._ids[identity]
        return True

    def __contains__(self, identity: object) -> bool:
        return identity in self._ids

    def __len__(self) -> int:
        return len(self._ids)
