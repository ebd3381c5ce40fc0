"""A body of OpenAI's Responses API as the chat completion that asks for the same. Pure."""

from typing import Any

from hmas.controller.core.body_bounds import MESSAGES_MOST, bounded_cap, bounded_list
from hmas.controller.core.errors import BodyError

RESPONSES = "/v1/responses"


def chat_of_response(document: dict[str, Any]) -> dict[str, Any]:
    """The view of a body with `messages` and the names of chat completions.

    Instructions are a system message, texts and messages of the input keep their role, the output of a tool is a message of the tool. Other
    items that the model wrote are messages of their own: a call counts as in chat completions, reasoning has no text.

    Raises:
        BodyError: A field is invalid; the message names the field of the Responses API.
    """
    messages: list[dict[str, Any]] = []
    instructions = document.get("instructions")
    if isinstance(instructions, str):
        messages.append({"role": "system", "content": instructions})
    elif instructions is not None:
        raise BodyError("instructions", instructions, "a text")
    given = document.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        items = bounded_list("input", given, MESSAGES_MOST, "a text, or a list of input items")
        messages += [_message(item, index) for index, item in enumerate(items)]
    text = document.get("text")
    return {
        **document,
        "messages": messages or [{"role": "user", "content": ""}],
        "max_completion_tokens": bounded_cap("max_output_tokens", document.get("max_output_tokens")),
        "max_tokens": None,
        "n": None,
        "truncate_prompt_tokens": None,
        "response_format": text.get("format") if isinstance(text, dict) else None,
    }


def _message(item: Any, index: int) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise BodyError(f"input[{index}]", item, "an input item with a type, or a message with role and content")
    role = item.get("role")
    if role is None:
        kind = item.get("type")
        if isinstance(kind, str) and kind.endswith("_output"):
            return {"role": "tool", "content": _content(item.get("output"), f"input[{index}].output")}
        return {"role": "assistant", "content": None, "tool_calls": [{"function": item}]}
    if not isinstance(role, str):
        raise BodyError(f"input[{index}].role", role, "a text such as system, developer, user or assistant")
    return {"role": role, "content": _content(item.get("content"), f"input[{index}].content")}


def _content(content: Any, where: str) -> Any:
    if isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, dict | str):
                raise BodyError(f"{where}[{index}]", part, "a content part with a type")
    elif isinstance(content, dict):
        # The output of a tool of the engine's own, such as a picture of a screen.
        return [content]
    elif content is not None and not isinstance(content, str):
        raise BodyError(where, content, "a text, a list of content parts, or null")
    return content
