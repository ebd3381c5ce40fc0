"""Variants of training rows, drawn anew every epoch: what people do to the texts of prompts. Pure.

In which body a client sends them is `hmas.agents.perception.training.clients`.
"""

import re

import msgspec
import numpy as np

from hmas.agents.perception.training.data import Row

DROP_TEXT = 0.04
"""Share of rows shown without their texts, so that the model can answer from sizes alone."""


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


def _swap(prompt: str) -> str:
    """Command and text change places where one short line opens or ends the prompt."""
    first, _, rest = prompt.partition("\n")
    if len(first) < 160 and len(rest) > 2 * len(first):
        return f"{rest.strip()}\n\n{first.rstrip(':')}"
    before, _, last = prompt.rstrip().rpartition("\n")
    if len(last) < 160 and len(before) > 2 * len(last):
        return f"{last}\n\n{before.strip()}"
    return prompt
