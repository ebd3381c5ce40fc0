"""The route on an engine's own web server, and its guard. Each engine implements `Route.told` and `Route.done` behind it."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from . import VERSION
from .access import refusal
from .order import MAX_BODY_BYTES, Order, OrderError, answer, parse_order

PATH = "/hmas/v1/control"
TOKEN = "HMAS_CONTROL_TOKEN"  # noqa: S105 - the variable's name
ENGINE_TIMEOUT_S = 30.0
MAX_PENDING = 32
MAX_DRAINED_BYTES = 64 << 20
"""A body that is too large is still read up to this size, because a client that is cut off while it sends never reads the answer."""


class EngineSilent(Exception):
    """The schedulers did not answer."""


class Route(ABC):
    """Receives control calls and answers each exactly once, even after an error."""

    def __init__(self, log: logging.Logger) -> None:
        """`log` is the engine's own logger, so that errors appear in the engine's log."""
        self._log = log
        self._token = os.environ.get(TOKEN, "")
        self._pending = 0

    @abstractmethod
    async def told(self) -> dict[str, Any]:
        """Reads what can be controlled, and the current values.

        Raises:
            EngineSilent: No scheduler answered.
        """
        ...

    @abstractmethod
    async def done(self, order: Order) -> Sequence[dict[str, Any]]:
        """Carries out an order and returns its result in each scheduler, in the format of `answer`.

        Raises:
            EngineSilent: A scheduler has not reported its result.
        """
        ...

    def attach(self, app: FastAPI) -> None:
        """Adds both methods of the route to the engine's web server."""
        app.add_api_route(PATH, self.get, methods=["GET"], include_in_schema=False)
        app.add_api_route(PATH, self.post, methods=["POST"], include_in_schema=False)

    async def get(self, request: Request) -> JSONResponse:
        """Returns what can be controlled, and the current values."""
        return await self._guarded(request, self._tell())

    async def post(self, request: Request) -> JSONResponse:
        """Carries out an order; answers 400 if any part of it is refused, and then does nothing of it."""
        return await self._guarded(request, self._obey(request))

    async def _guarded(self, request: Request, work: Coroutine[Any, Any, JSONResponse]) -> JSONResponse:
        """Returns one answer in every case: an error here must not stop the engine's web server."""
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
        except Exception as error:  # noqa: BLE001 - the boundary to the engine: logged, reported, and the engine goes on
            self._log.exception("%s %s failed", request.method, PATH)
            return _error(500, f"{type(error).__name__}: {error}")
        finally:
            self._pending -= 1

    async def _tell(self) -> JSONResponse:
        return JSONResponse(await self.told())

    async def _obey(self, request: Request) -> JSONResponse:
        parts = await self.done(parse_order(await _body(request)))
        refused = {name: reason for part in parts for name, reason in part["refused"].items()}
        done = answer(applied={} if refused else parts[0]["applied"], refused=refused)
        return JSONResponse(done, status_code=400 if refused else 200)


def summed(states: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Adds up the counters of several schedulers."""
    counters: dict[str, int] = {}
    for state in states:
        for name, count in state["counters"].items():
            counters[name] = counters.get(name, 0) + count
    return counters


def late() -> EngineSilent:
    """The error to raise if no answer came within `ENGINE_TIMEOUT_S`."""
    return EngineSilent(f"the engine did not answer within {ENGINE_TIMEOUT_S:g} s; the order may still take effect")


async def _body(request: Request) -> bytes:
    """Reads the body, up to one byte more than is allowed."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if len(body) <= MAX_BODY_BYTES:
            body += chunk[: MAX_BODY_BYTES + 1 - len(body)]
        if size > MAX_DRAINED_BYTES:
            break
    return bytes(body)


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message, **answer(), "plugin_version": VERSION}, status_code=status)
