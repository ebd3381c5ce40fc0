"""OpenAI's Responses API: named and numbered events, and answers that the engine may keep under their id."""

from typing import Any

import orjson

from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.requests.apis.api import Api
from hmas.controller.gateway.requests.engine_errors import Complaint
from hmas.controller.gateway.requests.sse import EventScanner, NamedEventScanner

OPENING = ("response.created", "response.queued", "response.in_progress")
ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
DELTAS = tuple(
    b"event: response.%b.delta\ndata: {" % name
    for name in (b"output_text", b"reasoning_text", b"reasoning_summary_text", b"function_call_arguments", b"refusal")
)


class ResponsesScanner(NamedEventScanner):
    """Reads one stream of the Responses API. It ends with one of `ENDS`; some engines add `[DONE]`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(DELTAS)

    @property
    def only_opened(self) -> bool:
        """See `EventScanner.only_opened`."""
        return self._opening and self.events > 0

    def _opens(self, document: dict[str, Any]) -> bool:
        if document.get("type") not in OPENING:
            return False
        self.response_id = id_of(document.get("response"))
        return True

    def _read_event(self, document: dict[str, Any]) -> None:
        kind = document.get("type")
        if kind in ENDS:
            self._end(document.get("response"), kind)
        elif isinstance(kind, str) and kind.endswith(".delta"):
            self.tokens += bool(document.get("delta"))

    def _end(self, response: Any, kind: object) -> None:
        self.done = self.finished = True
        if isinstance(response, dict):
            self.response_id = id_of(response)
            usage = response.get("usage")
            if isinstance(usage, dict):
                self._usage = usage
            self.aborted = response.get("status") == "cancelled"
            if kind == "response.failed":
                self.error = Complaint(failed(response) or {"message": "the response failed"})


class ResponsesApi(Api):
    """See the module."""

    def scanner(self) -> EventScanner:
        """See `Api.scanner`."""
        return ResponsesScanner()

    def error_event(self, error: ApiError, events: int) -> bytes:
        """See `Api.error_event`. The object under `error` is what OpenAI's own client raises as an error."""
        inner = orjson.loads(error.body())["error"]
        document = {"type": "error", "sequence_number": events, "code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + orjson.dumps(document | {"error": inner}) + b"\n\n"

    def is_answer(self, document: dict[str, Any]) -> bool:
        """See `Api.is_answer`."""
        return document.get("object") == "response"

    def aborted(self, document: dict[str, Any]) -> bool:
        """See `Api.aborted`."""
        return document.get("object") == "response" and document.get("status") == "cancelled"

    def failure(self, document: dict[str, Any]) -> str:
        """See `Api.failure`."""
        error = failed(document) if document.get("status") == "failed" else None
        return "" if error is None else Complaint(error).message

    def response_id(self, document: dict[str, Any]) -> str:
        """See `Api.response_id`."""
        return id_of(document)


def id_of(response: Any) -> str:
    """The id of a response object, empty if it has none."""
    found = response.get("id") if isinstance(response, dict) else None
    return found if isinstance(found, str) else ""


def failed(response: dict[str, Any]) -> dict[str, Any] | None:
    """The error object of a response that failed, None if it has none."""
    error = response.get("error")
    return error if isinstance(error, dict) else None
