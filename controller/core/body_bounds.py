"""Bounds on what a request's JSON body may hold, checked before and after it is parsed. Pure.

A parsed document takes up to 25 times the memory of its bytes, and parsing takes time by the number of values rather than by bytes. So the
bytes are counted first, which costs a tenth of parsing them: each list, object, key and value needs a character of its own. Such a
character is about a token to a model too, so that a prompt that any model can take stays far below the bounds.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from hmas.controller.core.errors import SHOWN_CHARS, BodyError, TooManyError

BODY = "the request body"
"""The `field` of an error that concerns the body as a whole."""

VALUES_MOST = 5 << 16
"""Most values of a body, counted by `,`. A list, an object or a key takes longer to build: each `[`, `{` and `:` counts as three values."""
STRUCTURE_VALUES = 3
LARGE_BODY_BYTES = VALUES_MOST // STRUCTURE_VALUES
"""A body of no more bytes cannot hold too many values."""
PIECE_BYTES = 1 << 20
"""Bytes of a large body that are counted at once. `PIECE_VALUES`: values of its document."""
PIECE_VALUES = 10_000
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")
_ESCAPE_BYTES = len("\\u003a")

MESSAGES_MOST = 8192
PARTS_MOST = 8192
"""Most content parts of all messages together."""
TOOLS_MOST = 1024
PROMPTS_MOST = 2048
CHOICES_MOST = 1024
SEQUENCES_MOST = 4096
"""Most answers of one request: its prompts times `n` or `best_of`."""
INT_MOST = (1 << 63) - 1
"""The largest number that engines take."""
NO_CAP = -1
"""A cap on output that llama.cpp and others take as none; vLLM refuses it."""
_WHOLE = re.compile(r"\s*([+-]?[0-9](?:_?[0-9]){0,18})(?:\.0+)?\s*")


def bounded_list(field: str, value: object, limit: int, allowed: str) -> list[Any]:
    """Returns `value`, a list of at most `limit` entries.

    Raises:
        BodyError: It is no list (`allowed` is what the message allows instead), or too long.
    """
    if not isinstance(value, list):
        raise BodyError(field, value, allowed)
    if len(value) > limit:
        raise TooManyError(field, len(value), limit)
    return value


def whole_number(value: object) -> int | None:
    """The whole number that engines read in a value: 8 in 8, 8.0, "8" and "8.0". None if there is none; true and false are no numbers."""
    if isinstance(value, str):
        found = _WHOLE.fullmatch(value)
        return int(found[1]) if found else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def bounded_int(field: str, value: object, low: int, high: int) -> int | None:
    """Returns `value`, a whole number from `low` to `high`; None for null.

    Raises:
        BodyError: It is no such number.
    """
    if value is None:
        return None
    number = whole_number(value)
    if number is None or not low <= number <= high:
        raise BodyError(field, value, f"a whole number from {low} to {high}")
    return number


def bounded_cap(field: str, value: object, least: int = 1) -> int | None:
    """Returns a cap on output in tokens: `NO_CAP`, or a whole number from `least` on; None for null.

    Raises:
        BodyError: It is no such number.
    """
    number = whole_number(value)
    if value is None or number == NO_CAP:
        return number
    if number is None or not least <= number <= INT_MOST:
        raise BodyError(field, value, f"{NO_CAP} for no cap, or a whole number from {least} to {INT_MOST}")
    return number


class BodyStructure:
    """Counts of a body's structural characters, piece by piece.

    Attributes:
        counted: Bytes counted so far.
        values: Values in them, with weights. `colons`: `:` in them, escaped ones included.
    """

    __slots__ = ("colons", "counted", "values")

    def __init__(self) -> None:
        self.counted = 0
        self.values = 0
        self.colons = 0

    def count(self, body: bytes) -> bool:
        """Counts the next piece; returns whether any is left.

        Raises:
            BodyError: The body has too many values. Characters inside texts count too.
        """
        piece = _piece(body, self.counted)
        self.counted += len(piece)
        colons = piece.count(b":")
        self.colons += colons + _escaped_colons(piece)
        self.values += piece.count(b",") + STRUCTURE_VALUES * (colons + piece.count(b"[") + piece.count(b"{"))
        if self.values > VALUES_MOST:
            what = "or more values (counted by its commas, and as three by each [ { and :)"
            raise TooManyError(BODY, self.values, VALUES_MOST, what)
        return self.counted < len(body)


def colons_of_body(body: bytes) -> int:
    """How often `:` stands in a small body, escaped ones included."""
    return body.count(b":") + _escaped_colons(body)


def colons_of_document(document: object) -> int:
    """How often `:` would stand in a document that is written as JSON: for each key, and inside keys and texts.

    A parsed document has one value of each key. So if an object in a body has the same key twice, its document has fewer colons than the
    body. This holds for no other body.
    """
    try:
        return orjson.dumps(document).count(b":")
    except orjson.JSONEncodeError:
        # Nested deeper than this writer goes.
        return sum(colons_by_piece(document))


def colons_by_piece(document: object) -> Iterator[int]:
    """The addends of `colons_of_document`, each the work of a few milliseconds at most."""
    rest: list[Any] = [document]
    colons = seen = 0
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            colons += value.count(":")
        elif isinstance(value, dict):
            colons += len(value)
            rest += value
            rest += value.values()
        elif isinstance(value, list):
            rest += value
        seen += 1
        if seen % PIECE_VALUES == 0:
            yield colons
            colons = 0
    yield colons


def _piece(body: bytes, start: int) -> bytes:
    """The next piece of a body. It begins and ends between the characters of a text, not inside an escaped one."""
    end = start + PIECE_BYTES
    if end >= len(body):
        return body[start:]
    last = body.rfind(b"\\", end - _ESCAPE_BYTES, end)
    if last < 0:
        return body[start:end]
    piece = body[start : last + 1]
    # A backslash at an even place of a row of them is itself escaped.
    begins_escape = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
    return piece[:-1] if begins_escape else body[start:end]


def _escaped_colons(piece: bytes) -> int:
    if not _ESCAPED_COLON.search(piece):
        return 0
    # A backslash that is itself escaped does not escape what follows it.
    plain = piece.replace(b"\\\\", b"")
    return plain.count(b"\\u003a") + plain.count(b"\\u003A")


def repeated_key(body: bytes) -> str:
    """The first key that stands twice in one object of a body, cut to 80 characters; empty if there is none. Slow: for a refusal's text."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                repeated.append(key)
            seen.add(key)

    try:
        json.loads(body, object_pairs_hook=look)
    except (ValueError, RecursionError):
        # The body was parsed before: the standard library's parser only allows less depth.
        return ""
    return repeated[0][:SHOWN_CHARS] if repeated else ""
