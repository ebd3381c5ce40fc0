"""Variants of training rows, drawn anew every epoch: what the gateway, clients and people do to prompts. Pure."""

import re

import msgspec
import numpy as np

from agents.perception.training.data import Row
from controller.core.types import TaskType

DROP_TEXT = 0.04
"""Share of rows shown without their text, so that the model can answer from features alone."""
_ROLE = re.compile(r"(?:^|\n)(?:User|Assistant|Customer|Agent|Human|AI|Bot|Support)\s*: ?")
_SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful, honest assistant. Answer as well as you can.",
    "You are ChatGPT, a large language model.",
    "Answer the user's request. Be brief.",
    "Du bist ein hilfreicher Assistent.",
    "你是一个有用的助手。",
)
_CHAT = ("Hi!", "thanks", "ok great", "Sure! Here it is.", "Of course. What else can I do for you?", "Hello! How can I help you today?")


def vary(row: Row, rng: np.random.Generator) -> Row:
    """The row as another client might have sent it; its label stays true."""
    prompt, turns, tools = row.prompt, row.turns, row.has_tools
    draw = rng.random()
    if row.task is TaskType.DIALOGUE and row.prompt.count("\nAssistant:") >= 1:
        if draw < 0.4:
            # Chat messages come without names: the gateway joins their texts line by line.
            texts = [text for text in _ROLE.split(row.prompt) if text.strip()]
            prompt, turns = "\n".join(texts), len(texts)
        elif draw < 0.5:
            turns = prompt.count("\nAssistant:") + prompt.count("User:")
        tools = tools or rng.random() < 0.3
    elif draw < 0.06:
        prompt, turns = f"{_SYSTEM[int(rng.integers(len(_SYSTEM)))]}\n{prompt}", 2
    elif draw < 0.08:
        first, second = rng.integers(len(_CHAT), size=2)
        prompt, turns = f"{_CHAT[int(first)]}\n{_CHAT[int(second)]}\n{prompt}", 3
    elif draw < 0.13 and "\n" in prompt:
        prompt = _swap(prompt)
    elif draw < 0.17:
        tools = True
    elif draw < 0.20:
        turns = int(rng.integers(0, 2))
    if draw > 0.97:
        prompt = prompt.lower()
    elif draw > 0.94:
        prompt = re.sub(r"\s+", " ", prompt)
    return msgspec.structs.replace(
        row, prompt=prompt, turns=turns, has_tools=tools, prompt_chars=max(row.prompt_chars + len(prompt) - len(row.prompt), len(prompt))
    )


def _swap(prompt: str) -> str:
    """Command and text change places where one short line opens or ends the prompt."""
    first, _, rest = prompt.partition("\n")
    if len(first) < 160 and len(rest) > 2 * len(first):
        return f"{rest.strip()}\n\n{first.rstrip(':')}"
    before, _, last = prompt.rstrip().rpartition("\n")
    if len(last) < 160 and len(before) > 2 * len(last):
        return f"{last}\n\n{before.strip()}"
    return prompt
