"""Reads the parts of a request's JSON body that the control plane uses: the only way from a body to scheduling and models. Pure.

The gateway, training, evaluation and the benchmarks all use `read_call`, so that a model is evaluated on the inputs that it will get.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from hmas.controller.core.bodies.messages import MESSAGES, chat_of_messages
from hmas.controller.core.bodies.responses import RESPONSES, chat_of_response
from hmas.controller.core.body_bounds import (
    CHOICES_MOST,
    INT_MOST,
    MESSAGES_MOST,
    NO_CAP,
    PARTS_MOST,
    PROMPTS_MOST,
    SEQUENCES_MOST,
    TOOLS_MOST,
    bounded_cap,
    bounded_int,
    bounded_list,
    whole_number,
)
from hmas.controller.core.errors import BodyError, TooManyError
from hmas.controller.core.prompt_texts import PromptTexts, token_blocks
from hmas.engines.tokens import estimate_tokens

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CHAT_VIEWS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {RESPONSES: chat_of_response, MESSAGES: chat_of_messages}
"""How bodies of other APIs become chat completions, by path."""

SERVICE_TIERS = ("auto", "default", "flex", "priority", "scale")
TOKENS_PER_IMAGE = 512
"""Tokens counted for a message part that is not text: about what common vision models use for one or two image tiles."""
IMAGE_TYPES = ("image_url", "input_image", "image")
TOKENS_PER_MESSAGE = 4
"""Tokens of the role and separators that a chat template puts around each message."""
BYTES_PER_EMBEDDING = 8192
"""Assumed for a token of `prompt_embeds`: 4,096 dimensions of two bytes, as models of 8 billion parameters have."""
INT_LIMIT = 1 << 31
"""Bound of what the gateway counts with: a larger cap or priority counts as this, and passes as it is."""
CACHE_KEY_LIMIT = 128
JSON_FORMATS = ("json_object", "json_schema")
JSON_FIELDS = ("guided_json", "structured_outputs")
"""vLLM's own fields for requesting an answer of a given form."""


@dataclass(slots=True)
class Call:
    """The fields of one completion request that the control plane reads.

    Attributes:
        path: The path of the request.
        model: The model that the request names.
        stream: Whether the client wants a stream.
        counted: Whether no text is part of it: a prompt of token ids is counted.
        prompt_tokens: Estimated tokens of messages (with the model's own calls of tools) or prompt, and of tool definitions.
        prompt_chars: Characters of its text, without calls of tools; 0 for prompts given as token ids.
        excerpt: Head and tail of the question (the last user message, or the prompt); see `hmas.controller.core.prompt_texts.Cut`.
        system: Head of the system prompts; empty for a plain prompt.
        history: The messages before the question, newest last; empty for a plain prompt.
        question_chars, question_tokens: Length of the whole question; 0 if it has no text.
        max_output_tokens: The client's cap over all sequences, None if it set none or -1.
        min_output_tokens: The minimum output over all sequences that the client requires: vLLM's `min_tokens`, or its cap if `ignore_eos`
            is set.
        prompts: Number of prompts: 1, or more for a list of prompts.
        choices: Number of answers to each prompt that the engine computes: the larger of `n` and `best_of`, 1 if the body sets neither.
        priority: The body's `priority`, None if it has none. LOWER goes first.
        has_tools: Whether the request has tool definitions.
        tool_results: Number of messages with a tool's answer.
        wants_json: Whether the answer must be JSON (`response_format`, or vLLM's own fields).
        turns: Number of messages of the chat, 0 for a plain prompt.
        images: Number of pictures among the content parts.
        cache_key: The body's `prompt_cache_key`: requests with the same key share a prefix. Empty if there is none.
        names_model: Whether the body names its model.
        previous_response: Id of the response that a request of the Responses API continues, empty if it continues none.
        blocks: Hashes of the prompt's blocks, as in `Request.blocks`; empty if they were not asked for.
    """

    path: str
    model: str
    stream: bool
    counted: bool
    prompt_tokens: int
    prompt_chars: int
    excerpt: str
    system: str
    history: str
    question_chars: int
    question_tokens: int
    max_output_tokens: int | None
    min_output_tokens: int
    prompts: int
    choices: int
    priority: int | None
    has_tools: bool
    tool_results: int
    wants_json: bool
    turns: int
    images: int
    cache_key: str
    names_model: bool
    previous_response: str
    blocks: tuple[int, ...]

    @property
    def sequences(self) -> int:
        """Number of answers that the engine computes, over all prompts."""
        return self.prompts * self.choices


def read_call(path: str, document: dict[str, Any], only_model: str = "", block_salt: str | None = None) -> Call:
    """Reads a completion request.

    Args:
        path: `CHAT`, a path in `CHAT_VIEWS`, or anything else for a plain completion.
        document: The parsed body.
        only_model: The model of a request that names none, empty if there is no such model.
        block_salt: What the hashes of the prompt's blocks begin with; None for no hashes.

    Raises:
        BodyError: A field is invalid; the message names it, its value and the allowed values.
    """
    model = read_model(document, only_model)
    texts = PromptTexts()
    named = names_model(document)
    previous = _read_previous(document) if path == RESPONSES else ""
    view = CHAT_VIEWS.get(path)
    if view is not None:
        document = view(document)
    is_chat = path == CHAT or view is not None
    prompts = 1
    if is_chat:
        _read_messages(document, texts)
    else:
        prompts = _read_prompt(document, texts)
    tools = document.get("tools")
    if tools is not None:
        bounded_list("tools", tools, TOOLS_MOST, "a list of tool definitions")
    tools_text = ""
    if tools:
        try:
            tools_text = orjson.dumps(tools).decode()
            texts.tokens += estimate_tokens(tools_text)
        except orjson.JSONEncodeError:
            raise BodyError("tools", tools, "a list of tool definitions, nested at most 254 levels deep") from None
    _check_tier(document)
    choices = _read_choices(document, prompts)
    # With `echo` a cap of 0 asks for scores of the prompt alone (lm-eval). It counts as 1: an engine takes a step for it, too.
    echoes = not is_chat and document.get("echo") is True
    cap = _read_cap(document, prompts * choices, is_chat=is_chat, least=0 if echoes else 1)
    cut = texts.cut()
    return Call(
        path=path,
        model=model,
        stream=_read_bool(document, "stream"),
        counted=not is_chat and not cut.tokens and bool(document.get("prompt")),
        prompt_tokens=_truncated(document, max(1, texts.tokens + cut.tokens), prompts),
        prompt_chars=texts.chars,
        excerpt=cut.excerpt,
        system=cut.system,
        history=cut.history,
        question_chars=cut.question_chars,
        question_tokens=cut.question_tokens,
        max_output_tokens=cap,
        min_output_tokens=_read_least(document, cap, prompts * choices),
        prompts=prompts,
        choices=choices,
        priority=read_priority(document),
        has_tools=bool(tools),
        tool_results=texts.tool_results,
        wants_json=_wants_json(document),
        turns=len(document["messages"]) if is_chat else 0,
        images=texts.images,
        cache_key=cache_key[:CACHE_KEY_LIMIT] if isinstance(cache_key := document.get("prompt_cache_key"), str) else "",
        names_model=named,
        previous_response=previous,
        blocks=() if block_salt is None or prompts > 1 else _read_blocks(document, texts, f"{block_salt}\0{model}", tools_text),
    )


def _truncated(document: dict[str, Any], prompt_tokens: int, prompts: int) -> int:
    """Tokens of the prompts once the engine has cut each to vLLM's `truncate_prompt_tokens`; one that is no such number is the engine's."""
    most = whole_number(document.get("truncate_prompt_tokens")) or 0
    return min(prompt_tokens, most * prompts) if most > 0 else prompt_tokens


def _read_blocks(document: dict[str, Any], texts: PromptTexts, salt: str, tools: str) -> tuple[int, ...]:
    """The block hashes of the prompt; `cache_salt` is vLLM's own word for a cache that is not shared."""
    salt = f"{salt}\0{document.get('cache_salt', '')!s:.256}"
    prompt = document.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int | float):
        return token_blocks(salt, prompt)
    return texts.blocks(salt, tools)


def names_model(document: dict[str, Any]) -> bool:
    """Whether the body names its model; an empty text names none, as for vLLM."""
    return document.get("model") not in (None, "")


def read_model(document: dict[str, Any], only_model: str = "") -> str:
    """The `model` field, a text of 1 to 256 characters; `only_model` if the body names none."""
    model = document.get("model")
    if only_model and not names_model(document):
        return only_model
    if not isinstance(model, str) or not 0 < len(model) <= 256:
        raise BodyError("model", model, "the name of a model, 1 to 256 characters (GET /v1/models lists them)")
    return model


def read_priority(document: dict[str, Any]) -> int | None:
    """The `priority` field, None if the body has none."""
    claimed = _read_int(document, "priority", -INT_MOST, INT_MOST)
    return None if claimed is None else max(-INT_LIMIT, min(INT_LIMIT, claimed))


def _read_previous(document: dict[str, Any]) -> str:
    previous = document.get("previous_response_id")
    if previous is None:
        return ""
    if not isinstance(previous, str):
        raise BodyError("previous_response_id", previous, "the id of a response, a text")
    return previous


def _read_messages(document: dict[str, Any], texts: PromptTexts) -> None:
    allowed = "a list of at least one message"
    messages = bounded_list("messages", document.get("messages"), MESSAGES_MOST, allowed)
    if not messages:
        raise BodyError("messages", messages, allowed)
    parts = 0
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BodyError(f"messages[{index}]", message, "an object with role and content")
        if not isinstance(message.get("role"), str):
            raise BodyError(f"messages[{index}].role", message.get("role"), "a text such as system, user, assistant or tool")
        texts.begin(message["role"])
        texts.tokens += TOKENS_PER_MESSAGE
        content = message.get("content")
        if isinstance(content, str):
            texts.add(content)
        elif isinstance(content, list):
            parts += len(content)
            if parts > PARTS_MOST:
                raise TooManyError("messages", parts, PARTS_MOST, "content parts")
            _read_parts(content, f"messages[{index}].content", texts)
        elif content is not None:
            raise BodyError(f"messages[{index}].content", content, "a text, a list of content parts, or null")
        if "tool_calls" in message or "function_call" in message:
            _read_calls(message, texts)


def _read_parts(parts: list[Any], where: str, texts: PromptTexts) -> None:
    for index, part in enumerate(parts):
        if isinstance(part, str):
            texts.add(part)
        elif not isinstance(part, dict):
            raise BodyError(f"{where}[{index}]", part, "a content part with a type")
        elif isinstance(text := part.get("text"), str):
            texts.add(text)
        else:
            texts.tokens += TOKENS_PER_IMAGE
            texts.images += part.get("type") in IMAGE_TYPES


def _read_calls(message: dict[str, Any], texts: PromptTexts) -> None:
    """Reads the calls of tools that the model made: chat templates write them into the prompt. Those of a wrong form the engine judges."""
    calls = message.get("tool_calls")
    found = [call.get("function", call.get("custom")) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for called in (*found, message.get("function_call")):
        if isinstance(called, dict):
            for value in (called.get("name"), called.get("arguments", called.get("input"))):
                if value is not None:
                    texts.add_call(value if isinstance(value, str) else _written(value))


def _written(value: object) -> str:
    """The value as JSON; nested deeper than 254 levels as Python writes it, and empty where that is too deep for Python as well."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        try:
            return str(value)
        except RecursionError:
            return ""


def _read_prompt(document: dict[str, Any], texts: PromptTexts) -> int:
    """Reads the prompt of a plain completion; returns the number of prompts."""
    prompt = document.get("prompt")
    allowed = "a text, a list of texts, a list of token ids, or a list of such lists"
    texts.begin("user")
    if prompt in (None, "", []) and (embeds := document.get("prompt_embeds")) is not None:
        return _read_embeds(embeds, texts)
    if isinstance(prompt, str):
        texts.add(prompt)
        return 1
    if not isinstance(prompt, list) or not prompt:
        raise BodyError("prompt", prompt, allowed)
    kinds = set(map(type, prompt))
    if kinds == {int} or (kinds <= {int, float} and all(float(number).is_integer() for number in prompt)):
        texts.tokens += len(prompt)
        return 1
    bounded_list("prompt", prompt, PROMPTS_MOST, allowed)
    if kinds == {str}:
        for text in prompt:
            texts.add(text)
    elif kinds == {list}:
        texts.tokens += sum(map(len, prompt))
    else:
        raise BodyError("prompt", prompt, allowed)
    return len(prompt)


def _read_embeds(embeds: Any, texts: PromptTexts) -> int:
    """Counts the tokens of a prompt given as embeddings in base64, an extension of vLLM, by its bytes; returns the number of prompts."""
    allowed = "a text in base64, or a list of such texts"
    found = [embeds] if isinstance(embeds, str) else bounded_list("prompt_embeds", embeds, PROMPTS_MOST, allowed)
    if not found or not all(isinstance(one, str) for one in found):
        raise BodyError("prompt_embeds", embeds, allowed)
    texts.tokens += sum(max(1, len(one) * 3 // 4 // BYTES_PER_EMBEDDING) for one in found)
    return len(found)


def _read_choices(document: dict[str, Any], prompts: int) -> int:
    """The number of answers to each prompt that the engine computes; of `best_of` answers the client gets the best `n`."""
    field, choices = "n", _read_int(document, "n", 1, CHOICES_MOST) or 1
    best_of = _read_int(document, "best_of", 1, CHOICES_MOST)
    if best_of is not None and best_of > choices:
        field, choices = "best_of", best_of
    if prompts * choices > SEQUENCES_MOST:
        raise BodyError(field, choices, f"at most {SEQUENCES_MOST // prompts} with {prompts} prompts, {SEQUENCES_MOST} answers in all")
    return choices


def _read_cap(document: dict[str, Any], sequences: int, *, is_chat: bool, least: int) -> int | None:
    # For a completion, engines ignore the name that only chats have.
    cap = bounded_cap("max_completion_tokens", document.get("max_completion_tokens"), least) if is_chat else None
    if cap is None:
        cap = bounded_cap("max_tokens", document.get("max_tokens"), least)
    return None if cap in (None, NO_CAP) else max(1, min(INT_LIMIT, cap)) * sequences


def _read_least(document: dict[str, Any], cap: int | None, sequences: int) -> int:
    """The minimum output, by extensions of vLLM. The engine refuses a minimum above the cap, so it is bounded by the cap here."""
    least = (_read_int(document, "min_tokens", 0, INT_LIMIT) or 0) * sequences
    if cap is None:
        return least
    return cap if document.get("ignore_eos") is True else min(least, cap)


def _read_int(document: dict[str, Any], name: str, low: int, high: int) -> int | None:
    return bounded_int(name, document.get(name), low, high)


def _read_bool(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BodyError(name, value, "true or false")
    return value


def _check_tier(document: dict[str, Any]) -> None:
    tier = document.get("service_tier")
    if tier is not None and tier not in SERVICE_TIERS:
        raise BodyError("service_tier", tier, ", ".join(SERVICE_TIERS))


def _wants_json(document: dict[str, Any]) -> bool:
    # A form that no engine knows is left to the engine to refuse.
    form = document.get("response_format")
    return (isinstance(form, dict) and form.get("type") in JSON_FORMATS) or any(document.get(name) is not None for name in JSON_FIELDS)
