"""The errors that a client receives: OpenAI's error JSON, as a body and as an event of a stream."""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import orjson

from hmas.controller.core.errors import BodyError, HmasError

TYPE_OF_STATUS: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        405: "invalid_request_error",
        408: "timeout_error",
        413: "invalid_request_error",
        415: "invalid_request_error",
        417: "invalid_request_error",
        429: "rate_limit_error",
        431: "invalid_request_error",
        502: "engine_error",
        503: "service_unavailable_error",
        504: "timeout_error",
    }
)
"""The `type` of an error object by status; any other status is a `server_error`."""
CLIENT_LEFT = 499
"""Status in logs and telemetry for a request that its client abandoned, as in nginx; it is never sent."""

STREAM_END = b"data: [DONE]\n\n"

ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>,;)]+"  # a URL
    r"|\('[^']*', \d+(?:, \d+)*\)"  # the form in which Python shows a socket's address
    r"|\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\](?::\d+)?|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"  # an IP address
    r"|\b[A-Za-z][\w.-]*:\d{4,5}\b"  # a host with its port
)


class ApiError(HmasError):
    """A refusal or failure as the client sees it.

    Attributes:
        status: HTTP status, used if no byte of an answer has been sent yet.
        code: Machine-readable name of the case.
        param: The field or header at fault, None if there is none.
        retry_after_s: When the client may retry; None omits the header.
        headers: Further response headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON document `{"error": {"message", "type", "param", "code"}}`."""
        kind = TYPE_OF_STATUS.get(self.status, "server_error")
        return orjson.dumps({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})

    def event(self) -> bytes:
        """The same as an event of a stream, followed by `[DONE]` as vLLM does, so that clients that wait for this mark end too."""
        return b"data: " + self.body() + b"\n\n" + STREAM_END

    def response_headers(self) -> dict[str, str]:
        """Headers of this error: content type and, if known, Retry-After in whole seconds, rounded up, at least 1."""
        headers = {"content-type": "application/json", **self.headers}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return headers


class HttpError(HmasError):
    """Input that is no valid HTTP/1.1, or HTTP that must not be accepted. `status`: the status of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def without_addresses(text: str) -> str:
    """The text of an engine's failure as clients may see it: addresses of the inner network are taken out."""
    return ADDRESS.sub("(address)", text)


def bad_field(param: str, value: object, allowed: str) -> ApiError:
    """A 400 error that names the field, its value and the allowed values; long values are cut."""
    return ApiError(400, "invalid_value", str(BodyError(param, value, allowed)), param=param)
