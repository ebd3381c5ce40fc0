"""How clients send the training rows: in every shape, with system prompts and histories that say nothing of the task, and some that do."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hmas.agents.perception.bodies import view_of_body
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.exchanges import Exchanges
from hmas.agents.perception.training.shapes import MODEL
from hmas.controller.core.client_bodies import EXCHANGES, Shape
from hmas.controller.core.client_systems import short_system
from hmas.controller.core.request_body import CHAT
from hmas.controller.core.types import TaskType

SHARES = {
    Shape.CHAT: 0.28,
    Shape.COMPLETION: 0.14,
    Shape.SYSTEM: 0.16,
    Shape.LONG_SYSTEM: 0.07,
    Shape.HISTORY_1: 0.12,
    Shape.HISTORY_4: 0.08,
    Shape.HISTORY_15: 0.04,
    Shape.TOOLS: 0.05,
    Shape.TOOL_RESULT: 0.03,
    Shape.PICTURE: 0.01,
    Shape.JSON_SCHEMA: 0.02,
}
"""How often a training row is sent in each shape."""
AS_MESSAGES = 0.5
"""Share of written-out conversations that are sent as the messages that they are."""
BY_SYSTEM = 0.12
"""Share of rows with a command and a text whose command stands in the system prompt, with the text alone in the user's message."""
COMMAND_CHARS = 160
COLON_CHARS = 90
"""A command before a colon is shorter: sentences of a text have colons too."""
LEAST_TEXT = 20
_SPEAKER = re.compile(r"(?:^|\n)(User|Assistant|Customer|Agent|Human|AI|Bot|Support)\s*: ?")
_ASSISTANTS = ("Assistant", "Agent", "AI", "Bot", "Support")
_SHAPES, _WEIGHTS = list(SHARES), np.cumsum(list(SHARES.values()))


class Clients:
    """Sends rows as clients might.

    Args:
        rows: Whose prompts make the histories.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._exchanges = Exchanges([row.prompt for row in rows])

    def view(self, row: Row, rng: np.random.Generator, *, features_only: bool = False) -> PromptView:
        """What a reader sees of the row as `sent`."""
        return self.sent(row, rng, features_only=features_only)[0]

    def sent(self, row: Row, rng: np.random.Generator, *, features_only: bool = False) -> tuple[PromptView, bool]:
        """What a reader sees of the row in a shape drawn at random; its label stays true.

        Args:
            row: The row.
            rng: Where chance comes from.
            features_only: As where prompts stay in the gateway.

        Returns:
            The view, and whether system prompt or history are needed to tell the label.
        """
        draw = rng.random()
        messages = None
        if row.task is TaskType.DIALOGUE:
            messages = conversation(row.prompt) if draw < AS_MESSAGES else None
        elif draw < BY_SYSTEM:
            messages = commanded_by_system(row.prompt, rng)
        if messages is not None:
            return view_of_body(CHAT, {"model": MODEL, "messages": messages}, share_prompts=not features_only), True
        shape = _SHAPES[int(np.searchsorted(_WEIGHTS, rng.random() * _WEIGHTS[-1], side="right"))]
        exchanges = self._exchanges.draw(EXCHANGES.get(shape, 1), rng)
        return row.view(shape, rng=rng, exchanges=exchanges, features_only=features_only), False


def conversation(text: str) -> list[dict[str, Any]] | None:
    """The messages of a written-out conversation up to the user's last one; None where the text is none, or has but one turn."""
    marks = list(_SPEAKER.finditer(text))
    if not marks:
        return None
    messages = [{"role": "system", "content": preface}] if (preface := text[: marks[0].start()].strip()) else []
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        said = text[mark.end() : after.start() if after else len(text)].strip()
        if said:
            messages.append({"role": "assistant" if mark[1] in _ASSISTANTS else "user", "content": said})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return messages if sum(message["role"] != "system" for message in messages) >= 3 else None


def commanded_by_system(prompt: str, rng: np.random.Generator) -> list[dict[str, Any]] | None:
    """The command as a system prompt over the text alone, where the prompt is plainly a short command and a longer text; else None."""
    parts = _command_and_text(prompt.strip())
    if parts is None:
        return None
    command, text = parts
    if rng.random() < 0.5:
        command = f"{short_system(rng)} {command}"
    return [{"role": "system", "content": command}, {"role": "user", "content": text}]


def _command_and_text(prompt: str) -> tuple[str, str] | None:
    first, _, rest = prompt.partition("\n")
    if len(first) < COMMAND_CHARS and len(rest) > 2 * len(first):
        return first.strip(), rest.strip()
    before, _, last = prompt.rpartition("\n")
    if len(last) < COMMAND_CHARS and len(before) > 2 * len(last):
        return last.strip(), before.strip()
    command, _, rest = prompt.partition(": ")
    if len(command) < COLON_CHARS and "\n" not in command and len(rest) >= LEAST_TEXT:
        return f"{command}:", rest.strip()
    return None
