"""Makes the scheduler that a configuration describes; gateway and simulation use the same."""

from collections.abc import Callable

from hmas.controller.config.derived import instance_spec, routers, scheduler_settings
from hmas.controller.config.schema import Config
from hmas.controller.gateway.control_loop.apply import tenant_limits
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler


def make_scheduler(config: Config, kind: Callable[..., Scheduler] = Scheduler) -> Scheduler:
    """The scheduler that a configuration describes; `kind` creates it, and may create a subclass.

    Raises:
        HmasError: The policy, the router or the engine names are invalid.
    """
    found = routers(config)
    scheduler = kind(
        settings=scheduler_settings(config),
        instances=[instance_spec(engine) for engine in config.engines],
        router=make_router(found.pop("*")),
        policy=config.scheduler.policy,
        parameters=config.scheduler.parameters,
        tenants=tenant_limits(config),
    )
    for model, router in found.items():
        scheduler.set_router(model, make_router(router))
    return scheduler
