"""Reads a streamed answer for its times alone: when each token came, and what the engine counted."""

from typing import Any

import orjson

from hmas.loadgen.sse import SseLines


class TokenTimes(SseLines):
    """Fed with the body's bytes as they arrive and the time of each piece.

    Attributes:
        times_s: When tokens came, one entry per event that carries one or more.
        prompt_tokens: By `usage`; 0 where the answer has none. `output_tokens` likewise.
        events: Server-sent events in all, content or not.
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
    """Whether a choice carries a token. One that is half a character has an empty text, as has the opening event, which names the role."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text") is not None
    said = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return bool(said) or (delta.get("content") == "" and "role" not in delta)


def _count(usage: dict[str, Any], name: str, before: int) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else before
