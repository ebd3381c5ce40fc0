"""Writes prompts of a wanted length in the style of their task type, from the templates in datasets/prompts.json."""

import string
from typing import NamedTuple

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.dataset import PromptData, TaskPrompts
from hmas.loadgen.streams import Draws

LINE_POOLS = frozenset({"code", "chat", "records"})
"""Pools whose pieces are separate lines; the others form paragraphs."""
PARAGRAPH = 6
TOLERANCE = 0.02
PASSES = 4

Piece = tuple[str, str | None]
"""Literal text, and the slot that follows it."""
Template = list[Piece]


class ParsedTask(NamedTuple):
    """Templates of one task type, parsed."""

    pool: str
    open: list[Template]
    close: list[Template]
    short: list[Template]


class PromptWriter:
    """Composes prompts; the same generator state gives the same text."""

    def __init__(self, data: PromptData) -> None:
        """Parses the templates once.

        Raises:
            TraceError: A template names an unknown slot, or a task an unknown pool.
        """
        self._slots = data.slots
        self._pools = {name: [self._parse(line) for line in lines] for name, lines in data.pools.items()}
        self._tasks = {task: self._parse_task(task, spec) for task, spec in data.tasks.items()}
        self._other = next(iter(self._tasks.values()))

    def compose(self, task: TaskType, tokens: int, rng: np.random.Generator) -> str:
        """A prompt of about `tokens` tokens by `estimate_tokens`; one of the task's short prompts if no body fits."""
        draws = Draws(rng)
        parsed = self._tasks.get(task, self._other)
        head, tail = self._pick(parsed.open, draws), self._pick(parsed.close, draws)
        room = tokens - estimate_tokens(head) - estimate_tokens(tail)
        if room < 16:
            return self._pick(parsed.short, draws)
        return f"{head}\n{self.body(parsed.pool, room, draws)}\n\n{tail}"

    def body(self, pool: str, tokens: int, draws: Draws) -> str:
        """Running text of a pool, about `tokens` long."""
        pieces: list[str] = []
        text, missing = "", float(tokens)
        # The estimate of the joined text differs slightly from the sum over its pieces, so the gap is measured and filled repeatedly.
        for _ in range(PASSES):
            while missing > 0:
                piece = self._pick(self._pools[pool], draws)
                cost = estimate_tokens(piece)
                if cost > missing:
                    words = piece.split(" ")
                    piece = " ".join(words[: max(1, round(len(words) * missing / cost))])
                    cost = max(1, estimate_tokens(piece))
                pieces.append(piece)
                missing -= cost
            text = _join(pool, pieces)
            missing = tokens - estimate_tokens(text)
            if abs(missing) <= max(2.0, TOLERANCE * tokens):
                break
            while missing < 0 and len(pieces) > 1:
                missing += estimate_tokens(pieces.pop())
        return text

    def _pick(self, options: list[Template], draws: Draws) -> str:
        parts: list[str] = []
        for literal, slot in options[draws.below(len(options))]:
            parts.append(literal)
            if slot is not None:
                values = self._slots[slot]
                parts.append(values[draws.below(len(values))])
        return "".join(parts)

    def _parse(self, line: str) -> Template:
        pieces: Template = [(literal, slot) for literal, slot, _, _ in string.Formatter().parse(line)]
        missing = {slot for _, slot in pieces if slot is not None} - self._slots.keys()
        if missing:
            raise TraceError(f"prompt template {line[:60]!r} names unknown slots {sorted(missing)}; known: {sorted(self._slots)}")
        return pieces

    def _parse_task(self, task: TaskType, spec: TaskPrompts) -> ParsedTask:
        if spec.body not in self._pools:
            raise TraceError(f"tasks.{task}.body names the pool {spec.body!r}; known: {sorted(self._pools)}")
        return ParsedTask(spec.body, *([self._parse(line) for line in lines] for lines in (spec.open, spec.close, spec.short)))


def _join(pool: str, pieces: list[str]) -> str:
    if pool in LINE_POOLS:
        return "\n".join(pieces)
    return "\n\n".join(" ".join(pieces[i : i + PARAGRAPH]) for i in range(0, len(pieces), PARAGRAPH))
