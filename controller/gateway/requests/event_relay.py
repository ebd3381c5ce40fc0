"""Relays a stream of events from an engine's connection to the client's, with one callback per piece."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hmas.controller.gateway.http.transport import Responder
from hmas.controller.gateway.requests.engine_errors import Complaint
from hmas.controller.gateway.requests.sse import EventScanner, usage_figures
from hmas.engines.base import EngineResponse
from hmas.engines.errors import EngineError, EngineProtocolError

MAX_TAIL_BYTES = 1 << 20
SSE = "text/event-stream"
JSON = "application/json"


class EngineFault(EngineError):
    """The engine answered that it failed, or refused the request for a reason of its own (a status of `REFUSALS`).

    `body` is its own error document, empty if it sent none in JSON. `retry_after`: its header of that name, empty if it sent none.
    """

    def __init__(self, status: int, message: str, body: bytes = b"", retry_after: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after

    @property
    def refuses(self) -> bool:
        """Whether it refused the request, rather than failed on it."""
        return self.status < 500


class EngineRefused(EngineError):
    """The engine refused the request in a stream before its first token: that error is the answer, and the engine is healthy."""

    def __init__(self, complaint: Complaint) -> None:
        super().__init__(complaint.message)
        self.complaint = complaint


@dataclass(slots=True)
class Answer:
    """The state of one engine's answer.

    Attributes:
        status: HTTP status passed on; that of the error's code if the engine refused the request in its first event.
        started: Whether the client has been sent anything.
        output_tokens: By the engine's `usage`, otherwise counted; None if neither is known.
        body: The whole answer, if it did not come as a stream.
        engine_error: The engine's own error inside the stream, empty if there was none.
        engine_well: Whether the engine worked correctly; this includes an error that blames the request (a code of 4xx).
        refusal: The engine's message if it refused the request, empty otherwise. `retry_after`: its header of that name.
        tail: The end of a stream, from the read that contained `[DONE]` on: it is sent together with the end of the answer.
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
    engine_well: bool = True
    refusal: str = ""
    retry_after: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


class EventRelay:
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

    @property
    def done(self) -> bool:
        """Whether the stream has announced its end."""
        return self._scanner.done

    def finish(self) -> None:
        """Records the end of the stream.

        Raises:
            EngineProtocolError: The stream ended in the middle of the answer.
        """
        answer, scanner = self._answer, self._scanner
        output, answer.cached_tokens = usage_figures(scanner.usage)
        answer.output_tokens = scanner.tokens if output is None else output
        if scanner.error is not None:
            answer.engine_error = scanner.error.message
            answer.engine_well = scanner.error.blames_request
        elif scanner.aborted:
            answer.engine_error = "the engine dropped the request"
            answer.engine_well = False
        elif not scanner.complete:
            raise EngineProtocolError("the engine's stream ended in the middle of the answer")

    def take(self, chunk: bytes) -> bool:
        """Takes bytes of the stream; False if the client reads too slowly.

        Raises:
            EngineRefused: The engine refused the request before its first token.
            EngineFault: The engine failed before its first token.
            EngineProtocolError: The input is no stream of events, or has no end.
            ConnectionError: The client is gone.
        """
        scanner, answer = self._scanner, self._answer
        before = scanner.tokens
        data = scanner.feed(chunk)
        if not data:
            return True
        tokens = scanner.tokens
        if tokens > before:
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
            if error.blames_request:
                raise EngineRefused(error)
            told = f"the engine reported an error: {error.message}"
            raise EngineFault(error.status, told, error.body()) if 400 <= error.status < 500 else EngineFault(500, told)
        self._answer.started = True
        self._answer.output_tokens = tokens
        self._out.start(200, self._head())
        self._out.when_drained(self._response.resume)
