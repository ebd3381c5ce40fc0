"""Reads rows of prompt files in common formats of Hugging Face: plain prompts, questions, chats, ShareGPT conversations."""

from typing import Any, NamedTuple

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens

TEXT_FIELDS = ("prompt", "text", "question", "instruction", "query")
CHAT_FIELDS = ("messages", "conversations", "conversation")
LENGTH_FIELDS = ("output_tokens", "output_length", "completion_tokens", "num_decode_tokens")
ANSWER_FIELDS = ("response", "output", "answer", "completion", "generation")
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
}
MAX_CHARS = 4_000_000


class PromptRow(NamedTuple):
    """The messages of one row, and the length of its answer if the file has it."""

    messages: tuple[tuple[str, str], ...]
    output_tokens: int | None
    task_type: TaskType | None


def read_prompt_row(record: Any) -> PromptRow:
    """Reads one row; uses the first field present of messages, conversations, prompt, text, question, instruction.

    Raises:
        TraceError: The row is not an object, or the field has no text.
    """
    if isinstance(record, str):
        record = {"prompt": record}
    if not isinstance(record, dict):
        raise TraceError(f"wanted a JSON object or a string, got {str(record)[:60]!r}")
    answer: str | None = None
    messages: list[tuple[str, str]] = []
    chat = next((field for field in CHAT_FIELDS if record.get(field) is not None), None)
    if chat is not None:
        messages, answer = _chat(chat, record[chat])
    else:
        field = next((field for field in TEXT_FIELDS if record.get(field) is not None), None)
        if field is None:
            raise TraceError(f"no prompt; wanted one of {', '.join((*CHAT_FIELDS, *TEXT_FIELDS))}")
        if isinstance(record[field], list):
            # Some data sets have the whole chat under `prompt`.
            messages, answer = _chat(field, record[field])
        else:
            extra = record.get("input")
            text = _text(field, record[field])
            messages = [("user", f"{text}\n\n{extra}" if isinstance(extra, str) and extra.strip() else text)]
    if sum(len(content) for _, content in messages) > MAX_CHARS:
        raise TraceError(f"the prompt has more than {MAX_CHARS} characters")
    return PromptRow(tuple(messages), _output_tokens(record, answer), _task(record.get("task_type")))


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TraceError(f"{field} is {str(value)[:40]!r}; wanted text")
    return value


def _chat(field: str, turns: Any) -> tuple[list[tuple[str, str]], str | None]:
    """The turns before the last one of the assistant, and that turn as the answer; a chat without one is sent in full."""
    if not isinstance(turns, list) or not turns:
        raise TraceError(f"{field} is {str(turns)[:40]!r}; wanted a list of turns")
    read = []
    for place, turn in enumerate(turns):
        where = f"{field}[{place}]"
        if not isinstance(turn, dict):
            raise TraceError(f"{where} is {str(turn)[:40]!r}; wanted an object")
        said = turn.get("role", turn.get("from"))
        role = ROLES.get(said) if isinstance(said, str) else None
        if role is None:
            raise TraceError(f"{where}.role is {said!r}; allowed: {', '.join(sorted(ROLES))}")
        read.append((role, _content(where, turn.get("content", turn.get("value")))))
    last = next((i for i in range(len(read) - 1, -1, -1) if read[i][0] == "assistant"), None)
    messages, answer = (read, None) if last is None else (read[:last], read[last][1])
    if not any(role == "user" for role, _ in messages):
        raise TraceError(f"{field} holds no user turn before the last answer")
    return messages, answer


def _content(where: str, value: Any) -> str:
    if isinstance(value, list):
        # OpenAI's content parts; the token length of images and audio is unknown here.
        value = "\n".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return _text(f"{where}.content", value)


def _output_tokens(record: dict[str, Any], answer: str | None) -> int | None:
    for field in LENGTH_FIELDS:
        value = record.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if value is not None:
            raise TraceError(f"{field} is {value!r}; wanted a whole number of tokens")
    if answer is None:
        answer = next((record[f] for f in ANSWER_FIELDS if isinstance(record.get(f), str) and record[f].strip()), None)
    return None if answer is None else max(1, estimate_tokens(answer))


def _task(value: Any) -> TaskType | None:
    try:
        return None if value is None else TaskType(value)
    except ValueError:
        return None
