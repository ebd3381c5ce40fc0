"""The head of an answer as bytes."""

from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

SERVER = "h-mas"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
STATUS_LINES: Mapping[int, str] = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class CommonHeaders:
    """The fields that every answer ends with. The date in them is renewed by `renew`, once a second, and not for each answer."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = ""
        self.renew()

    def renew(self) -> None:
        """Takes the time from the system's clock."""
        self.text = f"date: {formatdate(usegmt=True)}\r\nserver: {SERVER}\r\n"


def answer_head(status: int, headers: Mapping[str, str], framing: str, stamp: CommonHeaders) -> bytes:
    """Status line and fields, with the empty line.

    Args:
        status: The status.
        headers: Names in lower case.
        framing: Further lines, each with its end: how long the body is, and what becomes of the connection.
        stamp: Date and server.

    Raises:
        ValueError: A header would break out of its line.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError(f"a header of the answer has a line break in it: {dict(headers)!r}")
    first = STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n"
    return f"{first}{lines}{framing}{stamp.text}\r\n".encode("latin-1", "replace")
