"""The error for bytes that are no valid request."""

from hmas.controller.core.errors import HmasError


class HttpError(HmasError):
    """Input that is no valid HTTP/1.1, or HTTP that must not be accepted. `status`: the status of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
