"""Reads a request's body as it arrives."""

from hmas.controller.gateway.http.chunked import ChunkDecoder
from hmas.controller.gateway.http.head import RequestHead


class BodyReader:
    """Collects one body of at most `limit` bytes.

    Attributes:
        complete: Whether the whole body has arrived.
        too_large: Whether the body is, or declares to be, larger than allowed; its bytes are dropped then.
        rest: Bytes that arrived after the body.
    """

    __slots__ = ("_chunks", "_left", "_parts", "_size", "complete", "limit", "rest", "too_large")

    def __init__(self, head: RequestHead, limit: int) -> None:
        self._chunks = ChunkDecoder() if head.chunked else None
        self._left = head.content_length
        self.limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.complete = self._chunks is None and not self._left
        self.too_large = self._left > limit
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

    def whole(self) -> bytes:
        """The whole body."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self.limit:
            self.too_large = True
        if self.too_large:
            self._parts.clear()
        elif data:
            self._parts.append(data)
