"""Faults that the embedded engine shows on demand, so that the gateway can be tested against each."""

import socket
import struct
from asyncio import WriteTransport
from typing import Literal, get_args

import msgspec

from hmas.engines.errors import EngineError

FaultKind = Literal["html", "garbage", "status", "reset-before", "reset-after", "half-sse", "stall"]


class Fault(msgspec.Struct, frozen=True):
    """One fault, applied to generation requests.

    Attributes:
        kind: `html`: 200 with a web page. `garbage`: 200 with noise declared as an event stream. `status`: the HTTP status `value`.
            `reset-before`: the connection is reset before the head. `reset-after`: reset after `value` tokens. `half-sse`: half an
            event after `value` tokens, then a clean end. `stall`: silence after `value` tokens, with the connection open.
        value: Tokens, or the status; see above.
        times: Number of requests to which it applies; None for all.
        everywhere: Apply it to every path except `/sim/fault`, so also to health and metrics (only the kinds before the head).
    """

    kind: FaultKind
    value: int = 0
    times: int | None = None
    everywhere: bool = False

    @property
    def before_head(self) -> bool:
        """Whether the fault replaces the whole answer; if not, it breaks the answer off."""
        return self.kind in {"html", "garbage", "status", "reset-before"}


def parse_fault(text: str) -> Fault:
    """Reads `KIND` or `KIND:VALUE`.

    Raises:
        EngineError: The kind is unknown, or the value is not a number.
    """
    kind, colon, value = text.partition(":")
    kinds = get_args(FaultKind)
    if kind not in kinds or (colon and not value.isdigit()):
        raise EngineError(f"fault {text!r}: allowed are {', '.join(kinds)}, with :NUMBER for tokens or status")
    default = 500 if kind == "status" else 0
    return msgspec.convert({"kind": kind, "value": int(value) if value else default}, Fault)


HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"
GARBAGE = b"\x00\xff\xfe}{][\x80data\x00: \xc3\x28\r\r\n\n" * 8


def reset(transport: WriteTransport) -> None:
    """Ends a connection with RST, as a crashed process or a firewall does."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
