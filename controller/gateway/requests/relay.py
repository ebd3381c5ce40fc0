"""Relays an engine's answer to the client: bytes unchanged, tokens counted, and nothing sent before the answer has proven valid."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from hmas.controller.gateway.http.transport import Responder
from hmas.controller.gateway.requests.apis.api import NOT_AGAIN, Api, complaint_of
from hmas.controller.gateway.requests.engine_errors import REFUSALS, Complaint, json_object, read_complaint, read_document
from hmas.controller.gateway.requests.event_relay import (
    FULL_RETRY_AFTER,
    JSON,
    LACKS_API,
    SSE,
    Answer,
    EngineFault,
    EngineRefused,
    EventRelay,
    OnlyOpened,
)
from hmas.controller.gateway.requests.sse import excerpt, usage_figures, usage_total
from hmas.engines.base import EngineResponse
from hmas.engines.errors import AnswerBroken, AnswerTooLarge, EngineProtocolError, EngineUnavailable

__all__ = ["LACKS_API", "STREAM_HEADERS", "Answer", "EngineFault", "OnlyOpened", "relay"]

MAX_ANSWER_BYTES = 64 << 20
BYTES = "application/octet-stream"
METADATA = "metadata"
"""Header in which vLLM describes an answer of bytes."""
PLAIN_REFUSALS = frozenset({400, 413, 422})
"""Statuses that blame the request even without JSON, such as those of a web server between gateway and engine that finds a body too large.
Others without JSON (a 404 page, say) mean that the answer does not come from an engine."""
STREAM_HEADERS = {"content-type": f"{SSE}; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


async def relay(
    response: EngineResponse,
    out: Responder,
    answer: Answer,
    *,
    api: Api,
    head: Callable[[], Mapping[str, str]],
    progress: Callable[[int], None],
    binary: bool = False,
) -> None:
    """Passes a stream on as it arrives, or collects a whole answer in `answer.body` for the caller to send.

    Args:
        response: The engine's answer.
        out: The client.
        answer: Filled in as the answer arrives, even if this raises.
        api: The API of the request: how its events and errors are read and written.
        head: Creates the response headers; called when the first whole event has arrived. If it raises, the client gets nothing.
        progress: Called with the output tokens so far, whenever more have come.
        binary: Whether a whole answer that is no JSON object is one, too: bytes (vLLM's embeddings on request), a list (SGLang's rerank).

    Raises:
        EngineError: The engine broke off, failed, or sent no valid answer; `answer.started` shows whether the client has received anything.
        ConnectionError: The client is gone.
    """
    answer.status = response.status
    content_type = response.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SSE and response.status == 200:
        answer.streamed = True
        events = EventRelay(response, out, answer, head, progress, api=api)
        try:
            await _relay_events(events, response)
        except EngineRefused as refused:
            answer.streamed = False
            answer.in_engine_s = response.took_s()
            _refuse(answer, refused.complaint, api)
        finally:
            answer.events = events.scanner.events
        return
    body = await _read_whole(response)
    answer.in_engine_s = response.took_s()
    document = _document(response.status, kind, body)
    if api.lacks_path(response.status, document):
        raise _lacks_api(response.status, api, "" if document is None else complaint_of(document).message)
    failed = response.status if response.status >= 500 else _refused_with(response.status, document, api)
    if failed:
        raise _fault(failed, response, kind, document, body=body, api=api)
    refusal = _refusal(response.status, kind, document, body, api)
    if refusal is not None:
        _refuse(answer, refusal, api)
        return
    if document is None and binary and response.status == 200 and _is_bytes_or_list(kind, body):
        answer.content_type, answer.body = content_type, body
        if METADATA in response.headers:
            answer.headers = {METADATA: response.headers[METADATA]}
        return
    if document is None:
        raise EngineProtocolError(
            f"the engine answered {response.status} with {kind or 'no content type'} that is no JSON: {excerpt(body)}"
        )
    if response.status != 200 and response.status < 400:
        raise EngineProtocolError(f"the engine answered {response.status}, which is neither an answer nor an error")
    answer.content_type = content_type or JSON
    if response.status >= 400:
        answer.body = api.engine_document(response.status, document, body)
        answer.refusal = complaint_of(document).message
        return
    answer.body = body
    _read_answer(answer, document, api)


def _read_answer(answer: Answer, document: dict[str, Any], api: Api) -> None:
    """Notes what a whole answer tells about itself.

    Raises:
        EngineFault: The engine dropped the request.
    """
    if api.aborted(document):
        raise EngineFault(500, "the engine dropped the request")
    answer.engine_error = api.failure(document)
    answer.engine_well = not answer.engine_error
    answer.response_id = api.response_id(document)
    usage = document.get("usage")
    if isinstance(usage, dict):
        answer.output_tokens, answer.cached_tokens = usage_figures(usage)
        answer.total_tokens = usage_total(usage)


async def _relay_events(events: EventRelay, response: EngineResponse) -> None:
    """Relays the events; returns when the stream has ended properly. Raises as `relay`."""
    try:
        await response.relay(events.take)
    except EngineUnavailable as error:
        if isinstance(error, AnswerBroken) and events.scanner.only_opened:
            raise OnlyOpened(f"{error}; the answer had not begun, so the request itself may be at fault") from None
        # After its last event an engine may end the connection in any way.
        if not events.scanner.done:
            raise
    events.finish()


def _refused_with(status: int, document: dict[str, Any] | None, api: Api) -> int:
    """The status with which the engine refused for a reason of its own; 0 if it did not."""
    if document is None:
        # A page under 404 without JSON comes from no engine.
        return status if status in REFUSALS and status != 404 else 0
    complaint = read_complaint(document)
    if status == 200 and complaint is not None and not api.is_answer(document):
        status = complaint.status
    return status if (complaint or Complaint(document)).refuses_as(status) else 0


def _fault(status: int, response: EngineResponse, kind: str, document: dict[str, Any] | None, *, body: bytes, api: Api) -> EngineFault:
    """The error of an engine that failed or refused with `status`; its document is passed on in the API's form."""
    retry_after = response.headers.get("retry-after", "")
    if document is None:
        what, own = excerpt(body), b""
    else:
        complaint = complaint_of(document)
        what = complaint.message
        if complaint.is_full:
            retry_after = retry_after or FULL_RETRY_AFTER
        if kind == SSE or response.status != status:
            own = api.complaint_body(read_complaint(document) or Complaint(document, status))
        else:
            own = api.engine_document(status, document, body)
    return EngineFault(status, f"the engine answered {status}: {what}", own, retry_after)


def _lacks_api(status: int, api: Api, text: str) -> EngineFault:
    """The error of an engine that does not serve the API: another one may, and this one is well."""
    error = api.unsupported(status, text)
    return EngineFault(error.status, error.message, api.error_body(error), headers=NOT_AGAIN)


def _refusal(status: int, kind: str, document: dict[str, Any] | None, body: bytes, api: Api) -> Complaint | None:
    """The refusal in a whole answer that is not a JSON document with the right status of its own; else None."""
    if document is None:
        text = excerpt(body) if body else "no further text"
        return Complaint({"message": f"the engine answered {status}: {text}"}, status) if status in PLAIN_REFUSALS else None
    complaint = read_complaint(document)
    if status >= 400 and kind == SSE:
        return Complaint(document if complaint is None else complaint.error, status)
    if status == 200 and complaint is not None and complaint.blames_request and not api.is_answer(document):
        return complaint
    return None


def _refuse(answer: Answer, complaint: Complaint, api: Api) -> None:
    """Makes the engine's error document the answer, with the status of its code."""
    answer.status = complaint.status
    answer.content_type = JSON
    answer.body = api.complaint_body(complaint)
    answer.refusal = complaint.message


async def _read_whole(response: EngineResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_bytes_or_list(kind: str, body: bytes) -> bool:
    if kind != JSON:
        return kind == BYTES
    try:
        return isinstance(orjson.loads(body), list)
    except orjson.JSONDecodeError:
        return False


def _document(status: int, kind: str, body: bytes) -> dict[str, Any] | None:
    """The JSON object of a whole body, or of its first event if an error comes in the form of a stream."""
    if kind == SSE:
        return json_object(body.partition(b"data:")[2].partition(b"\n\n")[0])
    return read_document(status, body) if kind == JSON or kind.endswith("+json") or not kind else None
