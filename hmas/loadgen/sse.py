"""Reads an OpenAI answer as a client: times of its parts, length and end. Cheap enough for thousands of events per second."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import orjson


class SseLines(ABC):
    """Parses server-sent events from bytes that may be cut anywhere; a subclass interprets the events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Parses the next bytes of the stream, which arrived at `now_s`."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                self._stray(line)

    @abstractmethod
    def _event(self, data: bytes, now_s: float) -> None:
        """Handles the data of one event."""

    def _stray(self, line: bytes) -> None:  # noqa: B027 - most subclasses do not need it
        """Handles a line that is not part of the protocol."""


class AnswerReader(SseLines):
    """Reads a streamed answer, fed with the body's bytes and their arrival times.

    Attributes:
        first_s, last_s: Times of the first and the last content chunk; -1 before any. For an answer without content both are the time of
            its finish reason.
        finished: Whether a finish reason came.
        done: Whether `[DONE]` came.
        error: (code, message) of an error event in the stream; None without one.
        broken: The first violation of the protocol, as text; empty if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first_s = -1.0
        self.last_s = -1.0
        self.finished = False
        self.done = False
        self.error: tuple[str, str] | None = None
        self.broken = ""
        self._usage_tokens = -1
        self._events = 0

    @property
    def tokens(self) -> int:
        """Output tokens by `usage`, or the number of content events if the answer has no usage."""
        return self._events if self._usage_tokens < 0 else self._usage_tokens

    def end(self) -> None:
        """Checks the end of the stream."""
        if self._rest.strip():
            self.broken = self.broken or f"ended inside an event: {self._rest[:60]!r}"

    def _stray(self, line: bytes) -> None:
        self.broken = self.broken or f"not an SSE line: {line[:60]!r}"

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            self.broken = self.broken or f"not JSON: {data[:60]!r}"
            return
        if not isinstance(event, dict):
            self.broken = self.broken or f"not an object: {data[:60]!r}"
            return
        if event.get("error") is not None:
            self.error = read_error(event)
            return
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage_tokens = int(usage.get("completion_tokens", self._usage_tokens))
        for choice in event.get("choices") or ():
            if choice.get("finish_reason"):
                self.finished = True
            content = _has_content(choice)
            self._events += content
            if content or (self.finished and self.first_s < 0):
                self.last_s = now_s
                if self.first_s < 0:
                    self.first_s = now_s


def _has_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    return bool(delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content") or delta.get("reasoning"))


class WholeAnswer(NamedTuple):
    """An answer that was not streamed: its tokens by `usage`, and an error text, empty if there is none."""

    tokens: int
    broken: str = ""


def read_whole(body: bytes) -> WholeAnswer:
    """Reads an answer that was not streamed."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return WholeAnswer(0, f"not JSON: {body[:60]!r}")
    choices = document.get("choices") if isinstance(document, dict) else None
    usage = document.get("usage") if isinstance(document, dict) else None
    if not choices or not isinstance(usage, dict):
        return WholeAnswer(0, f"neither choices nor usage: {body[:60]!r}")
    if not all(choice.get("finish_reason") for choice in choices):
        return WholeAnswer(0, "a choice without a finish reason")
    return WholeAnswer(int(usage.get("completion_tokens") or 0))


def read_error(document: Any) -> tuple[str, str]:
    """Code and message of an OpenAI error document; empty texts if it is not one."""
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, str):
        return "", error
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
