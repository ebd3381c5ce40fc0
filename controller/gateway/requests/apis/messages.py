"""Anthropic's Messages API: errors with a type of its own, and named events."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import orjson

from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.requests.apis.api import Api
from hmas.controller.gateway.requests.engine_errors import Complaint
from hmas.controller.gateway.requests.sse import EventScanner, NamedEventScanner

OPENING = ("message_start", "ping")
DELTAS = (b"event: content_block_delta\ndata: {",)
FORWARDED = ("anthropic-version", "anthropic-beta")
TYPE_OF_STATUS: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)
"""The `type` of an error by status; others of 4xx are an `invalid_request_error`, others of 5xx an `api_error`."""


class MessagesScanner(NamedEventScanner):
    """Reads one stream of the Messages API: the end has its reason in `message_delta`, and `message_stop` is the last event."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(DELTAS)

    def _opens(self, document: dict[str, Any]) -> bool:
        kind = document.get("type")
        if kind == "message_start":
            self._note_usage(document.get("message"))
        return kind in OPENING

    def _read_event(self, document: dict[str, Any]) -> None:
        kind, delta = document.get("type"), document.get("delta")
        if kind == "message_stop":
            self.done = True
        elif kind == "message_delta" and isinstance(delta, dict):
            self._note_usage(document)
            self.finished = True
            # vLLM gives no reason for the end of a request that was aborted.
            self.aborted = delta.get("stop_reason") is None
        elif kind == "content_block_delta" and isinstance(delta, dict):
            self.tokens += any(delta.get(name) for name in ("text", "thinking", "partial_json"))

    def _note_usage(self, holder: Any) -> None:
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            self._usage = {**(self._usage or {}), **usage}


class MessagesApi(Api):
    """See the module."""

    forwarded: ClassVar[tuple[str, ...]] = FORWARDED

    def scanner(self) -> EventScanner:
        """See `Api.scanner`."""
        return MessagesScanner()

    def error_body(self, error: ApiError) -> bytes:
        """See `Api.error_body`. `code` and `param` are the gateway's additions."""
        return _document(error.status, error.message, {"code": error.code, "param": error.param})

    def error_event(self, error: ApiError, events: int) -> bytes:  # noqa: ARG002 - these events have no numbers
        """See `Api.error_event`."""
        return b"event: error\ndata: " + self.error_body(error) + b"\n\n"

    def complaint_body(self, complaint: Complaint) -> bytes:
        """See `Api.complaint_body`."""
        error = complaint.error
        return _document(complaint.status, str(error.get("message", error)), {"param": error.get("param")})

    def is_error(self, document: dict[str, Any]) -> bool:
        """See `Api.is_error`."""
        return document.get("type") == "error" and isinstance(document.get("error"), dict)

    def is_answer(self, document: dict[str, Any]) -> bool:
        """See `Api.is_answer`."""
        return document.get("type") == "message"

    def aborted(self, document: dict[str, Any]) -> bool:
        """See `Api.aborted`."""
        return document.get("type") == "message" and document.get("stop_reason") is None


def _document(status: int, message: str, additions: dict[str, str | None]) -> bytes:
    kind = TYPE_OF_STATUS.get(status, "invalid_request_error" if 400 <= status < 500 else "api_error")
    more = {name: value for name, value in additions.items() if value is not None}
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message, **more}})
