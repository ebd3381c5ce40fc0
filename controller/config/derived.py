"""Values derived from a configuration: the agents that run, and the settings of the scheduler."""

from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.scheduling.policies.registry import named
from hmas.controller.scheduling.settings import SchedulerSettings

AGENT_NAMES = ("perception", "prediction", "qos", "meta", "statera")
"""The five agents, in the order in which a request's data passes through them."""


def running_agents(agents: AgentsConfig) -> tuple[str, ...]:
    """Names of the agents that run, in the order of `AGENT_NAMES`; empty if agents are disabled."""
    only = named(agents.only)
    return tuple(name for name in AGENT_NAMES if agents.enabled and (not only or name in only))


def scheduler_settings(config: Config) -> SchedulerSettings:
    """Every setting of the scheduler, for both the gateway and meta's twin."""
    section = config.scheduler
    return SchedulerSettings(
        queue_limit=section.queue_limit,
        evict_lower_ranked=section.evict_lower_ranked,
        overdue=section.overdue,
        fence=section.fence,
        fence_margin=section.fence_margin,
        fence_overcommit=section.fence_overcommit,
        fence_prefix_credit=section.fence_prefix_credit,
        late_service_share=section.late_service_share,
        late_confidence=section.late_confidence,
        overdue_wait_s=section.overdue_wait_s,
        tpot_guard=section.tpot_guard,
        headroom=config.slo.headroom,
    )
