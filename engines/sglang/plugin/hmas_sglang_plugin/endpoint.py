"""The server's side: the route, its guard, and the way to every scheduler."""

import asyncio
import logging
import os
from collections.abc import Coroutine
from types import ModuleType
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from . import VERSION
from .access import refusal
from .order import MAX_BODY_BYTES, OrderError, parse_order
from .wire import READ, SEAL, STATE, Message, encode, new_serial

log = logging.getLogger("sglang.srt.hmas_control")

PATH = "/hmas/v1/control"
TOKEN = "HMAS_CONTROL_TOKEN"  # noqa: S105 - the variable's name
ENGINE_TIMEOUT_S = 30.0
MAX_PENDING = 32
MAX_DRAINED_BYTES = 64 << 20
"""A body that is refused for its size is still read so far: a client that is cut off while it sends never sees the answer."""


class EngineSilent(Exception):
    """The schedulers did not answer."""


class ControlEndpoint:
    """The route on SGLang's own web server."""

    def __init__(self) -> None:
        self._token = os.environ.get(TOKEN, "")
        self._server: Any = None
        self._pending = 0
        # An order and the report on it are two messages, and no other order may come between them.
        self._turn = asyncio.Lock()

    def attach(self, server: ModuleType) -> None:
        """Adds the route, and lets this plugin's token through the guard of SGLang's own key."""
        self._server = server
        server.app.add_api_route(PATH, self.get, methods=["GET"], include_in_schema=False)
        server.app.add_api_route(PATH, self.post, methods=["POST"], include_in_schema=False)
        if self._token:
            # One header carries both keys; what comes in by this path is guarded here.
            from sglang.srt.utils import auth  # noqa: PLC0415 - only SGLang's own processes have it

            decide, allowed = auth.decide_request_auth, auth.AuthDecision(allowed=True)

            def decide_request_auth(**named: Any) -> Any:
                return allowed if named.get("path") == PATH else decide(**named)

            auth.decide_request_auth = decide_request_auth

    async def get(self, request: Request) -> JSONResponse:
        """What can be controlled, and how it stands."""
        return await self._guarded(request, self._state())

    async def post(self, request: Request) -> JSONResponse:
        """Obeys an order; 400 where any of it is refused, and then nothing of it is done."""
        return await self._guarded(request, self._order(request))

    async def _guarded(self, request: Request, work: Coroutine[Any, Any, JSONResponse]) -> JSONResponse:
        """One answer, whatever happens: this room must not take the server down with it."""
        turned_away = refusal(
            token=self._token,
            authorization=request.headers.get("authorization"),
            client=request.client.host if request.client else None,
            origin=request.headers.get("origin"),
        )
        if turned_away is not None:
            work.close()
            return _error(*turned_away)
        if self._pending >= MAX_PENDING:
            work.close()
            return _error(503, f"{MAX_PENDING} control calls are on their way already")
        self._pending += 1
        try:
            return await work
        except OrderError as error:
            return JSONResponse({"error": str(error), **_answer(refused=error.refused)}, status_code=400)
        except EngineSilent as error:
            return _error(503, str(error))
        except Exception as error:
            log.exception("%s %s failed", request.method, PATH)
            return _error(500, f"{type(error).__name__}: {error}")
        finally:
            self._pending -= 1

    async def _state(self) -> JSONResponse:
        states = await self._ask(None)
        first = {name: value for name, value in states[0].items() if name != "report"}
        counters = {name: sum(state["counters"][name] for state in states) for name in first["counters"]}
        head = {"engine": "sglang", "engine_version": str(getattr(self._server, "__version__", ""))}
        return JSONResponse({**head, **first, "counters": counters, "schedulers": len(states)})

    async def _order(self, request: Request) -> JSONResponse:
        order = parse_order(await _body(request))
        message = Message(new_serial(), order.knobs, order.priorities, order.evict)
        reports = [state.get("report") for state in await self._ask(message)]
        parts = [report for report in reports if report is not None and report["serial"] == message.serial]
        if len(parts) < len(reports):
            raise EngineSilent("a scheduler has not reported on the order; it may still have taken effect")
        refused = {name: reason for part in parts for name, reason in part["refused"].items()}
        done = _answer(
            applied={} if refused else parts[0]["applied"],
            refused=refused,
            reprioritized=dict.fromkeys(name for part in parts for name in part["reprioritized"]),
            evicted=dict.fromkeys(name for part in parts for name in part["evicted"]),
        )
        return JSONResponse(done, status_code=400 if refused else 200)

    async def _ask(self, message: Message | None) -> list[dict[str, Any]]:
        """The state of every scheduler, after an order where there is one; with data parallelism there are several, and each gets it whole.

        Raises:
            EngineSilent: There is none, or one does not answer in time.
        """
        # A message that has gone out must come back to whoever waits for it, or SGLang's next one gets its answer: so it is left to end.
        work = asyncio.ensure_future(self._exchange(message))
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                states = await asyncio.shield(work)
        except TimeoutError as error:
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise EngineSilent(f"the engine did not answer within {ENGINE_TIMEOUT_S:g} s; the order may still take effect") from error
        found = [state[STATE] for state in states if STATE in state]
        if not found or len(found) < len(states):
            raise EngineSilent("the scheduler runs without this plugin's hooks; its log says why")
        return found

    async def _exchange(self, message: Message | None) -> list[dict[str, Any]]:
        from sglang.srt.managers.io_struct import GetInternalStateReq, SetInternalStateReq  # noqa: PLC0415 - imported long ago where this runs

        manager = self._server.get_global_state().tokenizer_manager
        async with self._turn:
            if message is not None:
                await manager.set_internal_state(SetInternalStateReq(server_args=encode(message, os.environ[SEAL])))
            manager.auto_create_handle_loop()
            answers = await manager.get_internal_state_communicator(GetInternalStateReq(rid=READ))
            return [answer.internal_state for answer in answers]


async def _body(request: Request) -> bytes:
    """The body, up to one byte more than is allowed."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if len(body) <= MAX_BODY_BYTES:
            body += chunk[: MAX_BODY_BYTES + 1 - len(body)]
        if size > MAX_DRAINED_BYTES:
            break
    return bytes(body)


def _answer(
    *,
    applied: dict[str, int] | None = None,
    refused: dict[str, str] | None = None,
    reprioritized: Any = (),
    evicted: Any = (),
) -> dict[str, Any]:
    """The document that answers an order."""
    return {"applied": applied or {}, "refused": refused or {}, "reprioritized": list(reprioritized), "evicted": list(evicted)}


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message, **_answer(), "plugin_version": VERSION}, status_code=status)
