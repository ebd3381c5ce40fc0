"""Parses and checks the OpenAI request bodies that the embedded engine accepts; the result is an `Ask`."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
import orjson
from msgspec import Meta

from hmas.engines.errors import HmasError
from hmas.engines.sim.text import drawn_output_tokens, instance_of, seed_of
from hmas.engines.tokens import estimate_tokens

TOKENS_PER_MESSAGE = 4
MAX_TOP_LOGPROBS = 20
MAX_ANSWERS = 128

T = TypeVar("T")

Count = Annotated[int, Meta(ge=1, le=1 << 31)]


class Refused(HmasError):
    """A request that is answered with an error document; `kind` is the document's `type`, as vLLM names it."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def document(self) -> bytes:
        """The OpenAI error document."""
        return orjson.dumps({"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}})


class ToolCall(msgspec.Struct, frozen=True):
    """The tool call that `tool_choice` forces, with its arguments as JSON text."""

    name: str
    arguments: str
    named: bool


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One parsed request.

    Attributes:
        chat: Whether it came to `/v1/chat/completions`.
        answers: Number of answers to the prompt (the body's `n`); each runs as a sequence of its own.
        prompt_tokens: Length of the prompt, from `estimate_tokens` unless the body states it.
        output_tokens: Tokens that will be produced for each answer.
        finish: The finish reason.
        seed: A hash of the prompt, from which the answer is derived.
        top_logprobs: Alternatives per token; None for no log probabilities.
        priority: LOWER goes first.
        include_usage: Whether a usage chunk ends the stream; `continuous_usage`: whether every chunk has usage.
    """

    chat: bool
    answers: int
    prompt_tokens: int
    output_tokens: int
    finish: Literal["stop", "length", "tool_calls"]
    seed: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    top_logprobs: int | None
    tool: ToolCall | None
    priority: int


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _SimOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The field `sim`, which only the embedded engine reads."""

    output_tokens: Count | None = None
    prompt_tokens: Count | None = None


class _Body(msgspec.Struct, kw_only=True):
    """Fields of both endpoints; unknown ones are ignored, as engines do."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    ignore_eos: bool | None = None
    n: Count | None = None
    priority: int | None = None
    sim: _SimOptions | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Function(msgspec.Struct):
    name: str
    parameters: Any = None


class _Tool(msgspec.Struct):
    function: _Function
    type: str = "function"


class ChatBody(_Body, kw_only=True):
    """The body of a chat completion."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None


class _CompletionBody(_Body, kw_only=True):
    prompt: Any = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(_CompletionBody)


def parse_chat(data: bytes, *, model: str, max_model_len: int) -> Ask:
    """Reads a chat completion's body.

    Raises:
        Refused: It is not JSON, a field is wrong, the model is another, or the prompt does not fit.
    """
    return ask_of_chat(_decode(_CHAT, data), model=model, max_model_len=max_model_len)


def ask_of_chat(body: ChatBody, *, model: str, max_model_len: int) -> Ask:
    """Returns what a chat completion asks for. Raises as `parse_chat`."""
    text = "\n".join(_content_text(message.content, f"messages[{index}].content") for index, message in enumerate(body.messages))
    tokens = estimate_tokens(text) + TOKENS_PER_MESSAGE * len(body.messages)
    if body.tools:
        tokens += estimate_tokens(msgspec.json.encode(body.tools).decode())
    tool = _forced_call(body)
    max_tokens = body.max_completion_tokens or body.max_tokens
    top = (body.top_logprobs or 0) if body.logprobs else None
    return _ask(body, text, tokens, model=model, max_model_len=max_model_len, max_tokens=max_tokens, top=top, tool=tool, chat=True)


def parse_completion(data: bytes, *, model: str, max_model_len: int) -> Ask:
    """Reads a text completion's body.

    Raises:
        Refused: It is not JSON, a field is wrong, the model is another, or the prompt does not fit.
    """
    body = _decode(_COMPLETION, data)
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        text, tokens = prompt, estimate_tokens(prompt)
    elif isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        text, tokens = ",".join(map(str, prompt)), len(prompt)
    else:
        raise Refused(400, "prompt: allowed is one text or one list of token ids", param="prompt")
    return _ask(
        body, text, tokens, model=model, max_model_len=max_model_len, max_tokens=body.max_tokens, top=body.logprobs, tool=None, chat=False
    )


def _ask(
    body: _Body,
    text: str,
    prompt_tokens: int,
    *,
    model: str,
    max_model_len: int,
    max_tokens: int | None,
    top: int | None,
    tool: ToolCall | None,
    chat: bool,
) -> Ask:
    check_model(body.model, model)
    answers = body.n or 1
    if answers > MAX_ANSWERS:
        raise Refused(400, f"n: got {answers}; allowed: 1 to {MAX_ANSWERS}", param="n")
    sim = body.sim or _SimOptions()
    prompt_tokens = max(1, sim.prompt_tokens or prompt_tokens)
    if prompt_tokens >= max_model_len:
        raise Refused(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {prompt_tokens} input "
            "tokens, which leaves no room for output. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    seed = seed_of(text)
    limit = min(max_tokens or max_model_len, max_model_len - prompt_tokens)
    wanted = sim.output_tokens or _natural_length(body, seed, tool, limit)
    finish: Literal["stop", "length", "tool_calls"] = "stop"
    if wanted > limit or (body.ignore_eos and not sim.output_tokens):
        finish = "length"
    elif tool is not None and not tool.named:
        finish = "tool_calls"
    options = body.stream_options or _StreamOptions()
    return Ask(
        chat=chat,
        answers=answers,
        prompt_tokens=prompt_tokens,
        output_tokens=min(wanted, limit),
        finish=finish,
        seed=seed,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        top_logprobs=top,
        tool=tool,
        priority=body.priority or 0,
    )


def _natural_length(body: _Body, seed: int, tool: ToolCall | None, limit: int) -> int:
    if body.ignore_eos:
        return limit
    length = estimate_tokens(tool.arguments) if tool is not None else drawn_output_tokens(seed)
    return max(length, body.min_tokens or 1, 1)


def check_model(asked: str | None, served: str) -> None:
    """Refuses a model that is not the one served; a body without a model is accepted.

    Raises:
        Refused: 404.
    """
    if asked is not None and asked != served:
        raise Refused(404, f"The model `{asked}` does not exist. Valid aliases: {served}.", kind="NotFoundError", param="model")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise Refused(400, str(error), param=str(error).rpartition("`$.")[2].rstrip("`") or None) from error
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error


def _content_text(content: str | list[dict[str, Any]] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise Refused(400, f"{where}: a part of type {part.get('type')!r} cannot be read; allowed: text", param=where)
        texts.append(text)
    return "\n".join(texts)


def _forced_call(body: ChatBody) -> ToolCall | None:
    """The tool call that `tool_choice` demands; with `auto` and `none` the answer is text."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return None
    tools = {tool.function.name: tool.function for tool in body.tools or []}
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
    elif choice == "required":
        name = next(iter(tools), None)
    else:
        raise Refused(400, f"tool_choice {choice!r}: allowed are none, auto, required or a named function", param="tool_choice")
    if name not in tools:
        raise Refused(400, f"tool_choice names {name!r}; tools has {sorted(tools)}", param="tool_choice")
    arguments = orjson.dumps(instance_of(tools[name].parameters or {"type": "object"})).decode()
    return ToolCall(name, arguments, isinstance(choice, dict))
