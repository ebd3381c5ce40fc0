"""How clients send the training rows: varied texts, in every shape, with system prompts and histories that say nothing of the task. Pure.

Some system prompts and histories do say something: a command may stand in the system prompt, a conversation in the messages.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.data import ANY_MODEL, Row, view_of_body
from hmas.controller.core.client_bodies import EXCHANGES, Shape
from hmas.controller.core.client_systems import Draws, short_system
from hmas.controller.core.request_body import CHAT
from hmas.controller.core.types import TaskType

DROP_TEXT = 0.04
"""Share of rows shown without their texts, so that the model can answer from sizes alone."""
ASKED_CHARS = 600
ANSWERED_CHARS = 700
TRAINING_OPENERS = (
    "Sure! Here it is.",
    "Of course.",
    "Hello! How can I help you today?",
    "Certainly, let me explain.",
    "Here is the result:",
    "I am sorry, I do not know that.",
    "Good question.",
    "Yes.",
    "Done. Is there anything else?",
    "Let us go through it step by step.",
    "Gern, hier ist die Antwort.",
    "好的，以下是回答。",
)
JUDGING_OPENERS = ("Here is what I found.", "Happy to assist with that.", "Below you see my reply.", "No, that does not work.", "Voilà :")
SMALL_TALK = ("Hi!", "thanks", "ok great", "hello, are you there?", "Can you help me?", "one more thing", "hm, and why?")
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


def vary(row: Row, rng: np.random.Generator) -> Row:
    """The row as somebody else might have written it; its label stays true."""
    prompt, draw = row.prompt, rng.random()
    if draw < 0.05 and "\n" in prompt:
        prompt = _swap(prompt)
    elif draw > 0.97:
        prompt = prompt.lower()
    elif draw > 0.94:
        prompt = re.sub(r"\s+", " ", prompt)
    return msgspec.structs.replace(row, prompt=prompt, prompt_chars=max(row.prompt_chars + len(prompt) - len(row.prompt), len(prompt)))


class Exchanges:
    """Draws exchanges of (user, assistant).

    Args:
        prompts: What users asked at other times; pieces of them also stand in for answers, of which the public data keep no texts.
        holdout: True takes openers of answers that no model was trained on.
    """

    def __init__(self, prompts: Sequence[str], *, holdout: bool = False) -> None:
        self._prompts = prompts
        self._openers = JUDGING_OPENERS if holdout else TRAINING_OPENERS

    def draw(self, count: int, rng: Draws) -> list[tuple[str, str]]:
        """As many exchanges, of questions drawn at random."""
        return [(self._asked(rng), self._answered(rng)) for _ in range(count)]

    def _asked(self, rng: Draws) -> str:
        if rng.random() < 0.1 or not self._prompts:
            return _pick(SMALL_TALK, rng)
        return _pick(self._prompts, rng)[:ASKED_CHARS]

    def _answered(self, rng: Draws) -> str:
        opener, draw = _pick(self._openers, rng), rng.random()
        if draw < 0.25 or not self._prompts:
            return " ".join([opener] * (1 + int(rng.random() * 12)))
        text = _pick(self._prompts, rng)
        begin = int(rng.random() * max(1, len(text) - ANSWERED_CHARS))
        piece = text[begin : begin + 1 + int(rng.random() * ANSWERED_CHARS)]
        return piece if draw < 0.5 else f"{opener}\n{piece}"


class Clients:
    """Sends rows as clients might; their prompts also make the histories."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._exchanges = Exchanges([row.prompt for row in rows])

    def view(self, row: Row, rng: np.random.Generator, *, features_only: bool = False) -> PromptView:
        """What a reader sees of the row as `sent`."""
        return self.sent(row, rng, features_only=features_only)[0]

    def sent(self, row: Row, rng: np.random.Generator, *, features_only: bool = False) -> tuple[PromptView, bool]:
        """What a reader sees of the row in a shape drawn at random; its label stays true.

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
            return view_of_body(CHAT, {"model": ANY_MODEL, "messages": messages}, share_prompts=not features_only), True
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


def _swap(prompt: str) -> str:
    """Command and text change places where one short line opens or ends the prompt."""
    first, _, rest = prompt.partition("\n")
    if len(first) < 160 and len(rest) > 2 * len(first):
        return f"{rest.strip()}\n\n{first.rstrip(':')}"
    before, _, last = prompt.rstrip().rpartition("\n")
    if len(last) < 160 and len(before) > 2 * len(last):
        return f"{last}\n\n{before.strip()}"
    return prompt


def _pick(items: Sequence[str], rng: Draws) -> str:
    return items[int(rng.random() * len(items))]
