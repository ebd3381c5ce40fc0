"""The scheduler's settings as a configuration has them."""

from hmas.controller.config.schema import Config
from hmas.controller.scheduling.settings import SchedulerSettings


def scheduler_settings(config: Config) -> SchedulerSettings:
    """Every setting of the scheduler, for the gateway and for meta's twin alike."""
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
