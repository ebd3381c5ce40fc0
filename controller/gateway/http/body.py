"""Reads a request's body as it arrives, within a bound for each body and one for all bodies together."""

from hmas.controller.gateway.http.chunked import ChunkDecoder
from hmas.controller.gateway.http.head import RequestHead

SMALL_BODY_BYTES = 65_536
"""Bodies up to this size may use all of the memory for bodies; larger ones leave a quarter of it free. So clients with large bodies do not
lock out the others."""


class BodyMemory:
    """Counts the bytes of all bodies that are held: from their arrival until their request ends.

    Attributes:
        held: Bytes held now.
        limit: Most bytes that may be held; `limit_large` holds for bodies larger than `SMALL_BODY_BYTES`.
    """

    __slots__ = ("held", "limit", "limit_large")

    def __init__(self, limit: int, largest_body: int) -> None:
        """Creates an empty account. One body of `largest_body` bytes always fits, whatever `limit` is."""
        self.held = 0
        self.limit = max(limit, largest_body)
        self.limit_large = max(limit - limit // 4, largest_body)


class BodyReader:
    """Collects one body of at most `limit` bytes.

    Attributes:
        complete: Whether the whole body has arrived.
        settled: Whether there is nothing more to wait for: the body is complete or refused. The bytes of a refused body are dropped.
        too_large: Whether the body is, or declares to be, larger than allowed.
        no_room: Whether the body was refused because all bodies together would have become too large.
        memory: The account of all bodies.
        rest: Bytes that arrived after the body.
    """

    __slots__ = (
        "_buffer",
        "_chunks",
        "_first",
        "_held",
        "_large",
        "_left",
        "_size",
        "complete",
        "limit",
        "memory",
        "no_room",
        "rest",
        "settled",
        "too_large",
    )

    def __init__(self, head: RequestHead, limit: int, memory: BodyMemory) -> None:
        self._chunks = ChunkDecoder() if head.chunked else None
        self._left = head.content_length
        self._large = head.content_length > SMALL_BODY_BYTES
        self.limit = limit
        self.memory = memory
        # A body that arrives in one piece is kept as it came. Pieces go into one buffer: a list of many small ones takes more memory.
        self._first = b""
        self._buffer: bytearray | None = None
        self._size = self._held = 0
        self.complete = self._chunks is None and not self._left
        self.too_large = self._left > limit
        self.no_room = False
        self.settled = self.complete or self.too_large
        self.rest = b""

    @property
    def begun(self) -> bool:
        """Whether any part of the body has arrived."""
        return self._size > 0

    def feed(self, data: bytes) -> None:
        """Takes bytes that have arrived.

        Raises:
            HttpError: 400 if they are no valid chunked body.
        """
        if self._chunks is not None:
            self._take(self._chunks.feed(data))
            self.complete = self._chunks.done
            self.rest = self._chunks.rest
        elif len(data) >= self._left:
            self._take(data[: self._left])
            self.complete = True
            self.rest = data[self._left :]
        else:
            self._left -= len(data)
            self._take(data)
        self.settled = self.complete or self.too_large or self.no_room

    def whole(self) -> bytes:
        """The whole body."""
        if self._buffer is not None:
            self._first = bytes(self._buffer)
            self._buffer = None
        return self._first

    def release(self) -> None:
        """Drops the body and ends its account. May be called more than once."""
        self._first = b""
        self._buffer = None
        self.memory.held -= self._held
        self._held = 0

    def _take(self, data: bytes) -> None:
        if not data or self.too_large or self.no_room:
            return
        memory = self.memory
        size = self._size + len(data)
        if size > SMALL_BODY_BYTES:
            self._large = True
        if size > self.limit:
            self.too_large = True
        elif memory.held + len(data) > (memory.limit_large if self._large else memory.limit):
            self.no_room = True
        if self.too_large or self.no_room:
            self.release()
            return
        if not self._size:
            self._first = data
        elif self._buffer is None:
            self._buffer = bytearray(self._first)
            self._first = b""
            self._buffer += data
        else:
            self._buffer += data
        self._size = size
        self._held += len(data)
        memory.held += len(data)
