"""The chunked transfer coding (RFC 9112, section 7.1), strictly: input that two parsers could read differently is refused."""

import re

from hmas.controller.gateway.errors import HttpError

CRLF = b"\r\n"
MAX_SIZE_LINE = 256
"""Most bytes of a chunk's size line with its extensions, which are dropped."""
MAX_TRAILER = 8192
SHORT_CHUNK_BYTES = 16
MAX_SHORT_CHUNKS = 16_384
"""Most chunks of one body that are shorter than `SHORT_CHUNK_BYTES`. A chunk costs the same time however short it is, so a body in chunks
of one byte would keep the event loop from its other work."""
SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[\t ]*;[\t\x20-\x7e]*)?\r\n")
TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class ChunkDecoder:
    """Decodes a chunked body as it arrives, in pieces of any size.

    Attributes:
        done: Whether the end of the body has been read.
        rest: Bytes after the end; they belong to the next message.
    """

    __slots__ = ("_held", "_left", "_short_chunks", "_trailer_bytes", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self._held = b""
        self._short_chunks = self._trailer_bytes = 0
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
                at = self._next_chunks(data, at, parts)
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

    def _next_chunks(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Takes all chunks that have arrived whole, and the size line of the one after them."""
        end = len(data)
        while True:
            size_line = SIZE_LINE.match(data, at, at + MAX_SIZE_LINE)
            if size_line is None:
                at = self._part_of_size_line(data, at)
                break
            size = int(size_line[1], 16)
            at = size_line.end()
            if not size:
                self._left = -1
                break
            if size < SHORT_CHUNK_BYTES:
                self._short_chunks += 1
                if self._short_chunks > MAX_SHORT_CHUNKS:
                    text = f"the body has more than {MAX_SHORT_CHUNKS} chunks shorter than {SHORT_CHUNK_BYTES} bytes; send longer ones"
                    raise HttpError(400, text)
            after = at + size
            if data[after : after + 2] != CRLF:
                # The chunk has not arrived whole, or its end is wrong.
                self._left = size + 2
                break
            parts.append(data[at:after])
            at = after + 2
            if at >= end:
                break
        return at

    def _part_of_size_line(self, data: bytes, at: int) -> int:
        """Keeps the begun size line until the rest of it arrives."""
        held = data[at : at + MAX_SIZE_LINE]
        if len(held) >= MAX_SIZE_LINE or b"\n" in held or not _may_begin_size(held):
            raise HttpError(400, f"a chunk of the body has no size, but {held[:20]!r}")
        self._held = held
        return len(data)

    def _trailer(self, data: bytes, at: int) -> int:
        """Reads and drops trailer fields up to the empty line."""
        while True:
            end = data.find(CRLF, at)
            if self._trailer_bytes + max(end, at) - at > MAX_TRAILER:
                raise HttpError(400, f"the body's trailer is longer than {MAX_TRAILER} bytes")
            if end == at:
                self.done = True
                self._left = 0
                return at + 2
            if end < 0:
                break
            if not TRAILER_LINE.fullmatch(data, at, end):
                raise HttpError(400, f"the body's trailer holds {data[at : at + 20]!r}, which is no field")
            self._trailer_bytes += end + 2 - at
            at = end + 2
        self._held = data[at:]
        if self._trailer_bytes + len(self._held) > MAX_TRAILER or b"\n" in self._held:
            raise HttpError(400, f"the body's trailer has no end within {MAX_TRAILER} bytes")
        return len(data)


def _may_begin_size(held: bytes) -> bool:
    digits = held.partition(b";")[0].rstrip(b"\r\t ")
    return len(digits) <= 15 and (not digits or re.fullmatch(rb"[0-9A-Fa-f]+", digits) is not None)
