"""An embedded engine whose answers break on demand: `POST /sim/fault` with `{"fault": "reset-after:3", "times": 1}`; null ends it."""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any, Literal, get_args

import msgspec
from aiohttp import web

from hmas.engines.sim.model import EngineModel, TokenEvent
from hmas.engines.sim.server import SSE_HEADERS, Handler, SimServer, app_of
from hmas.engines.sim.streams import Sink, Stream
from hmas.engines.sim.wire import Ask, Refused

FaultKind = Literal["html", "garbage", "status", "reset-before", "reset-after", "half-sse", "stall"]
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"
GARBAGE = b"\x00\xff\xfe}{][\x80data\x00: \xc3\x28\r\r\n\n" * 8


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


class _FaultOrder(msgspec.Struct, forbid_unknown_fields=True):
    fault: str | None
    times: Annotated[int, msgspec.Meta(ge=1)] | None = None
    everywhere: bool = False


def parse_fault(text: str) -> Fault:
    """Reads `KIND` or `KIND:VALUE`.

    Raises:
        ValueError: The kind is unknown, or the value is not a number.
    """
    kind, colon, value = text.partition(":")
    kinds = get_args(FaultKind)
    if kind not in kinds or (colon and not value.isdigit()):
        raise ValueError(f"fault {text!r}: allowed are {', '.join(kinds)}, with :NUMBER for tokens or status")
    return msgspec.convert({"kind": kind, "value": int(value) if value else 500 * (kind == "status")}, Fault)


def reset(transport: asyncio.WriteTransport) -> None:
    """Ends a connection with RST, as a crashed process or a firewall does."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Faulty:
    """Passes tokens on up to the fault's count, then applies the fault: `reset-after`, `half-sse` or `stall`."""

    def __init__(self, inner: Sink, fault: Fault, transport: asyncio.WriteTransport) -> None:
        self._inner = inner
        self._fault = fault
        self._transport = transport

    def token(self, event: TokenEvent) -> bool:
        if event.tokens_so_far <= self._fault.value and not event.finished:
            return self._inner.token(event)
        if self._fault.kind == "reset-after":
            reset(self._transport)
            self._inner.abort()
            return False
        if self._fault.kind == "half-sse" and isinstance(self._inner, Stream):
            self._inner.write(b'data: {"id":"chatcmpl-half","object":"chat.completion.chunk","choices":[{"index":0,"del')
            self._inner.end()
            return False
        return True

    def abort(self) -> None:
        self._inner.abort()


_BREAKS: ContextVar[tuple[Fault, asyncio.WriteTransport] | None] = ContextVar("breaks", default=None)
"""What breaks the answer to the request in hand, and its connection."""


class FaultyServer(SimServer):
    """The server, with one fault at a time."""

    fault: Fault | None = None
    uses = 0

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Applies the fault beneath what every answer goes through."""

        async def broken(request: web.Request) -> web.StreamResponse:
            _BREAKS.set(None)
            fault = self._fault_for(request.path)
            if fault is None or request.transport is None:
                return await handler(request)
            if fault.before_head:
                return _misbehave(fault, request)
            _BREAKS.set((fault, request.transport))
            answer = await handler(request)
            if fault.kind == "half-sse" and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
                answer.body = answer.body[: len(answer.body) // 2]
            return answer

        return await super().guard(request, broken)

    async def set_fault(self, request: web.Request) -> web.Response:
        try:
            order = msgspec.json.decode(await request.read(), type=_FaultOrder)
            fault = None if order.fault is None else parse_fault(order.fault)
        except ValueError as error:
            raise Refused(400, str(error), param="fault") from error
        self.fault = None if fault is None else msgspec.structs.replace(fault, times=order.times, everywhere=order.everywhere)
        self.uses = 0
        return web.Response(body=msgspec.json.encode({"fault": self.fault}), content_type="application/json")

    def _start(self, ask: Ask, inner: str, sink: Sink) -> None:
        breaks = _BREAKS.get()
        if breaks is not None and (breaks[0].kind != "half-sse" or isinstance(sink, Stream)):
            sink = Faulty(sink, *breaks)
        super()._start(ask, inner, sink)

    def _fault_for(self, path: str) -> Fault | None:
        fault = self.fault
        generates = path.startswith("/v1/") and path != "/v1/models"
        if fault is None or path == "/sim/fault" or not (generates or (fault.everywhere and fault.before_head)):
            return None
        if fault.times is not None and self.uses >= fault.times:
            return None
        self.uses += 1
        return fault


def faulty_app(
    model: EngineModel, model_name: str, name: str, fault: str | None = None, *, now_s: Callable[[], float] | None = None, **options: Any
) -> web.Application:
    """As `hmas.engines.sim.server.create_app`, with `/sim/fault`, and a fault that is active from the start."""
    server = FaultyServer(model, model_name, name, now_s=now_s, **options)
    server.fault = parse_fault(fault) if fault else None
    app = app_of(server)
    app.router.add_post("/sim/fault", server.set_fault)
    return app


def _misbehave(fault: Fault, request: web.Request) -> web.StreamResponse:
    if fault.kind == "reset-before" and request.transport is not None:
        reset(request.transport)
    if fault.kind == "garbage":
        return web.Response(body=GARBAGE, headers=SSE_HEADERS)
    if fault.kind == "status":
        raise Refused(fault.value, f"status {fault.value} on demand", kind="InternalServerError")
    return web.Response(body=HTML, content_type="text/html")
