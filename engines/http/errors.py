"""What can go wrong below the level of requests."""

from hmas.engines.errors import EngineUnavailable


class ConnectionBroken(EngineUnavailable):
    """The connection to an engine ended before the answer did, or what came on it was no HTTP."""
