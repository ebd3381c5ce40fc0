"""Reads the documents of engines, errors above all, in the forms that vLLM, SGLang and OpenAI-compatible servers use. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypedDict

import msgspec
import orjson

from hmas.controller.gateway.errors import TYPE_OF_STATUS

STATUS_OF_TYPE: Mapping[str, int] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "BadRequestError": 400,
        "authentication_error": 401,
        "permission_error": 403,
        "not_found_error": 404,
        "NotFoundError": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
    }
)
"""Statuses of the errors that Anthropic's Messages and OpenAI's Responses name by their type alone, as far as they blame the request."""
EVENT_FIELDS = ("type", "sequence_number")
"""Fields of an error event of Responses that belong to the event."""
MAX_MESSAGE = 500
"""Characters of an engine's message that logs and telemetry keep; the client gets the whole message."""
REFUSALS = frozenset({401, 403, 404, 429})
"""Statuses by which an engine refuses what it is sent for a reason of its own: its key, its paths, its limit. Another one may serve it."""
_WRAPPED_CODE = re.compile(r"input_value=\{'error': \{.*'code': (4\d\d)\}\}")
"""In the streams of Messages, vLLM cannot read an error of its own chat completions, and shows it, cut, in an error of that."""
_UNKNOWN_NAME = re.compile(r"\b(model|response)(\b|_)", re.IGNORECASE)


class _Choice(TypedDict, total=False):
    finish_reason: Any


class _Told(TypedDict, total=False):
    """What the gateway reads of an answer, of any type. No more is built: an answer of 64 MiB would hold the event loop for seconds."""

    choices: list[_Choice | list[Any] | str | float | bool | None] | dict[str, Any] | str | float | bool | None
    code: Any
    error: Any
    id: Any
    object: Any
    status: Any
    stop_reason: Any
    type: Any
    usage: Any


_told = msgspec.json.Decoder(_Told).decode


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error document of an engine.

    Attributes:
        error: The error object as the engine wrote it: `message`, `type`, `param`, `code` and any other fields.
        status: HTTP status that its `code` stands for, 400 to 599; 0 if it has no readable one.
    """

    error: dict[str, Any]
    status: int = 0

    @property
    def message(self) -> str:
        """The engine's message, cut to `MAX_MESSAGE` characters."""
        return str(self.error.get("message", self.error))[:MAX_MESSAGE]

    @property
    def blames_request(self) -> bool:
        """Whether the code blames the request (4xx): any engine would refuse it, and this engine is healthy."""
        return 400 <= self.status < 500 and not self.refuses_as(self.status)

    @property
    def is_full(self) -> bool:
        """Whether the engine says by the number 503 that it has no room, as SGLang with a full queue. Proxies write a text, if anything."""
        return self.status == 503 and isinstance(self.error.get("code"), int)

    def refuses_as(self, status: int) -> bool:
        """Whether an answer with this HTTP status blames the engine. A 404 for a model or a response that does not exist does not."""
        if status != 404:
            return status in REFUSALS
        return not _UNKNOWN_NAME.search(f"{self.error.get('param')} {self.error.get('code')} {self.message}")

    def body(self) -> bytes:
        """The document in OpenAI's form, `{"error": {"message", "type", "param", "code"}}`, with the engine's own fields in it."""
        own = {name: value for name, value in self.error.items() if name != "object"}
        kind = own.get("type") or TYPE_OF_STATUS.get(self.status, "server_error")
        return orjson.dumps({"error": {"message": self.message, "param": None, "code": self.status or None, **own, "type": kind}})


def json_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object that an engine answers with; None if the answer is no JSON, or no object."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def read_document(status: int, body: bytes) -> dict[str, Any] | None:
    """As `json_object`; of an answer with status 200 that is no error only the fields that the gateway reads."""
    if status == 200:
        try:
            # The decoder does not look at the texts that it skips: the answer has to be UTF-8.
            told: dict[str, Any] = {**_told(body.decode())}
        except (ValueError, RecursionError):
            return None
        if read_complaint(told) is None:
            return told
    return json_object(body)


def read_complaint(document: dict[str, Any]) -> Complaint | None:
    """Reads an error document, None if the document is no error.

    An error document has an object under `error` (vLLM, OpenAI, Anthropic), the same fields without that wrapper (SGLang: `object` is
    `error`; OpenAI's Responses: `type` is `error`), or a text under `error`. A document with `"error": null` is no error.
    """
    error = document.get("error")
    typed = document.get("type") == "error"
    if isinstance(error, dict):
        return Complaint(error, _status(error.get("code")) or (_status_of_type(error) if typed else 0))
    if error is not None:
        return Complaint({"message": str(error)}, _status(document.get("code")))
    if typed:
        return Complaint({name: value for name, value in document.items() if name not in EVENT_FIELDS}, _status(document.get("code")))
    if document.get("object") == "error":
        return Complaint(document, _status(document.get("code")))
    return None


def _status_of_type(error: dict[str, Any]) -> int:
    kind = error.get("type")
    if kind == "internal_error" and (wrapped := _WRAPPED_CODE.search(str(error.get("message")))):
        return int(wrapped[1])
    return STATUS_OF_TYPE.get(kind, 0) if isinstance(kind, str) else 0


def _status(code: object) -> int:
    """Reads numbers, and texts of three digits; OpenAI's named codes (`context_length_exceeded`) have no status."""
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else 0
