"""The errors of connections to engines."""

from hmas.engines.errors import EngineUnavailable


class ConnectionBroken(EngineUnavailable):
    """The connection to an engine ended before the answer did, or the received bytes are not HTTP."""
