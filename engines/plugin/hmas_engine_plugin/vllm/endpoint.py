"""The API server's part: carries orders from the route to every engine core.

vLLM loads it only if VLLM_PLUGINS names `hmas_control`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from ..order import Order
from ..route import ENGINE_TIMEOUT_S, EngineSilent, Route, late, summed
from .core import METHOD


class ControlEndpoint(Route):
    """vLLM's endpoint plugin: see `vllm.plugins.endpoint_plugins.interface.EndpointPlugin`."""

    name = "hmas_control"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        super().__init__(logging.getLogger("vllm.hmas_control"))
        self._engine_client: Any = None

    def attach_router(self, app: FastAPI) -> None:
        """VLLM's name for `attach`."""
        self.attach(app)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's own signature
        """Stores the client that reaches the engine cores."""
        self._engine_client = engine_client

    async def told(self) -> dict[str, Any]:
        """See `Route.told`."""
        states = await self._ask(None)
        first = states[0]
        if "knobs" not in first:
            raise EngineSilent("; ".join(first.get("refused", {}).values()) or "the engine core gives no state")
        return {"engine": "vllm", "engine_version": _engine_version(), **first, "counters": summed(states), "engine_cores": len(states)}

    async def done(self, order: Order) -> Sequence[dict[str, Any]]:
        """See `Route.done`."""
        return await self._ask({"knobs": order.knobs})

    async def _ask(self, order: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Returns the answer of every engine core; with data parallelism there are several, and each gets the whole order.

        Raises:
            EngineSilent: There is no engine core, or one does not answer in time.
        """
        core = getattr(self._engine_client, "engine_core", None)
        everyone = getattr(core, "call_utility_all_async", None)
        one = getattr(core, "call_utility_async", None)
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                if everyone is not None:
                    return list(await everyone(METHOD, order))
                if one is not None:
                    return [await one(METHOD, order)]
        except TimeoutError as error:
            raise late() from error
        raise EngineSilent("this API server has no way to an engine core")


def _engine_version() -> str:
    import vllm  # noqa: PLC0415 - imported long ago where this runs

    return str(getattr(vllm, "__version__", ""))
