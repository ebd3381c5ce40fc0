"""OpenAI's forms of errors and events, and the ground for APIs with other forms."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.requests.engine_errors import Complaint, read_complaint
from hmas.controller.gateway.requests.sse import ABORTED, EventScanner

NO_SUCH_PATH = re.compile(
    r"(?:[A-Z]+ /\S*:? )?(?:404:? )?(?:page |path |route |url |endpoint )?not found\.?|cannot [a-z]+ /\S*|invalid url \(.*", re.IGNORECASE
)
"""What servers say of a path that they do not have. A model or a response that is not found is named in the message, or in `param`."""
UNSUPPORTED = "unsupported_by_engine"
NOT_AGAIN: Mapping[str, str] = {"x-should-retry": "false"}
"""Keeps the clients of OpenAI and Anthropic from sending a request again that no engine will serve."""


class Api:
    """Chat completions, completions, and what passes through: errors in OpenAI's form.

    Attributes:
        keeps_form: Whether an engine's error document is passed on as it came; otherwise one of another form is converted.
        forwarded: Headers of the client that the engine gets, too.
    """

    forwarded: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, keeps_form: bool = False) -> None:
        self.keeps_form = keeps_form

    def scanner(self) -> EventScanner:
        """A reader of one stream of this API."""
        return EventScanner()

    def error_body(self, error: ApiError) -> bytes:
        """The gateway's own error as a body."""
        return error.body()

    def error_event(self, error: ApiError, events: int) -> bytes:  # noqa: ARG002 - an API with numbered events needs their count
        """The gateway's own error as the end of a stream, after `events` events."""
        return error.event()

    def complaint_body(self, complaint: Complaint) -> bytes:
        """An engine's error in this API's form."""
        return complaint.body()

    def is_error(self, document: dict[str, Any]) -> bool:
        """Whether an engine's error document has this API's form."""
        return isinstance(document.get("error"), dict)

    def is_answer(self, document: dict[str, Any]) -> bool:
        """Whether a whole document is an answer, even if it has an error in it."""
        return "choices" in document

    def aborted(self, document: dict[str, Any]) -> bool:
        """Whether a whole answer was broken off by the engine, on demand."""
        choices = document.get("choices")
        return isinstance(choices, list) and any(isinstance(choice, dict) and choice.get("finish_reason") == ABORTED for choice in choices)

    def failure(self, document: dict[str, Any]) -> str:  # noqa: ARG002 - Responses tell it in the document
        """Why the engine failed, if a whole answer of status 200 tells that it did; else empty."""
        return ""

    def response_id(self, document: dict[str, Any]) -> str:  # noqa: ARG002 - only Responses are kept
        """The id under which the engine may keep a whole answer, empty if it keeps none."""
        return ""

    def engine_document(self, status: int, document: dict[str, Any], body: bytes) -> bytes:
        """An engine's error document as the client gets it."""
        if self.keeps_form or self.is_error(document):
            return body
        return self.complaint_body(Complaint(complaint_of(document).error, status))

    def unsupported(self, status: int, text: str) -> ApiError:
        """The error for a request whose engine does not serve this API."""
        message = f"the engine that serves this model does not serve this API: it answered {status}{': ' if text else ''}{text}"
        return ApiError(501, UNSUPPORTED, message, headers=NOT_AGAIN)

    def lacks_path(self, status: int, document: dict[str, Any] | None) -> bool:
        """Whether an answer says that the engine does not serve the path at all, which blames neither engine nor request."""
        if status in (405, 501):
            return True
        if status != 404:
            return False
        if document is None:
            # A page in front of chat completions, which every engine serves, comes from a server that is no engine.
            return not self.keeps_form
        error = complaint_of(document).error
        return not error.get("param") and NO_SUCH_PATH.fullmatch(str(error.get("message", "")).strip()) is not None


def complaint_of(document: dict[str, Any]) -> Complaint:
    """The error of any document that came with an error's status; `detail` is FastAPI's form."""
    found = read_complaint(document)
    if found is not None:
        return found
    detail = document.get("detail", document.get("message"))
    text = detail if isinstance(detail, str) else orjson.dumps(document if detail is None else detail).decode()
    return Complaint({"message": text})
