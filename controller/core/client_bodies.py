"""Builds the bodies that clients send from a prompt's text: one for every shape of request that a gateway receives. Pure.

The reader of these bodies is `hmas.controller.core.request_body`. Training, evaluation and benchmarks use both together, so that no model
is evaluated on an input that no client sends.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import orjson

from hmas.controller.core.client_systems import Draws, long_system, pick, short_system, texts
from hmas.controller.core.request_body import CHAT, COMPLETIONS

LONG_SYSTEM_CHARS = 9000
"""Characters of a long system prompt: about 2,000 tokens."""
TINY_PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

Body = tuple[str, dict[str, Any]]
"""API path and JSON document."""


class Shape(StrEnum):
    """Shapes of requests, by the parts of their body besides the question."""

    COMPLETION = "completion"
    CHAT = "chat"
    SYSTEM = "system"
    LONG_SYSTEM = "long-system"
    HISTORY_1 = "history-1"
    HISTORY_4 = "history-4"
    HISTORY_15 = "history-15"
    TOOLS = "tools"
    TOOL_RESULT = "tool-result"
    PICTURE = "picture"
    JSON_SCHEMA = "json-schema"
    HISTORY_2 = "history-2"


_DATA: dict[str, Any] = texts()["bodies"]
SYSTEM_SHARE = 0.5
"""Share of histories and of requests with tools that also have a system prompt."""
EXCHANGES = {Shape.HISTORY_1: 1, Shape.HISTORY_2: 2, Shape.HISTORY_4: 4, Shape.HISTORY_15: 15}
"""Number of exchanges before the question."""


def client_body(
    shape: Shape,
    prompt: str,
    *,
    model: str,
    rng: Draws,
    exchanges: Sequence[tuple[str, str]] = (),
    max_tokens: int | None = None,
    stream: bool = True,
    n: int = 1,
    holdout: bool = False,
) -> Body:
    """The API path and the JSON document with which a client asks `prompt`.

    Args:
        shape: The shape of the request.
        prompt: The question.
        model: The model that the request names.
        rng: The source of randomness.
        exchanges: Texts of (user, assistant) for histories, oldest first; repeated from the first one if there are too few.
        max_tokens: The client's cap, None for none.
        stream: Whether the answer is streamed.
        n: Number of answers; left out of the document if it is 1.
        holdout: True uses system prompts with sentences that are not used for training.

    Raises:
        ValueError: The shape needs a history and `exchanges` is empty.
    """
    document: dict[str, Any] = {"model": model, "stream": stream}
    if max_tokens is not None:
        document["max_tokens"] = max_tokens
    if n != 1:
        document["n"] = n
    if shape is Shape.COMPLETION:
        document["prompt"] = prompt
        return COMPLETIONS, document
    question = _message("user", prompt)
    messages = [question]
    if shape in EXCHANGES:
        messages = [*_maybe_system(rng, holdout=holdout), *_history(EXCHANGES[shape], exchanges), question]
    elif shape is Shape.SYSTEM:
        messages = [_system(short_system(rng, holdout=holdout), rng), question]
    elif shape is Shape.LONG_SYSTEM:
        chars = int(LONG_SYSTEM_CHARS * (0.9 + 0.2 * rng.random()))
        messages = [_system(long_system(rng, chars, holdout=holdout), rng), question]
    elif shape is Shape.TOOLS:
        document["tools"] = _tools(rng)
        document["tool_choice"] = "auto"
        messages = [*_maybe_system(rng, holdout=holdout), question]
    elif shape is Shape.TOOL_RESULT:
        document["tools"] = _tools(rng)
        messages = _tool_result(prompt, document["tools"], exchanges, rng)
    elif shape is Shape.PICTURE:
        picture = {"type": "image_url", "image_url": {"url": TINY_PNG}}
        text = {"type": "text", "text": prompt}
        messages = [{"role": "user", "content": [text, picture] if rng.random() < 0.7 else [picture, text]}]
    elif shape is Shape.JSON_SCHEMA:
        document["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _schema(rng)}}
    document["messages"] = messages
    return CHAT, document


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _system(text: str, rng: Draws) -> dict[str, Any]:
    return _message("developer" if rng.random() < 0.1 else "system", text)


def _maybe_system(rng: Draws, *, holdout: bool) -> list[dict[str, Any]]:
    """Adds a system prompt of a few sentences to a share of conversations and requests with tools."""
    return [_system(short_system(rng, holdout=holdout), rng)] if rng.random() < SYSTEM_SHARE else []


def _history(count: int, exchanges: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    if not exchanges:
        raise ValueError(f"exchanges is empty; allowed: at least one (user, assistant) for a history of {count}")
    messages: list[dict[str, Any]] = []
    for index in range(count):
        asked, answered = exchanges[index % len(exchanges)]
        messages += [_message("user", asked), _message("assistant", answered)]
    return messages


def _tools(rng: Draws) -> list[dict[str, Any]]:
    first = int(rng.random() * len(_DATA["tools"]))
    chosen = [_DATA["tools"][(first + place) % len(_DATA["tools"])] for place in range(1 + int(rng.random() * 5))]
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": text,
                "parameters": {"type": "object", "properties": {field: {"type": "string"} for field in fields}, "required": [fields[0]]},
            },
        }
        for name, text, fields in chosen
    ]


def _tool_result(prompt: str, tools: list[dict[str, Any]], exchanges: Sequence[tuple[str, str]], rng: Draws) -> list[dict[str, Any]]:
    """A tool call and its result: half of the time the question comes before them, otherwise after them."""
    function = tools[int(rng.random() * len(tools))]["function"]
    arguments = orjson.dumps(dict.fromkeys(function["parameters"]["required"], "...")).decode()
    call = {"id": "call_1", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
    result = orjson.dumps(_DATA["results"][int(rng.random() * len(_DATA["results"]))]).decode()
    called: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]
    if rng.random() < 0.5:
        return [_message("user", prompt), *called]
    earlier = exchanges[0][0] if exchanges else "Can you look that up for me?"
    return [_message("user", earlier), *called, _message("assistant", pick(_DATA["confirmed"], rng)), _message("user", prompt)]


def _schema(rng: Draws) -> dict[str, Any]:
    first = int(rng.random() * len(_DATA["schema_fields"]))
    names = [_DATA["schema_fields"][(first + place) % len(_DATA["schema_fields"])] for place in range(1 + int(rng.random() * 4))]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names, "additionalProperties": False}
