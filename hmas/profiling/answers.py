"""Reads the times of a streamed answer: when each token came, and the engine's token counts."""

from typing import Any

import orjson

from hmas.loadgen.sse import SseLines


class TokenTimes(SseLines):
    """Reads a stream, fed with the body's bytes and their arrival times.

    Attributes:
        times_s: When tokens came, one entry per event that has one or more.
        prompt_tokens: By `usage`; 0 if the answer has none. `output_tokens` likewise.
        events: Number of all server-sent events, with or without content.
        error: Message of an error event; empty without one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.events = 0
        self.error = ""

    def _event(self, data: bytes, now_s: float) -> None:
        self.events += 1
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return  # [DONE]
        if not isinstance(event, dict):
            return
        if event.get("error") is not None:
            self.error = str(event["error"])
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage, "prompt_tokens", self.prompt_tokens)
            self.output_tokens = _count(usage, "completion_tokens", self.output_tokens)
        if any(_content(choice) for choice in event.get("choices") or ()):
            self.times_s.append(now_s)


def _content(choice: dict[str, Any]) -> bool:
    """Whether a choice has a token. A token of half a character has an empty text, like the opening event, which names the role."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text") is not None
    said = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return bool(said) or (delta.get("content") == "" and "role" not in delta)


def _count(usage: dict[str, Any], name: str, before: int) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else before
