"""OpenAI's Responses and Anthropic's Messages over the embedded engine: bodies read as chat completions, answers in each API's own form."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from hmas.engines.sim.reply import Reply, Tally
from hmas.engines.sim.text import WORDS_JSON, word_index
from hmas.engines.sim.wire import Ask, ChatBody, Refused, ask_of_chat

MAX_STORED = 4096
COMMON_FIELDS = ("model", "stream", "tools", "tool_choice", "priority", "sim", "min_tokens", "ignore_eos")


class ResponseStore:
    """The newest responses, each with the conversation that led to it."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = OrderedDict()

    def put(self, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Stores a response and its conversation, its own text included."""
        self._stored[response["id"]] = (response, messages)
        if len(self._stored) > MAX_STORED:
            self._stored.popitem(last=False)

    def get(self, response_id: str, param: str = "response_id") -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Returns a response and its conversation.

        Raises:
            Refused: 404.
        """
        if response_id not in self._stored:
            raise Refused(404, f"Response with id '{response_id}' not found.", kind="invalid_request_error", param=param)
        return self._stored[response_id]

    def delete(self, response_id: str) -> None:
        """Forgets a response. Raises as `get` does."""
        self.get(response_id)
        del self._stored[response_id]


class ResponseTurn:
    """One request of the Responses API: its document, and its conversation with that of the response that it continues.

    Raises:
        Refused: The body is no JSON object, `input` is missing, or the previous response is not stored.
    """

    def __init__(self, data: bytes, store: ResponseStore) -> None:
        self.document = _object(data)
        self._store = store
        self.messages: list[dict[str, Any]] = []
        if previous := self.document.get("previous_response_id"):
            self.messages += store.get(str(previous), "previous_response_id")[1]
        given = self.document.get("input")
        if not isinstance(given, str | list):
            raise Refused(400, "input: allowed is a text or a list of input items", param="input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        self.messages += [_chat_message(item) for item in items if isinstance(item, dict)]

    def parse(self, _data: bytes, *, model: str, max_model_len: int) -> Ask:
        """See `hmas.engines.sim.wire.parse_chat`."""
        system = self.document.get("instructions")
        given = self.document.get("tools") or []
        tools = [{"function": tool} for tool in given if isinstance(tool, dict) and tool.get("type") == "function"]
        choice = self.document.get("tool_choice")
        chat = {
            "messages": [{"role": "system", "content": system}, *self.messages] if system else self.messages,
            "max_tokens": self.document.get("max_output_tokens"),
            "tools": tools,
            "tool_choice": {"function": choice} if isinstance(choice, dict) else choice,
        }
        return _ask(self.document, chat, model=model, max_model_len=max_model_len)

    def keep(self, response: dict[str, Any], text: str) -> None:
        """Stores the response, unless the client does not want it."""
        if self.document.get("store") is not False:
            self._store.put(response, [*self.messages, {"role": "assistant", "content": text}])


def parse_messages(data: bytes, *, model: str, max_model_len: int) -> Ask:
    """Reads a body of the Messages API. Raises as `hmas.engines.sim.wire.parse_chat`."""
    document = _object(data)
    if not isinstance(document.get("max_tokens"), int):
        raise Refused(400, "max_tokens: allowed is a whole number", param="max_tokens")
    return _ask_of_messages(document, model=model, max_model_len=max_model_len)


def count_tokens(data: bytes, *, model: str, max_model_len: int) -> bytes:
    """The answer to a request of the Messages API to count its tokens. Raises as `parse_messages`."""
    ask = _ask_of_messages(_object(data), model=model, max_model_len=max_model_len)
    return orjson.dumps({"input_tokens": ask.prompt_tokens})


def _ask_of_messages(document: dict[str, Any], *, model: str, max_model_len: int) -> Ask:
    given, system = document.get("messages"), document.get("system")
    messages = [_chat_message(message) for message in given if isinstance(message, dict)] if isinstance(given, list) else []
    tools = [
        {"function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in document.get("tools") or []
        if isinstance(tool, dict)
    ]
    choice = document.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else None
    chosen = {"any": "required", "tool": {"function": choice}, "none": "none"}.get(str(kind), "auto")
    chat = {
        "messages": [_chat_message({"role": "system", "content": system}), *messages] if system else messages,
        "max_tokens": document.get("max_tokens"),
        "tools": tools,
        "tool_choice": chosen,
    }
    return _ask(document, chat, model=model, max_model_len=max_model_len)


def message_error(error: Refused) -> bytes:
    """An error document of the Messages API, with `type` as vLLM names it."""
    return orjson.dumps({"type": "error", "error": {"type": error.kind, "message": str(error)}})


class NamedReply(Reply, ABC):
    """One answer as named events; see `Reply`."""

    __slots__ = ("_number",)

    def __init__(self, ask: Ask, *, answer_id: str, model: str, created_s: int, index: int = 0, tally: Tally | None = None) -> None:
        super().__init__(ask, answer_id=answer_id, model=model, created_s=created_s, index=index, tally=tally)
        self._number = 0

    def chunk(self, position: int, *, first: bool, finished: bool) -> bytes:
        """See `Reply.chunk`."""
        opening = self._open() if first else b""
        self._tally.count(self._index, position)
        delta = WORDS_JSON[word_index(self._seed, position)] if self._pieces is None else orjson.dumps(self._pieces[position - 1])
        return opening + self._token(delta) + (self._close(position) if finished else b"")

    def broken_off(self, tokens: int) -> bytes:
        """See `Reply.broken_off`."""
        self._tally.count(self._index, tokens)
        return self._close(tokens, aborted=True)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), self._document({"type": name, **fields}, number))

    def _document(self, fields: dict[str, Any], _number: int) -> bytes:
        return orjson.dumps(fields)

    def _answer(self, tokens: int) -> tuple[str, dict[str, str] | None]:
        """Text and tool call, of which one is empty."""
        message = self.choice(tokens)["message"]
        calls = message.get("tool_calls")
        return message["content"] or "", {"id": calls[0]["id"], **calls[0]["function"]} if calls else None

    @abstractmethod
    def _open(self) -> bytes:
        """The events before the first token."""

    @abstractmethod
    def _token(self, delta: bytes) -> bytes:
        """The event of one token, given its text as JSON."""

    @abstractmethod
    def _close(self, tokens: int, *, aborted: bool = False) -> bytes:
        """The events after the last token."""


class MessagesReply(NamedReply):
    """One answer of the Messages API."""

    __slots__ = ()

    def whole(self, choices: Sequence[dict[str, Any]]) -> bytes:
        """See `Reply.whole`."""
        text, call = self._answer(self._tally.tokens)
        block = {"type": "text", "text": text} if call is None else self._tool_block(call, orjson.loads(call["arguments"] or "{}"))
        aborted = choices[0]["finish_reason"] == "abort"
        return orjson.dumps(self._envelope([block], None if aborted else self._stop_reason()))

    def _open(self) -> bytes:
        call = self._answer(0)[1]
        block = {"type": "text", "text": ""} if call is None else self._tool_block(call, {})
        start = self._event("message_start", message=self._envelope([], None))
        return start + self._event("content_block_start", index=0, content_block=block)

    def _token(self, delta: bytes) -> bytes:
        kind, name = (b"text_delta", b"text") if self._pieces is None else (b"input_json_delta", b"partial_json")
        form = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"%b","%b":%b}}\n\n'
        return form % (kind, name, delta)

    def _close(self, tokens: int, *, aborted: bool = False) -> bytes:  # noqa: ARG002 - the tally has them
        reason = None if aborted else self._stop_reason()
        return (
            self._event("content_block_stop", index=0)
            + self._event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=self._used())
            + self._event("message_stop")
        )

    def _tool_block(self, call: Mapping[str, str], given: object) -> dict[str, Any]:
        return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": given}

    def _stop_reason(self) -> str:
        if self._ask.finish == "length":
            return "max_tokens"
        return "end_turn" if self._pieces is None else "tool_use"

    def _used(self) -> dict[str, int]:
        return {"input_tokens": self._ask.prompt_tokens, "output_tokens": self._tally.tokens}

    def _envelope(self, content: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._meta["model"], "content": content}
        return head | {"stop_reason": reason, "stop_sequence": None, "usage": self._used()}


class ResponsesReply(NamedReply):
    """One answer of the Responses API."""

    __slots__ = ("_turn",)

    def __init__(self, ask: Ask, *, turn: ResponseTurn, answer_id: str, model: str, created_s: int, index: int, tally: Tally) -> None:
        super().__init__(ask, answer_id=answer_id, model=model, created_s=created_s, index=index, tally=tally)
        self._turn = turn

    def whole(self, choices: Sequence[dict[str, Any]]) -> bytes:
        """See `Reply.whole`."""
        return orjson.dumps(self._ended(self._tally.tokens, aborted=choices[0]["finish_reason"] == "abort"))

    def _document(self, fields: dict[str, Any], number: int) -> bytes:
        return orjson.dumps(fields | {"sequence_number": number})

    def _open(self) -> bytes:
        running = self._response("in_progress", [])
        events = self._event("response.created", response=running) + self._event("response.in_progress", response=running)
        item = self._item(0, "in_progress")
        if self._pieces is None:
            item["content"] = []
        events += self._event("response.output_item.added", output_index=0, item=item)
        if self._pieces is None:
            events += self._event("response.content_part.added", **self._place(), part=_text_part(""))
        return events

    def _token(self, delta: bytes) -> bytes:
        number = self._number
        self._number += 1
        item = self._item_id.encode()
        if self._pieces is not None:
            name, more = b"response.function_call_arguments.delta", b""
        else:
            name, more = b"response.output_text.delta", b',"content_index":0,"logprobs":[]'
        form = b'event: %b\ndata: {"type":"%b","item_id":"%b","output_index":0%b,"delta":%b,"sequence_number":%d}\n\n'
        return form % (name, name, item, more, delta, number)

    def _close(self, tokens: int, *, aborted: bool = False) -> bytes:
        ended = self._ended(tokens, aborted=aborted)
        item, text = ended["output"][0], self._answer(tokens)[0]
        if self._pieces is not None:
            place = {"item_id": self._item_id, "output_index": 0}
            events = self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        else:
            events = self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            events += self._event("response.content_part.done", **self._place(), part=_text_part(text))
        events += self._event("response.output_item.done", output_index=0, item=item)
        return events + self._event(f"response.{ended['status']}", response=ended)

    @property
    def _item_id(self) -> str:
        return ("msg_" if self._pieces is None else "fc_") + self._id.removeprefix("resp_")

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, tokens: int, status: str) -> dict[str, Any]:
        text, call = self._answer(tokens)
        head = {"id": self._item_id, "status": status}
        if call is None:
            return head | {"type": "message", "role": "assistant", "content": [_text_part(text)]}
        return head | {"type": "function_call", "call_id": call["id"], "name": call["name"], "arguments": call["arguments"]}

    def _ended(self, tokens: int, *, aborted: bool) -> dict[str, Any]:
        """The whole response; it is stored if it was not aborted."""
        status = "failed" if aborted else "incomplete" if self._ask.finish == "length" else "completed"
        response = self._response(status, [self._item(tokens, "completed" if status == "completed" else "incomplete")])
        prompt = self._ask.prompt_tokens
        response["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + tokens,
        }
        if aborted:
            response["error"] = {"code": "server_error", "message": "the request was aborted"}
        else:
            self._turn.keep(response, self._answer(tokens)[0])
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        given = self._turn.document
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._meta["created"],
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": given.get("instructions"),
            "max_output_tokens": given.get("max_output_tokens"),
            "metadata": given.get("metadata"),
            "model": self._meta["model"],
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": given.get("previous_response_id"),
            "store": given.get("store") is not False,
            "temperature": given.get("temperature", 1.0),
            "tool_choice": given.get("tool_choice") or "auto",
            "tools": given.get("tools") or [],
            "top_p": given.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _object(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Refused(400, "the body is no JSON object")
    return document


def _chat_message(item: dict[str, Any]) -> dict[str, Any]:
    """A message of chat completions with the text of an input item or a message; what has no text is left out."""
    role = item.get("role") or ("tool" if str(item.get("type")).endswith("_output") else "assistant")
    content = item.get("content", item.get("output"))
    if content is not None and not isinstance(content, str | list):
        raise Refused(400, "content: allowed is a text or a list of parts", param="content")
    parts = content if isinstance(content, list) else [content]
    texts = [text for part in parts for text in _texts(part)]
    return {"role": role, "content": "\n".join(texts)}


def _texts(part: object) -> list[str]:
    if isinstance(part, str):
        return [part]
    if not isinstance(part, dict):
        return []
    if isinstance(text := part.get("text"), str):
        return [text]
    inner = part.get("content")
    return [text for one in inner for text in _texts(one)] if isinstance(inner, list) else _texts(inner)


def _ask(document: dict[str, Any], chat: dict[str, Any], *, model: str, max_model_len: int) -> Ask:
    body = {name: document[name] for name in COMMON_FIELDS if document.get(name) is not None}
    try:
        return ask_of_chat(msgspec.convert(body | chat, ChatBody), model=model, max_model_len=max_model_len)
    except msgspec.ValidationError as error:
        raise Refused(400, str(error)) from error
