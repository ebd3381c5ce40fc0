"""The API server's side: the route, its guard, and the way to every engine core.

vLLM loads it only where VLLM_PLUGINS names `hmas_control`.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from . import VERSION
from .access import refusal
from .control import answer
from .core import METHOD
from .order import MAX_BODY_BYTES, OrderError, parse_order

log = logging.getLogger("vllm.hmas_control")

PATH = "/hmas/v1/control"
TOKEN = "HMAS_CONTROL_TOKEN"  # noqa: S105 - the variable's name
ENGINE_TIMEOUT_S = 30.0
MAX_PENDING = 32
MAX_DRAINED_BYTES = 64 << 20
"""A body that is refused for its size is still read so far: a client that is cut off while it sends never sees the answer."""


class EngineSilent(Exception):
    """The engine cores did not answer."""


class ControlEndpoint:
    """vLLM's endpoint plugin: see `vllm.plugins.endpoint_plugins.interface.EndpointPlugin`."""

    name = "hmas_control"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._token = os.environ.get(TOKEN, "")
        self._engine_client: Any = None
        self._pending = 0

    def attach_router(self, app: FastAPI) -> None:
        """Adds the two routes."""
        app.add_api_route(PATH, self.get, methods=["GET"], include_in_schema=False)
        app.add_api_route(PATH, self.post, methods=["POST"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's own signature
        """Takes the client through which the engine cores are reached."""
        self._engine_client = engine_client

    async def get(self, request: Request) -> JSONResponse:
        """What can be controlled, and how it stands."""
        return await self._guarded(request, self._state())

    async def post(self, request: Request) -> JSONResponse:
        """Obeys an order; 400 where any of it is refused, and then nothing of it is done."""
        return await self._guarded(request, self._order(request))

    async def _guarded(self, request: Request, work: Coroutine[Any, Any, JSONResponse]) -> JSONResponse:
        """One answer, whatever happens: this room must not take the API server down with it."""
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
            return JSONResponse({"error": str(error), **answer(refused=error.refused)}, status_code=400)
        except EngineSilent as error:
            return _error(503, str(error))
        except Exception as error:
            log.exception("%s %s failed", request.method, PATH)
            return _error(500, f"{type(error).__name__}: {error}")
        finally:
            self._pending -= 1

    async def _state(self) -> JSONResponse:
        states = await self._ask(None)
        first = states[0]
        if "knobs" not in first:
            raise EngineSilent("; ".join(first.get("refused", {}).values()) or "the engine core gives no state")
        counters = {name: sum(state["counters"][name] for state in states) for name in first["counters"]}
        return JSONResponse(
            {"engine": "vllm", "engine_version": _engine_version(), **first, "counters": counters, "engine_cores": len(states)}
        )

    async def _order(self, request: Request) -> JSONResponse:
        order = parse_order(await _body(request))
        parts = await self._ask({"knobs": order.knobs, "priorities": order.priorities, "evict": order.evict})
        refused = {name: reason for part in parts for name, reason in part["refused"].items()}
        done = answer(
            applied={} if refused else parts[0]["applied"],
            refused=refused,
            reprioritized=dict.fromkeys(name for part in parts for name in part["reprioritized"]),
            evicted=dict.fromkeys(name for part in parts for name in part["evicted"]),
        )
        return JSONResponse(done, status_code=400 if refused else 200)

    async def _ask(self, order: dict[str, Any] | None) -> list[dict[str, Any]]:
        """The answer of every engine core; with data parallelism there are several, and each gets the whole order.

        Raises:
            EngineSilent: There is none, or one does not answer in time.
        """
        core = getattr(self._engine_client, "engine_core", None)
        everyone = getattr(core, "call_utility_all_async", None)
        one = getattr(core, "call_utility_async", None)
        if everyone is None and one is None:
            raise EngineSilent("this API server has no way to an engine core")
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                return list(await everyone(METHOD, order)) if everyone is not None else [await one(METHOD, order)]  # type: ignore[misc]
        except TimeoutError as error:
            raise EngineSilent(f"the engine did not answer within {ENGINE_TIMEOUT_S:g} s; the order may still take effect") from error


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


def _engine_version() -> str:
    import vllm  # noqa: PLC0415 - imported long ago where this runs

    return str(getattr(vllm, "__version__", ""))


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message, **answer(), "plugin_version": VERSION}, status_code=status)
