"""What can go wrong below the level of requests: broken connections, and bytes that ought to be HTTP."""

from engines.errors import HmasError


class ConnectionBroken(HmasError):
    """The connection to an engine ended before the answer did."""


class HttpError(HmasError):
    """Bytes that are no HTTP/1.1, or HTTP that may not be accepted. `status` is what a server answers to them."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
