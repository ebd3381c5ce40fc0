"""What a request's body asks for. The body is parsed once for the few fields the control plane needs and goes to the engine as it came."""

from dataclasses import dataclass
from typing import Any

import orjson

from controller.gateway.errors import ApiError, bad_field
from engines.tokens import estimate_tokens

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

EXCERPT_HEAD = 1200
EXCERPT_TAIL = 800
SERVICE_TIERS = ("auto", "default", "flex", "priority", "scale")
TOKENS_PER_IMAGE = 512
"""A part of a message that is not text counts as this many tokens: what common vision models make of one image tile or two."""
IMAGE_TYPES = ("image_url", "input_image", "image")
TOKENS_PER_MESSAGE = 4
"""Role and separators that a chat template puts around each message."""
INT_LIMIT = 1 << 31
CACHE_KEY_LIMIT = 128


@dataclass(slots=True)
class Call:
    """The fields of one completion request that the control plane reads.

    Attributes:
        path: OpenAI path it came by.
        model: The model it names.
        stream: Whether a stream is wanted.
        prompt_tokens: Estimate over messages or prompt and tool definitions.
        prompt_chars: Characters of text in it; 0 for prompts given as token ids.
        excerpt: Head and tail of the text, at most 2,000 characters and a separator.
        max_output_tokens: The client's cap over all choices, None where it set none.
        min_output_tokens: Output over all choices that it insists on: vLLM's `min_tokens`, or its cap where `ignore_eos` is set.
        priority: The body's `priority`, None where it has none. LOWER goes first.
        has_tools: Whether tool definitions came along.
        turns: Messages of the chat, 0 for a plain prompt.
        images: Pictures among the content parts.
        cache_key: The body's `prompt_cache_key`: requests that share it share a prefix. Empty where there is none.
        document: The parsed body.
    """

    path: str
    model: str
    stream: bool
    prompt_tokens: int
    prompt_chars: int
    excerpt: str
    max_output_tokens: int | None
    min_output_tokens: int
    priority: int | None
    has_tools: bool
    turns: int
    images: int
    cache_key: str
    document: dict[str, Any]


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        ApiError: 400 where it is not JSON, not UTF-8 or not an object; the message says where.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid_json", f"the request body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "invalid_json", f"the request body is a JSON {_kind(document)}; it must be an object")
    return document


def parse_call(path: str, body: bytes) -> Call:
    """Reads a completion request.

    Raises:
        ApiError: 400 that names the field, its value and what is allowed.
    """
    document = parse_object(body)
    model = read_model(document)
    texts = _Texts()
    if path == CHAT:
        _read_messages(document, texts)
    else:
        _read_prompt(document, texts)
    tools = document.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise bad_field("tools", tools, "a list of tool definitions")
    if tools:
        texts.tokens += estimate_tokens(orjson.dumps(tools).decode())
    _check_tier(document)
    return Call(
        path=path,
        model=model,
        stream=_read_bool(document, "stream"),
        prompt_tokens=max(1, texts.tokens),
        prompt_chars=texts.chars,
        excerpt=texts.excerpt(),
        max_output_tokens=(cap := _read_cap(document)),
        min_output_tokens=_read_least(document, cap),
        priority=_read_int(document, "priority", -INT_LIMIT, INT_LIMIT),
        has_tools=bool(tools),
        turns=len(document["messages"]) if path == CHAT else 0,
        images=texts.images,
        cache_key=cache_key[:CACHE_KEY_LIMIT] if isinstance(cache_key := document.get("prompt_cache_key"), str) else "",
        document=document,
    )


def read_model(document: dict[str, Any]) -> str:
    """The `model` field: a text of 1 to 256 characters."""
    model = document.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= 256:
        raise bad_field("model", model, "the name of a model, 1 to 256 characters (GET /v1/models lists them)")
    return model


def with_priority(call: Call, priority: int) -> bytes:
    """The body with its priority replaced: the one case in which it does not go out byte for byte, because the claim was clamped."""
    return orjson.dumps({**call.document, "priority": priority})


class _Texts:
    """Gathers length and excerpt of a prompt without joining it."""

    __slots__ = ("chars", "images", "parts", "tokens")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.chars = 0
        self.images = 0
        self.tokens = 0

    def add(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.chars += len(text)
            self.tokens += estimate_tokens(text)

    def excerpt(self) -> str:
        if self.chars <= EXCERPT_HEAD + EXCERPT_TAIL:
            return "\n".join(self.parts)
        return _take(self.parts, EXCERPT_HEAD) + "\n...\n" + _take_last(self.parts, EXCERPT_TAIL)


def _take(parts: list[str], limit: int) -> str:
    taken: list[str] = []
    for part in parts:
        if limit <= 0:
            break
        taken.append(part[:limit])
        limit -= len(part)
    return "\n".join(taken)


def _take_last(parts: list[str], limit: int) -> str:
    taken: list[str] = []
    for part in reversed(parts):
        if limit <= 0:
            break
        taken.append(part[-limit:])
        limit -= len(part)
    return "\n".join(reversed(taken))


def _read_messages(document: dict[str, Any], texts: _Texts) -> None:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_field("messages", messages, "a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise bad_field(f"messages[{index}]", message, "an object with role and content")
        if not isinstance(message.get("role"), str):
            raise bad_field(f"messages[{index}].role", message.get("role"), "a text such as system, user, assistant or tool")
        texts.tokens += TOKENS_PER_MESSAGE
        content = message.get("content")
        if isinstance(content, str):
            texts.add(content)
        elif isinstance(content, list):
            _read_parts(content, f"messages[{index}].content", texts)
        elif content is not None:
            raise bad_field(f"messages[{index}].content", content, "a text, a list of content parts, or null")


def _read_parts(parts: list[Any], where: str, texts: _Texts) -> None:
    for index, part in enumerate(parts):
        if isinstance(part, str):
            texts.add(part)
        elif not isinstance(part, dict):
            raise bad_field(f"{where}[{index}]", part, "a content part with a type")
        elif isinstance(text := part.get("text"), str):
            texts.add(text)
        else:
            texts.tokens += TOKENS_PER_IMAGE
            texts.images += part.get("type") in IMAGE_TYPES


def _read_prompt(document: dict[str, Any], texts: _Texts) -> None:
    prompt = document.get("prompt")
    allowed = "a text, a list of texts, a list of token ids, or a list of such lists"
    if isinstance(prompt, str):
        texts.add(prompt)
        return
    if not isinstance(prompt, list) or not prompt:
        raise bad_field("prompt", prompt, allowed)
    for part in prompt:
        if isinstance(part, str):
            texts.add(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            texts.tokens += 1
        elif isinstance(part, list):
            texts.tokens += len(part)
        else:
            raise bad_field("prompt", prompt, allowed)


def _read_cap(document: dict[str, Any]) -> int | None:
    cap = _read_int(document, "max_completion_tokens", 1, INT_LIMIT)
    if cap is None:
        cap = _read_int(document, "max_tokens", 1, INT_LIMIT)
    choices = _read_int(document, "n", 1, 1024)
    return None if cap is None else cap * (choices or 1)


def _read_least(document: dict[str, Any], cap: int | None) -> int:
    """Extensions of vLLM; where they contradict the cap the engine refuses them, so they are taken no further than it."""
    choices = _read_int(document, "n", 1, 1024) or 1
    least = (_read_int(document, "min_tokens", 0, INT_LIMIT) or 0) * choices
    if cap is None:
        return least
    return cap if document.get("ignore_eos") is True else min(least, cap)


def _read_int(document: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad_field(name, value, f"a whole number from {low} to {high}")
    return value


def _read_bool(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_field(name, value, "true or false")
    return value


def _check_tier(document: dict[str, Any]) -> None:
    tier = document.get("service_tier")
    if tier is not None and tier not in SERVICE_TIERS:
        raise bad_field("service_tier", tier, ", ".join(SERVICE_TIERS))


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
