"""Server-sent events of engines: cut at event boundaries, counted, and passed on byte for byte."""

import re
from abc import abstractmethod
from typing import Any

import orjson

from hmas.controller.gateway.requests.engine_errors import Complaint, read_complaint
from hmas.engines.errors import AnswerTooLarge, EngineProtocolError

MAX_EVENT_BYTES = 8 << 20
MAX_OPENING_BYTES = 32 << 20
"""Most bytes of events before an answer begins: they repeat the request, with its tools."""
ABORTED = "abort"
"""Finish reason of vLLM, SGLang and the embedded engine for a request that was aborted on demand."""
FIELDS = (b"data:", b":", b"event:", b"id:", b"retry:")
ENDS = (b"\n\n", b"\n\r\n")
"""What an event ends with: an empty line. One stream may mix both ends of lines, for example where a proxy adds comments."""
END = re.compile(rb"\n\r?\n")
INDEX_MOST = 65_536
"""Indexes of choices from this one on count as the first one's."""
NOT_PLAIN = re.compile(rb'["\\\n]')
"""Characters that a JSON text without escapes does not contain."""


class EventScanner:
    """Takes the bytes of one stream and returns those that form whole events.

    Half an event is held back until its rest arrives, so that an engine that breaks off in the middle of one leaves the client with whole
    events only. What comes without data before the first event (vLLM's comments that keep connections alive) is dropped: it begins no
    answer. Tokens are counted as events with content, one each for every choice; if the engine sends `usage`, that count is exact.

    The token events of one stream differ only in one JSON text, that of the token. Once one of them has been parsed, the bytes before and
    after that text are known. An event with the same beginning and end, and with a text without quotes, escapes and line ends between them,
    is the same document with another token: it counts like the parsed one and need not be parsed. Events of another form are parsed.

    Attributes:
        tokens: Events with content so far. The scheduler corrects the count where an engine puts several tokens into an event.
        done: Whether `[DONE]` has been seen.
        finished: Whether each choice that has been seen has given its finish reason.
        aborted: Whether one of them was the engine's own `abort`.
        error: The engine's own error event, None if there was none.
        events: Events so far, as far as they are counted: 0 for APIs whose error events have no number.
        response_id: The id under which the engine may keep the answer, empty if there is none.
    """

    __slots__ = (
        "_before",
        "_behind",
        "_between",
        "_choices",
        "_frame",
        "_gap",
        "_held",
        "_opened",
        "_usage",
        "aborted",
        "done",
        "error",
        "events",
        "finished",
        "response_id",
        "tokens",
    )

    def __init__(self) -> None:
        self.tokens = 0
        self.done = False
        self.finished = False
        self.aborted = False
        self.error: Complaint | None = None
        self.events = 0
        self.response_id = ""
        self._held = b""
        self._opened = False
        # The end of the last event; and of each choice, by its index, whether it is finished.
        self._gap = b"\n\n"
        self._choices: dict[int, bool] = {}
        self._usage: dict[str, Any] | None = None
        self._before = self._behind = self._between = b""
        # Length of the bytes around a token; longer than any chunk until it is known.
        self._frame = MAX_EVENT_BYTES << 8

    @property
    def usage(self) -> dict[str, Any]:
        """The last `usage` object seen, empty if there was none."""
        return self._usage or {}

    @property
    def only_opened(self) -> bool:
        """Whether all that came is the opening events of the Responses API."""
        return False

    @property
    def complete(self) -> bool:
        """Whether the stream may end here: `[DONE]` has been seen, or every choice has given its finish reason."""
        return self.done or (self.finished and not self._held.strip(b"\r\n"))

    def feed(self, chunk: bytes) -> bytes:
        """Takes a chunk; returns the bytes that may be passed on, empty while an event is incomplete and before the first one with data.

        Raises:
            EngineProtocolError: The input is not an event stream, or one event is larger than 8 MiB.
        """
        if self._held:
            chunk = self._held + chunk
            self._held = b""
        # Nearly every chunk of a flowing stream is one token.
        if self._is_plain(chunk, 0, len(chunk)):
            self.tokens += 1
            return chunk
        if not chunk.endswith(ENDS):
            chunk = self._cut(chunk)
            if not chunk:
                return b""
        self._count(chunk)
        return chunk if self._opened else b""

    def _count(self, block: bytes) -> None:
        """Counts the tokens of whole events."""
        start, in_one = 0, True
        while start < len(block):
            if block[start] in b"\r\n":
                # A further empty line between two events means nothing.
                start += 1
                continue
            if in_one and self._before:
                # Once per block, so that no block is scanned more than twice.
                block, start, in_one = self._count_run(block[start:]), 0, False
                continue
            found = END.search(block, start)
            assert found is not None, "a block ends with an end"
            end = found.end()
            if self._is_plain(block, start, end):
                self.tokens += 1
            else:
                self._gap = block[found.start() : end]
                self._look(block[start : found.start()])
            start = end

    def _count_run(self, block: bytes) -> bytes:
        """Counts the events of the learned form at the beginning of `block`, and returns what is left to count."""
        before, behind = self._before, self._behind
        if not block.startswith(before):
            return block
        texts = block[len(before) :].split(self._between)
        last = texts.pop()
        if b"" in texts or NOT_PLAIN.search(b"".join(texts)):
            return block
        self.tokens += len(texts)
        if len(last) > len(behind) and last.endswith(behind) and not NOT_PLAIN.search(last, 0, len(last) - len(behind)):
            self.tokens += 1
            return b""
        return before + last

    def _is_plain(self, block: bytes, start: int, end: int) -> bool:
        """Whether the event from `start` to `end` has the learned form."""
        before, behind = self._before, self._behind
        return (
            end - start > self._frame
            and block.startswith(before, start, end)
            and block.endswith(behind, start, end)
            and not NOT_PLAIN.search(block, start + len(before), end - len(behind))
        )

    def _cut(self, chunk: bytes) -> bytes:
        cut = max([at + len(end) for end in ENDS if (at := chunk.rfind(end)) >= 0], default=0)
        self._held = chunk[cut:]
        if len(self._held) > MAX_EVENT_BYTES:
            raise AnswerTooLarge(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes without an end")
        if cut == 0 and not _may_begin_event(self._held.lstrip(b"\r\n")):
            raise EngineProtocolError(f"the engine sent something that is no event stream: {excerpt(self._held)}")
        return chunk[:cut]

    def _look(self, event: bytes) -> None:
        if event.startswith(b"data:") and b"\n" not in event:
            data = event[5:].strip()
        else:
            lines = event.splitlines()
            for line in lines:
                if not line.startswith(FIELDS):
                    raise EngineProtocolError(f"the engine sent something that is no event stream: {excerpt(line)}")
            data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
            if not data:
                return
        self._opened = True
        if data == b"[DONE]":
            self.done = True
            return
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise EngineProtocolError(f"the engine sent an event that is not JSON: {excerpt(data)}") from None
        if not isinstance(document, dict):
            raise EngineProtocolError(f"the engine sent an event that is no JSON object: {excerpt(data)}")
        counted = self.tokens
        self._read(document)
        if self.tokens == counted + 1 and not self.finished and self._usage is None and self.error is None:
            self._learn_form(event, document)

    def _learn_form(self, event: bytes, document: dict[str, Any]) -> None:
        """Learns the bytes around the token of an event that counts as one token and has no finish reason and no usage."""
        text = _only_text(document)
        quoted = b'"' + text.encode() + b'"'
        at = event.rfind(b":" + quoted) + 1 or event.rfind(b": " + quoted) + 2
        if text and at > 1 and not NOT_PLAIN.search(quoted, 1, len(quoted) - 1):
            self._before = event[: at + 1]
            self._behind = event[at + len(quoted) - 1 :] + self._gap
            self._between = self._behind + self._before
            self._frame = len(self._between)

    def _read(self, document: dict[str, Any]) -> None:
        complaint = read_complaint(document)
        if complaint is not None:
            self.error = complaint
            return
        usage = document.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                reason, index = choice.get("finish_reason"), choice.get("index")
                at = index if isinstance(index, int) and 0 <= index < INDEX_MOST else 0
                self._choices[at] = self._choices.get(at, False) or reason is not None
                self.aborted = self.aborted or reason == ABORTED
                self.tokens += _has_content(choice)
        self.finished = bool(self._choices) and all(self._choices.values())


class NamedEventScanner(EventScanner):
    """The same for an API whose events have names: OpenAI's Responses, Anthropic's Messages.

    An event that begins with the name of a delta counts as one token and is not parsed: such events differ in more than their token, for
    example in a running number. Events that an engine sends before it begins to answer are held back until the first other event, so that a
    request that fails until then can still go to another engine, or be refused with a status of its own.

    Args:
        deltas: What the events that carry a token begin with, down to the first byte of their document.
    """

    __slots__ = ("_deltas", "_kept", "_opening")

    def __init__(self, deltas: tuple[bytes, ...]) -> None:
        super().__init__()
        # It holds back more than comments, by itself.
        self._opened = True
        self._deltas = deltas
        self._kept = b""
        self._opening = True

    def feed(self, chunk: bytes) -> bytes:
        """As `EventScanner.feed`; also empty until the answer begins."""
        ready = super().feed(chunk)
        if self._opening:
            self._kept += ready
            if len(self._kept) > MAX_OPENING_BYTES:
                raise AnswerTooLarge(f"the engine sent more than {MAX_OPENING_BYTES} bytes before it began to answer")
            return b""
        if self._kept:
            ready = self._kept + ready
            self._kept = b""
        return ready

    def _look(self, event: bytes) -> None:
        # An event of two lines: its name, and its document.
        if event.startswith(self._deltas) and event.endswith(b"}") and event.find(b"\n") == event.rfind(b"\n"):
            self.events += 1
            self.tokens += 1
            self._opening = False
            return
        super()._look(event)
        if self.done:
            self._opening = False

    def _read(self, document: dict[str, Any]) -> None:
        self.events += 1
        if self._opens(document):
            return
        self._opening = False
        self.error = read_complaint(document) or self.error
        if self.error is None:
            self._read_event(document)

    @abstractmethod
    def _opens(self, document: dict[str, Any]) -> bool:
        """Whether an event comes before the answer; notes what it tells of it."""

    @abstractmethod
    def _read_event(self, document: dict[str, Any]) -> None:
        """Counts a token, or notes the end and the usage."""

    def _learn_form(self, event: bytes, document: dict[str, Any]) -> None:
        """Learns nothing: the name of an event suffices."""


def usage_figures(usage: dict[str, Any]) -> tuple[int | None, int | None]:
    """Output tokens and cached prompt tokens of a `usage` object of any API, each None if missing; invalid values count as missing.

    A usage without cached tokens counts as none cached: vLLM leaves them out where there are none.
    """
    if not usage:
        return None, None
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    return (
        output if isinstance(output, int) and output >= 0 else None,
        cached if isinstance(cached, int) and cached >= 0 else 0,
    )


def usage_total(usage: dict[str, Any]) -> int:
    """Prompt and output tokens of a `usage` object, without reasoning, which is no part of later prompts; 0 if it does not tell them."""
    total, details = usage.get("total_tokens"), usage.get("output_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else 0
    return max(0, total - (reasoning if isinstance(reasoning, int) else 0)) if isinstance(total, int) else 0


def excerpt(data: bytes, limit: int = 80) -> str:
    """The beginning of an engine's bytes, safe to show."""
    text = data[:limit].decode("utf-8", "replace")
    return repr(text) + ("..." if len(data) > limit else "")


def _only_text(document: dict[str, Any]) -> str:
    """The only text of the only choice of a document, empty if there is not exactly one, or if the choice ends with it."""
    choices = document["choices"]
    if len(choices) != 1 or choices[0].get("finish_reason") is not None:
        return ""
    choice = choices[0]
    delta = choice.get("delta") or {}
    texts = [choice.get("text"), *(value for key, value in delta.items() if key != "role")]
    found = [text for text in texts if text]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else ""


def _may_begin_event(data: bytes) -> bool:
    return any(data.startswith(field[: len(data)]) for field in FIELDS)


def _has_content(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")
