"""The server's part: carries orders from the route to every scheduler."""

import asyncio
import logging
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ..order import Order
from ..route import ENGINE_TIMEOUT_S, PATH, EngineSilent, Route, late, summed
from .wire import READ, SEAL, STATE, Message, encode, new_serial


class ControlEndpoint(Route):
    """The route on SGLang's own web server."""

    def __init__(self, server: ModuleType) -> None:
        super().__init__(logging.getLogger("sglang.srt.hmas_control"))
        self._server: Any = server
        # An order and its report are two messages, and no other order may come between them.
        self._turn = asyncio.Lock()

    def open(self) -> None:
        """Adds the route, and exempts it from the check of SGLang's own API key."""
        self.attach(self._server.app)
        if self._token:
            # SGLang's key and this plugin's token use the same header; this plugin guards its own path.
            from sglang.srt.utils import auth  # noqa: PLC0415 - only SGLang's own processes have it

            decide, allowed = auth.decide_request_auth, auth.AuthDecision(allowed=True)

            def decide_request_auth(**named: Any) -> Any:
                return allowed if named.get("path") == PATH else decide(**named)

            auth.decide_request_auth = decide_request_auth

    async def told(self) -> dict[str, Any]:
        """See `Route.told`."""
        states = await self._ask(None)
        first = {name: value for name, value in states[0].items() if name != "report"}
        head = {"engine": "sglang", "engine_version": str(getattr(self._server, "__version__", ""))}
        return {**head, **first, "counters": summed(states), "schedulers": len(states)}

    async def done(self, order: Order) -> Sequence[dict[str, Any]]:
        """See `Route.done`."""
        message = Message(new_serial(), order.knobs)
        reports = [state.get("report") for state in await self._ask(message)]
        parts = [report for report in reports if report is not None and report["serial"] == message.serial]
        if len(parts) < len(reports):
            raise EngineSilent("a scheduler has not reported on the order; it may still have taken effect")
        return parts

    async def _ask(self, message: Message | None) -> list[dict[str, Any]]:
        """Reads the state of every scheduler, after sending the order if there is one.

        With data parallelism there are several schedulers, and each gets the whole order.

        Raises:
            EngineSilent: There is no scheduler, or one does not answer in time.
        """
        # If a sent message were abandoned, its answer would go to SGLang's next message: so the exchange runs to its end.
        work = asyncio.ensure_future(self._exchange(message))
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                states = await asyncio.shield(work)
        except TimeoutError as error:
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise late() from error
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
