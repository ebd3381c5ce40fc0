"""The retry rule: when a request that its instance failed is sent a second time. Pure."""

from collections.abc import Iterable

from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.running import Running


def may_retry(run: Running, instances: Iterable[Instance]) -> bool:
    """Whether a request may go to another instance: before its first token, once, and if another instance takes requests.

    One that only its own instance may take (`QueueEntry.only`) may not.

    Args:
        run: The request on the instance that failed it.
        instances: All instances that serve its model.
    """
    elsewhere = may_resend(run) and not run.entry.only
    return elsewhere and any(instance.available for instance in instances if instance is not run.instance)


def may_resend(run: Running) -> bool:
    """Whether a request may be sent again at all: before its first token, and once."""
    return run.first_s is None and not run.entry.resent
