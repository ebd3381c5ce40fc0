"""From an engine's answer to the client: bytes unchanged, tokens counted, nothing sent before the answer has proven to be one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from controller.gateway.sse import ABORTED, EventScanner, excerpt, usage_figures
from controller.gateway.transport import Responder
from engines.base import EngineResponse
from engines.errors import EngineError, EngineProtocolError, EngineUnavailable

MAX_ANSWER_BYTES = 64 << 20
MAX_TAIL_BYTES = 1 << 20
SSE = "text/event-stream"
JSON = "application/json"
STREAM_HEADERS = {"content-type": f"{SSE}; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class EngineFault(EngineError):
    """The engine answered that it failed. `body` is its own error document, empty where it sent none that is JSON."""

    def __init__(self, status: int, message: str, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


@dataclass(slots=True)
class Answer:
    """What became of one engine's answer.

    Attributes:
        status: HTTP status passed on.
        started: Whether the client has been sent anything.
        output_tokens: By the engine's `usage`, else counted; None where nothing tells.
        body: The whole answer where it did not come as a stream.
        engine_error: The engine's own error inside the stream, empty where there was none.
        tail: The end of a stream, from the read that brought `[DONE]` on: it leaves together with the end of the answer.
    """

    status: int = 0
    started: bool = False
    streamed: bool = False
    output_tokens: int | None = None
    cached_tokens: int = 0
    body: bytes = b""
    tail: bytes = b""
    content_type: str = JSON
    engine_error: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


async def relay(
    response: EngineResponse,
    out: Responder,
    answer: Answer,
    *,
    head: Callable[[], Mapping[str, str]],
    progress: Callable[[int], None],
) -> None:
    """Passes a stream on as it comes, or gathers a whole answer into `answer.body` for the caller to send.

    Args:
        response: The engine's answer.
        out: The client.
        answer: Filled in as the answer goes by, also where this raises.
        head: Makes the response headers, called when the first whole event is there.
        progress: Told the output tokens so far, whenever more have come.

    Raises:
        EngineError: The engine broke off, failed, or sent what is no answer; `answer.started` says whether the client has seen anything.
        ConnectionError: The client is gone.
    """
    answer.status = response.status
    content_type = response.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SSE and response.status == 200:
        answer.streamed = True
        await _EventRelay(response, out, answer, head, progress).run()
        return
    body = await _read_whole(response)
    document = _json_object(body) if kind == JSON or kind.endswith("+json") or not kind else None
    if response.status >= 500:
        what = excerpt(body) if document is None else _error_message(document)
        raise EngineFault(response.status, f"the engine answered {response.status}: {what}", b"" if document is None else body)
    if document is None:
        raise EngineProtocolError(
            f"the engine answered {response.status} with {kind or 'no content type'} that is no JSON: {excerpt(body)}"
        )
    if response.status != 200 and response.status < 400:
        raise EngineProtocolError(f"the engine answered {response.status}, which is neither an answer nor an error")
    answer.body = body
    answer.content_type = content_type or JSON
    if _aborted(document):
        raise EngineFault(500, "the engine dropped the request")
    usage = document.get("usage")
    if isinstance(usage, dict):
        answer.output_tokens, answer.cached_tokens = usage_figures(usage)


class _EventRelay:
    """Takes the engine's bytes as they are read, and writes them to the client in the same callback."""

    __slots__ = ("_answer", "_head", "_out", "_progress", "_response", "_scanner", "_write")

    def __init__(
        self,
        response: EngineResponse,
        out: Responder,
        answer: Answer,
        head: Callable[[], Mapping[str, str]],
        progress: Callable[[int], None],
    ) -> None:
        self._response = response
        self._out = out
        self._answer = answer
        self._head = head
        self._progress = progress
        self._scanner = EventScanner()
        self._write = out.write

    async def run(self) -> None:
        """Returns when the stream has ended as it should. Raises as `relay`."""
        answer, scanner = self._answer, self._scanner
        try:
            await self._response.relay(self._take)
        except EngineUnavailable:
            # After its last event an engine may end as it likes.
            if not scanner.done:
                raise
        output, answer.cached_tokens = usage_figures(scanner.usage)
        answer.output_tokens = scanner.tokens if output is None else output
        if scanner.error is not None:
            answer.engine_error = scanner.error
        elif scanner.aborted:
            answer.engine_error = "the engine dropped the request"
        elif not scanner.complete:
            raise EngineProtocolError("the engine's stream ended in the middle of the answer")

    def _take(self, chunk: bytes) -> bool:
        scanner, answer = self._scanner, self._answer
        told = scanner.tokens
        data = scanner.feed(chunk)
        if not data:
            return True
        tokens = scanner.tokens
        if tokens > told:
            answer.output_tokens = tokens
            self._progress(tokens)
        if not answer.started:
            self._start(tokens)
        if scanner.done:
            answer.tail += data
            if len(answer.tail) > MAX_TAIL_BYTES:
                raise EngineProtocolError(f"the engine's stream goes on for more than {MAX_TAIL_BYTES} bytes after its end")
            return True
        return self._write(data)

    def _start(self, tokens: int) -> None:
        error = self._scanner.error
        if error is not None and tokens == 0:
            raise EngineFault(500, f"the engine reported an error: {error}")
        self._answer.started = True
        self._answer.output_tokens = tokens
        self._out.start(200, self._head())
        self._out.when_drained(self._response.resume)


async def _read_whole(response: EngineResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise EngineProtocolError(f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
    error = document.get("error", document)
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:500]
