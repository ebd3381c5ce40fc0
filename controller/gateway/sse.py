"""Server-sent events as engines send them: cut at event boundaries, counted, and passed on byte for byte."""

from typing import Any

import orjson

from engines.errors import EngineProtocolError

MAX_EVENT_BYTES = 8 << 20
ABORTED = "abort"
"""Finish reason of vLLM, SGLang and the embedded engine for a request that somebody made them drop."""
FIELDS = (b"data:", b":", b"event:", b"id:", b"retry:")


class EventScanner:
    """Takes the bytes of one stream and gives back those that make whole events.

    Half an event is held back until its rest arrives, so that an engine that breaks off in the middle of one leaves the client with
    whole events only. Tokens are counted as events with content; `usage`, where the engine sends it, is the truth.

    Attributes:
        tokens: Events with content so far.
        done: Whether `[DONE]` has been seen.
        finished: Whether a finish reason has been seen.
        aborted: Whether that reason was the engine's own `abort`.
        error: The engine's own error event, None where there was none.
    """

    __slots__ = ("_gap", "_held", "_marks", "_usage", "aborted", "done", "error", "finished", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.done = False
        self.finished = False
        self.aborted = False
        self.error: str | None = None
        self._held = b""
        self._gap = b"\n\n"
        self._marks: tuple[bytes, ...] = ()
        self._usage: dict[str, Any] | None = None

    @property
    def usage(self) -> dict[str, Any]:
        """The last `usage` object seen, empty where there was none."""
        return self._usage or {}

    @property
    def complete(self) -> bool:
        """Whether the stream may end here: it said so, or every choice gave its reason."""
        return self.done or (self.finished and not self._held)

    def feed(self, chunk: bytes) -> bytes:
        """Takes a chunk; returns the bytes that may be passed on, empty while an event is incomplete.

        Raises:
            EngineProtocolError: What arrived is not an event stream, or one event is larger than 8 MiB.
        """
        if self._held:
            chunk = self._held + chunk
            self._held = b""
        elif self._is_one_token(chunk):
            self.tokens += 1
            return chunk
        if not chunk.endswith(self._gap):
            chunk = self._cut(chunk)
            if not chunk:
                return b""
        self._count(chunk)
        return chunk

    def _is_one_token(self, chunk: bytes) -> bool:
        """Whether this is one whole event without any mark: what nearly every chunk of a stream that flows is."""
        if not self._marks or not chunk.startswith(b"data: {") or chunk.find(self._gap) != len(chunk) - len(self._gap):
            return False
        finish, usage, error, done = self._marks
        return not (finish in chunk or usage in chunk or error in chunk or done in chunk) and chunk.endswith(b"}" + self._gap)

    def _count(self, block: bytes) -> None:
        """Takes whole events in: looks into the first one and into those with a mark, and only counts the rest, which are plain tokens."""
        gap, start = self._gap, 0
        while not self._marks and start < len(block):
            end = block.index(gap, start)
            self._look(block[start:end])
            start = end + len(gap)
        rest = block[start:] if start else block
        if not rest:
            return
        marked = self._first_mark(rest)
        if marked >= 0:
            cut = rest.rfind(gap, 0, marked)
            cut = cut + len(gap) if cut >= 0 else 0
            plain, special = rest[:cut], rest[cut:]
        else:
            plain, special = rest, b""
        events = plain.count(gap)
        if plain.startswith(b"data:") and events == plain.count(b"}" + gap):
            self.tokens += events
        else:
            special = rest
        for event in special.split(gap):
            if event:
                self._look(event)

    def _first_mark(self, block: bytes) -> int:
        first = -1
        for mark in self._marks:
            found = block.find(mark)
            if found >= 0 and (first < 0 or found < first):
                first = found
        return first

    def _cut(self, chunk: bytes) -> bytes:
        end = chunk.rfind(self._gap)
        if end < 0 and self._gap == b"\n\n" and b"\r\n\r\n" in chunk:
            self._gap = b"\r\n\r\n"
            end = chunk.rfind(self._gap)
        cut = end + len(self._gap) if end >= 0 else 0
        self._held = chunk[cut:]
        if len(self._held) > MAX_EVENT_BYTES:
            raise EngineProtocolError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes without an end")
        if cut == 0 and not _may_begin_event(self._held):
            raise EngineProtocolError(f"the engine sent something that is no event stream: {excerpt(self._held)}")
        return chunk[:cut]

    def _look(self, event: bytes) -> None:
        for line in event.splitlines():
            if not line.startswith(FIELDS):
                raise EngineProtocolError(f"the engine sent something that is no event stream: {excerpt(line)}")
        start = event.find(b"data:")
        if start < 0:
            return
        data = event[start + 5 :].strip()
        if data == b"[DONE]":
            self.done = True
            return
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise EngineProtocolError(f"the engine sent an event that is not JSON: {excerpt(data)}") from None
        if not isinstance(document, dict):
            raise EngineProtocolError(f"the engine sent an event that is no JSON object: {excerpt(data)}")
        self._learn_spacing(data)
        self._read(document)

    def _learn_spacing(self, data: bytes) -> None:
        """JSON writers put a space after each colon or none; the marks to look for follow the first event seen."""
        if not self._marks:
            space = b" " if b'": ' in data[:64] else b""
            self._marks = (b'"finish_reason":' + space + b'"', b'"usage":' + space + b"{", b'error"', b"[DONE]")

    def _read(self, document: dict[str, Any]) -> None:
        if "error" in document or document.get("object") == "error":
            self.error = _error_text(document)
            return
        usage = document.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                reason = choice.get("finish_reason")
                self.finished = self.finished or reason is not None
                self.aborted = self.aborted or reason == ABORTED
                self.tokens += _has_content(choice)


def usage_figures(usage: dict[str, Any]) -> tuple[int | None, int]:
    """Output tokens (None where not said) and cached prompt tokens of an OpenAI `usage` object; anything odd counts as not said."""
    output = usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return (
        output if isinstance(output, int) and output >= 0 else None,
        cached if isinstance(cached, int) and cached >= 0 else 0,
    )


def excerpt(data: bytes, limit: int = 80) -> str:
    """The beginning of what an engine sent, safe to show."""
    text = data[:limit].decode("utf-8", "replace")
    return repr(text) + ("..." if len(data) > limit else "")


def _may_begin_event(data: bytes) -> bool:
    return any(data.startswith(field[: len(data)]) for field in FIELDS)


def _has_content(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")


def _error_text(document: dict[str, Any]) -> str:
    error = document.get("error")
    message = error.get("message") if isinstance(error, dict) else document.get("message", error)
    return str(message)[:500]
