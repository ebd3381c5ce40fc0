"""Reads an OpenAI answer as a client: times of its tokens, length and end. Cheap enough for thousands of events per second."""

from typing import Any, NamedTuple

import orjson


class AnswerReader:
    """Reads a streamed answer, fed with the body's bytes, which may be cut anywhere, and their arrival times.

    Attributes:
        times_s: When tokens came, one entry per event that has one or more.
        prompt_tokens: By `usage`; 0 if the answer has none.
        finished: Whether a finish reason came.
        done: Whether `[DONE]` came.
        error: (code, message) of an error event in the stream; None without one.
        broken: The first violation of the protocol, as text; empty if there was none.
    """

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.prompt_tokens = 0
        self.finished = False
        self.done = False
        self.error: tuple[str, str] | None = None
        self.broken = ""
        self._rest = b""
        self._finish_s = -1.0
        self._usage_tokens = -1

    @property
    def first_s(self) -> float:
        """Time of the first token, or of the finish reason of an answer without tokens; -1 before any."""
        return self.times_s[0] if self.times_s else self._finish_s

    @property
    def last_s(self) -> float:
        """The same for the last token."""
        return self.times_s[-1] if self.times_s else self._finish_s

    @property
    def tokens(self) -> int:
        """Output tokens by `usage`, or the number of events with tokens if the answer has no usage."""
        return len(self.times_s) if self._usage_tokens < 0 else self._usage_tokens

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Parses the next bytes of the stream, which arrived at `now_s`."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                self._break(f"not an SSE line: {line[:60]!r}")

    def end(self) -> None:
        """Checks the end of the stream."""
        if self._rest.strip():
            self._break(f"ended inside an event: {self._rest[:60]!r}")

    def _break(self, text: str) -> None:
        self.broken = self.broken or text

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._break(f"not JSON: {data[:60]!r}")
            return
        if not isinstance(event, dict):
            self._break(f"not an object: {data[:60]!r}")
            return
        if event.get("error") is not None:
            self.error = read_error(event)
            return
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage_tokens = int(usage.get("completion_tokens") or self._usage_tokens)
            self.prompt_tokens = int(usage.get("prompt_tokens") or self.prompt_tokens)
        for choice in event.get("choices") or ():
            if choice.get("finish_reason"):
                self.finished = True
                self._finish_s = now_s
            if _has_token(choice):
                self.times_s.append(now_s)


def _has_token(choice: dict[str, Any]) -> bool:
    """Whether a choice has a token. One of half a character has an empty text, like the opening event, which names the role."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    if delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content") or delta.get("reasoning"):
        return True
    return delta.get("content") == "" and "role" not in delta and not choice.get("finish_reason")


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
