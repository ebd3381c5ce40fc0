"""The plugin's hooks into SGLang. If a hook fails, the error is logged, and SGLang does what it would have done without the hook."""

import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .control import CAP, Control
from .imports import when_imported
from .wire import READ, SEAL, STATE, decode, ensure_seal

log = logging.getLogger("sglang.srt.hmas_control")

INTERNAL_STATE = "sglang.srt.managers.scheduler_components.internal_state"
SCHEDULER = "sglang.srt.managers.scheduler"
SERVER = "sglang.srt.entrypoints.http_server"
CONTROL = "_hmas_control"


def register() -> None:
    """Sets the hooks. SGLang calls this in each of its processes; only modules that the process imports are hooked."""
    ensure_seal(os.environ)
    when_imported(INTERNAL_STATE, _hook_internal_state)
    when_imported(SCHEDULER, _hook_scheduler)
    when_imported(SERVER, _hook_server)


def _hook_internal_state(_module: ModuleType) -> None:
    owner = f"{INTERNAL_STATE}.SchedulerInternalStateController"
    _hook(f"{owner}.set_internal_state", set_internal_state, "AROUND")
    _hook(f"{owner}.get_internal_state", get_internal_state, "AROUND")


def _hook_scheduler(_module: ModuleType) -> None:
    _hook(f"{SCHEDULER}.Scheduler.get_new_batch_prefill", get_new_batch_prefill, "AROUND")


def _hook_server(module: ModuleType) -> None:
    try:
        from .endpoint import ControlEndpoint  # noqa: PLC0415 - only the server's process has a web framework

        ControlEndpoint(module).open()
    except Exception:
        log.exception("no control route in this process")


def _hook(target: str, function: Callable[..., Any], kind: str) -> None:
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType  # noqa: PLC0415 - only SGLang's own processes have it

        HookRegistry.register(target, function, HookType[kind], source=HookSource("hmas_control", "hmas-engine-plugin"))
        HookRegistry.apply_hooks()
    except Exception:
        log.exception("%s is not hooked", target)


def set_internal_state(original: Callable[..., Any], controller: Any, received: Any) -> Any:
    """Carries out a sealed order of this plugin. Other settings go to SGLang's own handler; a raised cap then takes effect at once."""
    control = order = None
    try:
        control = control_of(controller, original, type(received))
        order = decode(received.server_args, os.environ.get(SEAL, ""))
    except Exception:
        log.exception("no control in this scheduler")
    if control is None or order is None:
        answer = original(controller, received)
        try:
            if control is not None and answer.updated and CAP in received.server_args:
                control.reopen()
        except Exception:
            log.exception("the raised cap counts when a running request ends")
        return answer
    try:
        control.obey(order.serial, order.knobs)
        log.info("order %s: knobs %s", order.serial, order.knobs)
    except Exception as error:
        log.exception("order %s was not obeyed", order.serial)
        control.fail(order.serial, f"the scheduler could not do it: {type(error).__name__}: {error}")
    # An empty update makes SGLang build the answer.
    return original(controller, type(received)(server_args={}))


def get_internal_state(original: Callable[..., Any], controller: Any, received: Any) -> Any:
    """Answers the plugin's own message with only the plugin's state and report: SGLang's whole state costs its scheduler milliseconds."""
    if getattr(received, "rid", None) == READ:
        try:
            from sglang.srt.managers.io_struct import GetInternalStateReqOutput  # noqa: PLC0415 - only SGLang's own processes have it

            control = control_of(controller)
            return GetInternalStateReqOutput(internal_state={STATE: {**control.state(), "report": control.report}})
        except Exception:
            log.exception("no control in this scheduler")
    return original(controller, received)


def get_new_batch_prefill(original: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
    """Runs SGLang's choice of prompts for one step, then counts them."""
    plan = original(scheduler, *args, **named)
    control = getattr(scheduler, CONTROL, None)
    if control is not None:
        try:
            control.after_prefill(plan)
        except Exception:
            log.exception("the step goes on")
    return plan


def control_of(controller: Any, set_internal: Callable[..., Any] | None = None, request: type | None = None) -> Control:
    """The control of a controller's scheduler, created at the first call.

    Args:
        controller: SGLang's `SchedulerInternalStateController`.
        set_internal: The controller's original `set_internal_state`; looked up if None.
        request: The message type that `set_internal` takes.
    """
    scheduler = controller.scheduler
    control = getattr(scheduler, CONTROL, None)
    if isinstance(control, Control):
        return control
    from sglang.srt.managers.io_struct import SetInternalStateReq  # noqa: PLC0415 - only SGLang's own processes have it
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415

    stock = set_internal or type(controller).set_internal_state.__wrapped__
    message = request or SetInternalStateReq

    def set_stock(name: str, value: int) -> bool:
        return bool(stock(controller, message(server_args={name: value})).updated)

    control = Control(scheduler, set_stock, get_parallel)
    setattr(scheduler, CONTROL, control)
    return control
