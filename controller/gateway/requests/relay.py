"""Relays an engine's answer to the client: bytes unchanged, tokens counted, and nothing sent before the answer has proven valid."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from hmas.controller.gateway.http.transport import Responder
from hmas.controller.gateway.requests.engine_errors import REFUSALS, Complaint, read_complaint
from hmas.controller.gateway.requests.event_relay import JSON, SSE, Answer, EngineFault, EngineRefused, EventRelay
from hmas.controller.gateway.requests.sse import ABORTED, excerpt, usage_figures
from hmas.engines.base import EngineResponse
from hmas.engines.errors import EngineProtocolError, EngineUnavailable

__all__ = ["STREAM_HEADERS", "Answer", "EngineFault", "relay"]

MAX_ANSWER_BYTES = 64 << 20
PLAIN_REFUSALS = frozenset({400, 413, 422})
"""Statuses that blame the request even without JSON, such as those of a web server between gateway and engine that finds a body too large.
Others without JSON (a 404 page, say) mean that the answer does not come from an engine."""
STREAM_HEADERS = {"content-type": f"{SSE}; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


async def relay(
    response: EngineResponse,
    out: Responder,
    answer: Answer,
    *,
    head: Callable[[], Mapping[str, str]],
    progress: Callable[[int], None],
) -> None:
    """Passes a stream on as it arrives, or collects a whole answer in `answer.body` for the caller to send.

    Args:
        response: The engine's answer.
        out: The client.
        answer: Filled in as the answer arrives, even if this raises.
        head: Creates the response headers; called when the first whole event has arrived.
        progress: Called with the output tokens so far, whenever more have come.

    Raises:
        EngineError: The engine broke off, failed, or sent no valid answer; `answer.started` shows whether the client has received anything.
        ConnectionError: The client is gone.
    """
    answer.status = response.status
    content_type = response.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SSE and response.status == 200:
        answer.streamed = True
        try:
            await _relay_events(EventRelay(response, out, answer, head, progress), response)
        except EngineRefused as refused:
            answer.streamed = False
            _refuse(answer, refused.complaint)
        return
    body = await _read_whole(response)
    document = _document(kind, body)
    failed = response.status if response.status >= 500 else _refused_with(response.status, document)
    if failed:
        raise _fault(failed, response, kind, document, body)
    refusal = _refusal(response.status, kind, document, body)
    if refusal is not None:
        _refuse(answer, refusal)
        return
    if document is None:
        raise EngineProtocolError(
            f"the engine answered {response.status} with {kind or 'no content type'} that is no JSON: {excerpt(body)}"
        )
    if response.status != 200 and response.status < 400:
        raise EngineProtocolError(f"the engine answered {response.status}, which is neither an answer nor an error")
    answer.body = body
    answer.content_type = content_type or JSON
    if response.status >= 400:
        answer.refusal = _error_message(document)
    if _aborted(document):
        raise EngineFault(500, "the engine dropped the request")
    usage = document.get("usage")
    if isinstance(usage, dict):
        answer.output_tokens, answer.cached_tokens = usage_figures(usage)


async def _relay_events(events: EventRelay, response: EngineResponse) -> None:
    """Relays the events; returns when the stream has ended properly. Raises as `relay`."""
    try:
        await response.relay(events.take)
    except EngineUnavailable:
        # After its last event an engine may end the connection in any way.
        if not events.done:
            raise
    events.finish()


def _refused_with(status: int, document: dict[str, Any] | None) -> int:
    """The status with which the engine refused for a reason of its own; 0 if it did not."""
    if document is None:
        # A page under 404 without JSON comes from no engine.
        return status if status in REFUSALS and status != 404 else 0
    complaint = read_complaint(document)
    if status == 200 and complaint is not None and "choices" not in document:
        status = complaint.status
    return status if (complaint or Complaint(document)).refuses_as(status) else 0


def _fault(status: int, response: EngineResponse, kind: str, document: dict[str, Any] | None, body: bytes) -> EngineFault:
    """The error of an engine that failed or refused with `status`; the document is passed on unchanged if it is one of that status."""
    what = excerpt(body) if document is None else _error_message(document)
    if document is None:
        body = b""
    elif kind == SSE or response.status != status:
        body = (read_complaint(document) or Complaint(document, status)).body()
    return EngineFault(status, f"the engine answered {status}: {what}", body, response.headers.get("retry-after", ""))


def _refusal(status: int, kind: str, document: dict[str, Any] | None, body: bytes) -> Complaint | None:
    """The refusal in a whole answer that is not a JSON document with the right status of its own; else None."""
    if document is None:
        text = excerpt(body) if body else "no further text"
        return Complaint({"message": f"the engine answered {status}: {text}"}, status) if status in PLAIN_REFUSALS else None
    complaint = read_complaint(document)
    if status >= 400 and kind == SSE:
        return Complaint(document if complaint is None else complaint.error, status)
    if status == 200 and complaint is not None and complaint.blames_request and "choices" not in document:
        return complaint
    return None


def _refuse(answer: Answer, complaint: Complaint) -> None:
    """Makes the engine's error document the answer, with the status of its code."""
    answer.status = complaint.status
    answer.content_type = JSON
    answer.body = complaint.body()
    answer.refusal = complaint.message


async def _read_whole(response: EngineResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise EngineProtocolError(f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _document(kind: str, body: bytes) -> dict[str, Any] | None:
    """The JSON object of a whole body, or of its first event if an error comes in the form of a stream."""
    if kind == SSE:
        return _json_object(body.removeprefix(b"data:").partition(b"\n\n")[0])
    return _json_object(body) if kind == JSON or kind.endswith("+json") or not kind else None


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _aborted(document: dict[str, Any]) -> bool:
    choices = document.get("choices")
    return isinstance(choices, list) and any(isinstance(choice, dict) and choice.get("finish_reason") == ABORTED for choice in choices)


def _error_message(document: dict[str, Any]) -> str:
    complaint = read_complaint(document) or Complaint(document)
    return complaint.message
