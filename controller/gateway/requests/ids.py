"""Ids of requests: 32 random hexadecimal digits, all of one length so that an engine's `abort` can match them."""

import os

_BYTES = 16
_AT_ONCE = 64


class Ids:
    """Creates ids. Random bytes are read by the kilobyte: one call to the kernel serves 64 requests."""

    __slots__ = ("_at", "_digits")

    def __init__(self) -> None:
        self._digits = ""
        self._at = 0

    def new(self) -> str:
        """Returns an unpredictable id."""
        at = self._at
        if at >= len(self._digits):
            self._digits = os.urandom(_BYTES * _AT_ONCE).hex()
            at = 0
        self._at = at + 2 * _BYTES
        return self._digits[at : self._at]
