"""A body of Anthropic's Messages API as the chat completion that asks for the same. Pure."""

from typing import Any

from hmas.controller.core.body_bounds import MESSAGES_MOST, bounded_list
from hmas.controller.core.errors import BodyError

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
THOUGHTS = ("thinking", "redacted_thinking")
"""Blocks with the model's reasoning. They do not count, because most chat templates leave the reasoning of earlier answers out."""


def chat_of_messages(document: dict[str, Any]) -> dict[str, Any]:
    """The view of a body with a system message, with tool results as messages of the tool, and with the names of chat completions.

    Raises:
        BodyError: A field is invalid; the message names the field of the Messages API.
    """
    messages: list[dict[str, Any]] = []
    system = document.get("system")
    if system is not None:
        messages.append({"role": "system", "content": _checked(system, "system")})
    given = document.get("messages")
    if not given:
        raise BodyError("messages", given, "a list of at least one message")
    for index, message in enumerate(bounded_list("messages", given, MESSAGES_MOST, "a list of at least one message")):
        if not isinstance(message, dict):
            raise BodyError(f"messages[{index}]", message, "an object with role and content")
        role = message.get("role")
        if not isinstance(role, str):
            raise BodyError(f"messages[{index}].role", role, "user or assistant")
        content = _checked(message.get("content"), f"messages[{index}].content")
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        else:
            _split(role, content, index, messages)
    wanted = document.get("output_config")
    return {
        **document,
        "messages": messages,
        "max_completion_tokens": None,
        "n": None,
        "truncate_prompt_tokens": None,
        "service_tier": None,
        "response_format": wanted.get("format") if isinstance(wanted, dict) else None,
    }


def _split(role: str, blocks: list[dict[str, Any]], index: int, messages: list[dict[str, Any]]) -> None:
    """Adds the messages that one message of blocks stands for: one for each tool result, and one for the rest."""
    rest: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results = 0
    for place, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "tool_result":
            results += 1
            content = block.get("content")
            where = f"messages[{index}].content[{place}].content"
            messages.append({"role": "tool", "content": None if content is None else _checked(content, where)})
        elif kind in CALLS:
            calls.append({"function": block})
        elif kind not in THOUGHTS:
            rest.append(block)
    if rest or calls or not results:
        messages.append({"role": role, "content": rest, "tool_calls": calls} if calls else {"role": role, "content": rest})


def _checked(content: Any, where: str) -> Any:
    if isinstance(content, list):
        for index, block in enumerate(content):
            if not isinstance(block, dict):
                raise BodyError(f"{where}[{index}]", block, "a content block with a type")
    elif not isinstance(content, str):
        raise BodyError(where, content, "a text, or a list of content blocks")
    return content
