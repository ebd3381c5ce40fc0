"""The engine core's part: a utility method that the API server calls by name, and that never raises."""

import logging
from typing import Any

from ..order import answer
from .control import Control

log = logging.getLogger("vllm.hmas_control")

METHOD = "hmas_control"


def register() -> None:
    """Adds the method to vLLM's engine core. vLLM calls this in each of its processes, and in some more than once."""
    try:
        from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - only vLLM's own processes have it
    except Exception:
        log.exception("no engine core to control in this version of vLLM; the route will say so")
        return
    setattr(EngineCore, METHOD, handle)


def handle(core: Any, order: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the state if there is no order, else the order's result. An error is logged and reported, and the engine goes on.

    `core` is vLLM's `EngineCore`; the format of the ordered `knobs` has been checked.
    """
    try:
        control = getattr(core.scheduler, METHOD, None)
        if not isinstance(control, Control):
            control = Control(core.scheduler)
            setattr(core.scheduler, METHOD, control)
        if order is None:
            return control.state()
        done = control.obey(order["knobs"])
    except Exception as error:
        log.exception("the order was not obeyed: %.500s", order)
        return answer(refused={"body": f"the engine could not do it: {type(error).__name__}: {error}"})
    log.info("knobs %s, refused %s", done["applied"], done["refused"])
    return done
