"""The texts of a request by their role: the question, the system prompt, the earlier messages. Pure, with bounded work and size."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from hmas.engines.tokens import estimate_tokens_of

EXCERPT_HEAD = 1200
EXCERPT_TAIL = 800
SYSTEM_CHARS = 600
HISTORY_CHARS = 600
HISTORY_MESSAGE_CHARS = 240
"""Most characters per message, so that one long message does not hide those before it; the beginning of a message shows its subject."""

BLOCK_CHARS, BLOCK_TOKENS = 256, 64
"""Length of a block in text, and in a prompt of token ids: four blocks of an engine's cache."""
BLOCKS_MOST = 1024
"""Blocks of a prompt that are hashed: where two prompts differ first only behind 65,000 tokens, either instance will do."""

SYSTEM_ROLES = ("system", "developer")
TOOL_ROLES = ("tool", "function")


class PromptTexts:
    """Collects the texts of one request message by message, without joining them.

    Attributes:
        chars: Characters of all texts, without calls of tools.
        tokens: Tokens of what is no text: pictures, token ids, separators. The reader of the body counts them here.
        images: Number of pictures; the reader of the body counts them here.
        tool_results: Number of messages with a tool's answer.
    """

    __slots__ = ("_messages", "chars", "images", "tokens", "tool_results")

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self.chars = 0
        self.tokens = 0
        self.images = 0
        self.tool_results = 0

    def begin(self, role: str) -> None:
        """Starts the next message, with its role; a plain prompt is one message of the user."""
        self._messages.append(_Message(role))
        self.tool_results += role in TOOL_ROLES

    def add(self, text: str) -> None:
        """Adds a part to the message that was started last."""
        if not text:
            return
        message = self._messages[-1]
        message.parts.append(text)
        message.chars += len(text)
        self.chars += len(text)

    def add_call(self, text: str) -> None:
        """Adds a part of a call (the tool's name, its arguments) to the message that was started last.

        It counts in the tokens and the blocks of the prompt. The texts for agents leave it out.
        """
        message = self._messages[-1]
        if message.called is None:
            message.called = []
        message.called.append(text)

    def cut(self) -> "Cut":
        """Returns the bounded texts.

        The question is the last user message with text. Without one, it is the last message that is neither a system prompt nor a tool's
        answer, and without that the last message.
        """
        asked = self._asked()
        question = self._messages[asked] if asked >= 0 else _Message("")
        system: list[str] = []
        earlier: list[str] = []
        others: list[str] = []
        for index, message in enumerate(self._messages):
            if index != asked:
                others += message.parts
                if message.role in SYSTEM_ROLES:
                    system += message.parts
            if message.called is not None:
                others += message.called
        room = HISTORY_CHARS
        for message in reversed(self._messages[:asked]):
            if room <= 0:
                break
            if message.role not in SYSTEM_ROLES and message.parts:
                shown = _take(message.parts, min(room, HISTORY_MESSAGE_CHARS))
                earlier.append(shown)
                room -= len(shown)
        question_tokens = estimate_tokens_of(question.parts)
        tokens = question_tokens + estimate_tokens_of(others) if others else question_tokens
        history = "\n".join(reversed(earlier))
        return Cut(_excerpt(question), _take(system, SYSTEM_CHARS), history, question.chars, question_tokens, tokens)

    def blocks(self, salt: str, tools: str = "") -> tuple[int, ...]:
        """Hashes of the whole blocks of all texts in their order, each of `salt` and all that stands before it too.

        `tools`, the definitions, stand behind the system prompt, where the chat templates of Qwen, Hermes and Llama put them.

        The hashes are the same only in this process: Python draws the key of its hash function at the start, so no client can aim at one.
        """
        pieces: list[str] = []
        room = BLOCK_CHARS * BLOCKS_MOST
        for message in self._messages:
            if room <= 0:
                break
            if tools and message.role not in SYSTEM_ROLES:
                pieces.append(f"\0{tools}")
                room -= len(tools)
                tools = ""
            pieces.append(f"\0{message.role}\0")
            pieces += message.parts
            room -= message.chars
            if message.called is not None:
                pieces += [f"\0{text}" for text in message.called]
                room -= sum(map(len, message.called))
        if tools:
            pieces.append(f"\0{tools}")
        text = "".join(pieces)
        most = min(len(text), BLOCK_CHARS * BLOCKS_MOST)
        return _chained(salt, [text[end - BLOCK_CHARS : end] for end in range(BLOCK_CHARS, most + 1, BLOCK_CHARS)])

    def _asked(self) -> int:
        found, best = -1, 0
        for index, message in enumerate(self._messages):
            if message.parts and (rank := _rank(message.role)) >= best:
                found, best = index, rank
        return found


@dataclass(slots=True)
class Cut:
    """The bounded texts of a request.

    Attributes:
        excerpt: Head and tail of the question: at most 2,000 characters, a separator, and a line break for each part of its content.
        system: Head of the system prompts, at most 600 characters and line breaks.
        history: The messages before the question, newest last: at most 240 characters of each message, 600 in total, and line breaks.
        question_chars, question_tokens: Length of the whole question.
        tokens: Estimated tokens of all texts, calls of tools included.
    """

    excerpt: str
    system: str
    history: str
    question_chars: int
    question_tokens: int
    tokens: int


@dataclass(slots=True)
class _Message:
    role: str
    parts: list[str] = field(default_factory=list)
    chars: int = 0
    called: list[str] | None = None


def token_blocks(salt: str, ids: Sequence[int]) -> tuple[int, ...]:
    """As `PromptTexts.blocks`, for a prompt of token ids."""
    most = min(len(ids), BLOCK_TOKENS * BLOCKS_MOST)
    return _chained(salt, [tuple(ids[end - BLOCK_TOKENS : end]) for end in range(BLOCK_TOKENS, most + 1, BLOCK_TOKENS)])


def _chained(salt: str, pieces: Sequence[Hashable]) -> tuple[int, ...]:
    found: list[int] = []
    last = hash(salt)
    for piece in pieces:
        last = hash((last, piece))
        found.append(last)
    return tuple(found)


def _rank(role: str) -> int:
    if role == "user":
        return 3
    if role in SYSTEM_ROLES or role in TOOL_ROLES:
        return 1
    return 2


def _excerpt(message: _Message) -> str:
    if message.chars <= EXCERPT_HEAD + EXCERPT_TAIL:
        return "\n".join(message.parts)
    return _take(message.parts, EXCERPT_HEAD) + "\n...\n" + _take_last(message.parts, EXCERPT_TAIL)


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
