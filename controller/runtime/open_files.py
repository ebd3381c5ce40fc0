"""The limit of open files: every stream through the gateway takes two, the client's connection and the engine's."""

import resource


def lift_limit(wanted: int) -> int:
    """Raises the soft limit of open files to `wanted`, as far as the hard limit allows; never lowers it.

    Returns:
        The active limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
