"""Bounds on what a request's JSON body may hold, checked before and after it is parsed. Pure.

A parsed document takes up to 25 times the memory of its bytes, and parsing takes time by the number of values rather than by bytes. So the
bytes are counted first, which costs a tenth of parsing them: each list, object, key and value needs a character of its own. Such a
character is about a token to a model too, so that a prompt that any model can take stays far below the bounds.
"""

import json
from typing import Any

import orjson

from hmas.controller.core.errors import SHOWN_CHARS, BodyError, TooManyError

BODY = "the request body"
"""The `field` of an error that concerns the body as a whole."""

LARGE_BODY_BYTES = 256 << 10
"""Smaller bodies cannot exceed the bounds on structure."""
STRUCTURES_MOST = 1 << 18
"""Most lists, objects and keys, counted by `[`, `{` and `:`."""
VALUES_MOST = 1 << 19
"""Most values, counted by `,`."""

MESSAGES_MOST = 8192
PARTS_MOST = 8192
"""Most content parts of all messages together."""
TOOLS_MOST = 1024
PROMPTS_MOST = 2048
CHOICES_MOST = 1024
SEQUENCES_MOST = 4096
"""Most answers of one request: its prompts times `n` or `best_of`."""


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


class BodyStructure:
    """Counts of a body's structural characters, in one or several pieces.

    Attributes:
        structures: `[`, `{` and `:` counted so far. `colons`: `:` alone. `values`: `,`.
    """

    __slots__ = ("colons", "structures", "values")

    def __init__(self) -> None:
        self.structures = 0
        self.colons = 0
        self.values = 0

    def count(self, body: bytes, start: int, end: int) -> None:
        """Counts one piece.

        Raises:
            BodyError: The body has too many lists, objects, keys or values. Characters inside texts count too.
        """
        colons = body.count(b":", start, end)
        self.colons += colons
        self.structures += colons + body.count(b"[", start, end) + body.count(b"{", start, end)
        self.values += body.count(b",", start, end)
        if self.structures > STRUCTURES_MOST:
            what = "lists, objects and keys, counted by its characters [ { and : so far"
            raise TooManyError(BODY, self.structures, STRUCTURES_MOST, what)
        if self.values > VALUES_MOST:
            raise TooManyError(BODY, self.values, VALUES_MOST, "values, counted by its commas so far")


def repeats_a_key(body: bytes, document: object, colons: int) -> bool:
    """Whether an object in the body has the same key twice. Parsers differ in which value they take then.

    A parsed document has one value of such a key, so that it is written with fewer colons than the body has: each key has one, and those
    inside texts are the same on both sides. In a body they may be escaped; in what is written they never are.

    Args:
        body: The body.
        document: What it was parsed to.
        colons: How often `:` stands in the body.

    Raises:
        BodyError: Its lists and objects are nested too deep.
    """
    if b"u003a" in body or b"u003A" in body:
        # A backslash that is itself escaped does not escape what follows it.
        unescaped = body.replace(b"\\\\", b"")
        colons += unescaped.count(b"\\u003a") + unescaped.count(b"\\u003A")
    try:
        return orjson.dumps(document).count(b":") != colons
    except orjson.JSONEncodeError:
        raise BodyError(BODY, "nested too deep", "254 levels of lists and objects") from None


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
