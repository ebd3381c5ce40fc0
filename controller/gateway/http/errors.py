"""What is wrong with bytes that ought to be a request."""

from hmas.controller.core.errors import HmasError


class HttpError(HmasError):
    """Bytes that are no HTTP/1.1, or HTTP that may not be accepted. `status` is what a server answers to them."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
