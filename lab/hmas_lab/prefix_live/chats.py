"""Chats about a document: a system prompt that many share, a first message with a long text, and questions about it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.streams import stream

APPS = 4
SYSTEM_TOKENS, DOCUMENT_TOKENS = 150, 250
TURNS_MEAN, TURNS_MOST = 4.0, 8


class Chat(NamedTuple):
    """One chat.

    Attributes:
        app: Number of its application, which decides the system prompt.
        system: The system prompt.
        asked: What the user says, turn by turn.
    """

    app: int
    system: str
    asked: tuple[str, ...]


class Chats:
    """The chats of each user, the same for the same seed.

    Args:
        texts: What the messages are made of.
        seed: Of all draws.
        mark: Begins every system prompt, so that nothing is cached from runs with another one.
    """

    def __init__(self, texts: Sequence[str], seed: int, mark: str) -> None:
        self._texts = texts
        self._seed = seed
        rng = stream(seed, "prefix-live-apps")
        self._systems = [f"[{mark}-{app}] {self._words(rng, SYSTEM_TOKENS)}" for app in range(APPS)]

    def of(self, user: int) -> Iterator[Chat]:
        """One chat after the other."""
        rng = stream(self._seed, "prefix-live-user", user)
        while True:
            app = int(rng.integers(APPS))
            turns = int(min(TURNS_MOST, rng.geometric(1.0 / TURNS_MEAN)))
            questions = [self._texts[int(rng.integers(len(self._texts)))] for _ in range(turns)]
            document = self._words(rng, DOCUMENT_TOKENS)
            yield Chat(app, self._systems[app], (f"{document}\n\n{questions[0]}", *questions[1:]))

    def _words(self, rng: np.random.Generator, tokens: int) -> str:
        parts: list[str] = []
        while sum(map(estimate_tokens, parts)) < tokens:
            parts.append(self._texts[int(rng.integers(len(self._texts)))])
        return "\n".join(parts)
