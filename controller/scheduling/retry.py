"""The retry rule: when a request that its instance failed is sent to another one. Pure."""

from collections.abc import Iterable

from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.running import Running


def may_retry(run: Running, instances: Iterable[Instance]) -> bool:
    """Whether a request may go to another instance: before its first token, once, and if another instance takes requests.

    Args:
        run: The request on the instance that failed it.
        instances: All instances that serve its model.
    """
    if run.first_s is not None or run.entry.tried:
        return False
    return any(instance.available for instance in instances if instance is not run.instance)
