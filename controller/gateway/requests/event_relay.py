"""Relays a stream of events from an engine's connection to the client's, with one callback per piece."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hmas.controller.gateway.http.transport import Responder
from hmas.controller.gateway.requests.apis.api import Api
from hmas.controller.gateway.requests.engine_errors import Complaint
from hmas.controller.gateway.requests.sse import usage_figures, usage_total
from hmas.engines.base import EngineResponse
from hmas.engines.errors import AnswerBroken, EngineError, EngineProtocolError

MAX_TAIL_BYTES = 1 << 20
SSE = "text/event-stream"
JSON = "application/json"
LACKS_API = 501
"""Status of an answer by an engine that does not serve the request's API."""
FULL_RETRY_AFTER = "full"
"""Stands for the `Retry-After` that is missing from a 503 which the engine itself wrote: in a stream it can send no such header."""


def sent_retry_after(retry_after: str) -> str:
    """What an engine's `Retry-After` tells its client, empty for nothing."""
    return "" if retry_after == FULL_RETRY_AFTER else retry_after[:64]


def is_refusal(status: int, retry_after: str) -> bool:
    """Whether an engine that answered so is well: a 503 that says when to try again is how some shed load, as others do by 429."""
    return status < 500 or status == LACKS_API or (status == 503 and bool(retry_after))


class EngineFault(EngineError):
    """The engine answered that it failed, or refused the request for a reason of its own (a status of `REFUSALS`).

    `body` is its own error document, empty if it sent none in JSON. `retry_after`: its header of that name, or
    `FULL_RETRY_AFTER`; empty if it sent none. `headers`: further ones for the client.
    """

    def __init__(
        self, status: int, message: str, body: bytes = b"", retry_after: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.headers = headers

    @property
    def lacks_api(self) -> bool:
        """Whether the engine is well and does not serve the request's API."""
        return self.status == LACKS_API

    @property
    def refuses(self) -> bool:
        """Whether it refused the request, rather than failed on it."""
        return is_refusal(self.status, self.retry_after)


class EngineRefused(EngineError):
    """The engine refused the request in a stream before its first token: that error is the answer, and the engine is healthy."""

    def __init__(self, complaint: Complaint) -> None:
        super().__init__(complaint.message)
        self.complaint = complaint


class OnlyOpened(AnswerBroken):
    """The connection ended after the opening events of a stream of Responses: what vLLM does on some mistakes in a request."""


@dataclass(slots=True)
class Answer:
    """The state of one engine's answer.

    Attributes:
        status: HTTP status passed on; that of the error's code if the engine refused the request in its first event.
        started: Whether the client has been sent anything.
        output_tokens: By the engine's `usage`, None without one: events are counted elsewhere, and need not be tokens.
        total_tokens: Prompt and output by that `usage`, 0 if unknown.
        body: The whole answer, if it did not come as a stream.
        engine_error: The engine's own error inside the stream, empty if there was none.
        engine_well: Whether the engine worked correctly; this includes an error that blames the request (a code of 4xx).
        refusal: The engine's message if it refused the request, empty otherwise. `retry_after`: its header of that name.
        tail: The end of a stream, from the read that contained its last event on: it is sent together with the end of the answer.
        headers: Further headers for the client, None for none.
        events: Events of the stream so far, for an API that numbers them.
        response_id: The id under which the engine may keep the answer, empty if there is none.
        in_engine_s: Seconds from sending the request to the end of an answer that is not streamed.
    """

    status: int = 0
    started: bool = False
    streamed: bool = False
    output_tokens: int | None = None
    total_tokens: int = 0
    cached_tokens: int | None = None
    body: bytes = b""
    tail: bytes = b""
    content_type: str = JSON
    engine_error: str = ""
    engine_well: bool = True
    refusal: str = ""
    retry_after: str = ""
    headers: Mapping[str, str] | None = None
    events: int = 0
    response_id: str = ""
    in_engine_s: float = 0.0


class EventRelay:
    """Takes the engine's bytes as they are read, and writes them to the client in the same callback. `scanner`: what they tell so far."""

    __slots__ = ("_answer", "_api", "_head", "_out", "_progress", "_response", "_write", "scanner")

    def __init__(
        self,
        response: EngineResponse,
        out: Responder,
        answer: Answer,
        head: Callable[[], Mapping[str, str]],
        progress: Callable[[int], None],
        *,
        api: Api,
    ) -> None:
        self._response = response
        self._out = out
        self._answer = answer
        self._head = head
        self._progress = progress
        self._api = api
        self.scanner = api.scanner()
        self._write = out.write

    def finish(self) -> None:
        """Records the end of the stream.

        Raises:
            EngineProtocolError: The stream ended in the middle of the answer.
        """
        answer, scanner = self._answer, self.scanner
        answer.output_tokens, answer.cached_tokens = usage_figures(scanner.usage)
        answer.total_tokens = usage_total(scanner.usage)
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
        scanner, answer = self.scanner, self._answer
        before = scanner.tokens
        data = scanner.feed(chunk)
        if not data:
            return True
        tokens = scanner.tokens
        if not answer.started:
            self._start(tokens)
        if tokens > before:
            self._progress(tokens)
        if scanner.done:
            answer.tail += data
            if len(answer.tail) > MAX_TAIL_BYTES:
                raise EngineProtocolError(f"the engine's stream goes on for more than {MAX_TAIL_BYTES} bytes after its end")
            return True
        return self._write(data)

    def _start(self, tokens: int) -> None:
        error = self.scanner.error
        if error is not None and tokens == 0:
            if error.blames_request:
                raise EngineRefused(error)
            told = f"the engine reported an error: {error.message}"
            if not error.is_full and not 400 <= error.status < 500:
                raise EngineFault(500, told)
            raise EngineFault(error.status, told, self._api.complaint_body(error), FULL_RETRY_AFTER if error.is_full else "")
        self._answer.response_id = self.scanner.response_id
        head = self._head()
        self._answer.started = True
        self._response.begun()
        self._out.start(200, head)
        self._out.when_drained(self._response.resume)
