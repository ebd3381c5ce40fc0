"""The chunked transfer coding (RFC 9112, section 7.1), strictly: input that two parsers could read differently is refused."""

import re

from hmas.controller.gateway.errors import HttpError

CRLF = b"\r\n"
MAX_SIZE_LINE = 256
"""Most bytes of a chunk's size line with its extensions, which are dropped."""
MAX_TRAILER = 8192
SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[\t ]*;[\t\x20-\x7e]*)?\r\n")
TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class ChunkDecoder:
    """Decodes a chunked body as it arrives, in pieces of any size.

    Attributes:
        done: Whether the end of the body has been read.
        rest: Bytes after the end; they belong to the next message.
    """

    __slots__ = ("_held", "_left", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self._held = b""
        # Bytes of the current chunk that are still to come, including its CRLF; 0 between two chunks, -1 inside the trailer.
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Takes bytes; returns the part of them that belongs to the body.

        Raises:
            HttpError: 400 if they are no valid chunked body.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        parts: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.done:
            if self._left > 0:
                at = self._payload(data, at, parts)
            elif self._left < 0:
                at = self._trailer(data, at)
            else:
                at = self._size(data, at)
        if self.done:
            self.rest += data[at:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _payload(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Takes the available part of a chunk and of the CRLF after it."""
        payload_left = self._left - 2
        if payload_left > 0:
            part = data[at : at + payload_left]
            parts.append(part)
            self._left -= len(part)
            return at + len(part)
        mark = data[at : at + self._left]
        if mark != CRLF[2 - self._left :][: len(mark)]:
            raise HttpError(400, f"a chunk of the body does not end where its size says: {mark!r} instead of a line end")
        self._left -= len(mark)
        return at + len(mark)

    def _size(self, data: bytes, at: int) -> int:
        size_line = SIZE_LINE.match(data, at, at + MAX_SIZE_LINE)
        if size_line is None:
            held = data[at:]
            if len(held) >= MAX_SIZE_LINE or b"\n" in held or not _may_begin_size(held):
                raise HttpError(400, f"a chunk of the body has no size, but {held[:20]!r}")
            self._held = held
            return len(data)
        size = int(size_line[1], 16)
        self._left = size + 2 if size else -1
        return size_line.end()

    def _trailer(self, data: bytes, at: int) -> int:
        """Reads and drops trailer fields up to the empty line."""
        while True:
            end = data.find(CRLF, at)
            if end == at:
                self.done = True
                self._left = 0
                return at + 2
            if end < 0:
                break
            if not TRAILER_LINE.fullmatch(data, at, end):
                raise HttpError(400, f"the body's trailer holds {data[at : at + 20]!r}, which is no field")
            at = end + 2
        self._held = data[at:]
        if len(self._held) > MAX_TRAILER or b"\n" in self._held:
            raise HttpError(400, "the body's trailer has no end")
        return len(data)


def _may_begin_size(held: bytes) -> bool:
    digits = held.partition(b";")[0].rstrip(b"\r\t ")
    return len(digits) <= 15 and (not digits or re.fullmatch(rb"[0-9A-Fa-f]+", digits) is not None)
