"""The head of an answer as bytes."""

from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

SERVER = "h-mas"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
STATUS_LINES: Mapping[int, str] = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class CommonHeaders:
    """The header fields at the end of every answer. `renew` updates their date once a second, not for each answer."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = ""
        self.renew()

    def renew(self) -> None:
        """Updates the date from the system's clock."""
        self.text = f"date: {formatdate(usegmt=True)}\r\nserver: {SERVER}\r\n"


def answer_head(status: int, headers: Mapping[str, str], framing: str, common_headers: CommonHeaders) -> bytes:
    """Returns status line and header fields, including the empty line.

    Args:
        status: The status.
        headers: Header fields, with names in lower case.
        framing: Further lines, each with its line end: the length of the body, and whether the connection closes.
        common_headers: The common header fields.

    Raises:
        ValueError: A header contains a line break.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError(f"a header of the answer has a line break in it: {dict(headers)!r}")
    first = STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n"
    return f"{first}{lines}{framing}{common_headers.text}\r\n".encode("latin-1", "replace")
