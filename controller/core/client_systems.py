"""System prompts for many trades, built from sentences: one set for training, and one without common sentences for evaluation. Pure."""

import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol

TEXTS = "client_texts.json"
"""The sentences, in the folder of this module: a set is `system` and `policies` under `training` or `judging`; `bodies` are other parts."""


class Draws(Protocol):
    """A source of randomness, such as `random.Random` or `numpy.random.Generator`; core itself has none."""

    def random(self) -> float:
        """A random number from 0 to 1, 1 excluded."""


class Bank(NamedTuple):
    """Sentences of system prompts: roles of the assistant, rules, forms of the answer, and pasted documents."""

    roles: tuple[str, ...]
    rules: tuple[str, ...]
    forms: tuple[str, ...]
    documents: tuple[str, ...]


class Policies(NamedTuple):
    """Sentences of company policies: templates, and the values for their fields `{who}`, `{topic}`, `{what}`, `{when}` and `{number}`."""

    templates: tuple[str, ...]
    who: tuple[str, ...]
    topics: tuple[str, ...]
    what: tuple[str, ...]
    when: tuple[str, ...]


def texts() -> Any:
    """The content of the file."""
    return json.loads(Path(__file__).with_name(TEXTS).read_bytes())


def _read(name: str) -> tuple[Bank, Policies]:
    found = texts()[name]
    return (
        Bank(**{field: tuple(texts) for field, texts in found["system"].items()}),
        Policies(**{field: tuple(texts) for field, texts in found["policies"].items()}),
    )


TRAINING, JUDGING = _read("training"), _read("judging")


def short_system(rng: Draws, *, holdout: bool = False) -> str:
    """A system prompt of one line: a role, often with one or more rules and sometimes a form for the answer.

    Args:
        rng: The source of randomness.
        holdout: True uses the sentences that no model was trained on.
    """
    bank, _ = JUDGING if holdout else TRAINING
    sentences = [pick(bank.roles, rng)]
    while len(sentences) < 4 and rng.random() < 0.45:
        sentences.append(pick(bank.rules, rng))
    if rng.random() < 0.25:
        sentences.append(pick(bank.forms, rng))
    return " ".join(sentences)


def long_system(rng: Draws, chars: int, *, holdout: bool = False) -> str:
    """A system prompt of about `chars` characters: a role and rules, then a policy in sections or pasted documents.

    One token has about 4.5 characters, so 9,000 characters are 2,000 tokens.
    """
    bank, policies = JUDGING if holdout else TRAINING
    separator = pick(("\n", "\n\n", " ", "\n- "), rng)
    pasted = rng.random() < 0.3
    parts = [pick(bank.roles, rng)]
    if pasted:
        parts.append(pick(("Use the documents below where they help.", "Context:", "Here is what is known:"), rng))
    size = sum(map(len, parts))
    while size < chars:
        draw = rng.random()
        if pasted and draw < 0.6:
            part = f"[{len(parts) - 1}] {pick(bank.documents, rng)} {_policy(policies, rng)}"
        elif draw < 0.15:
            part = pick(bank.rules, rng)
        elif draw < 0.2:
            part = f"## {pick(policies.topics, rng).capitalize()}"
        else:
            part = _policy(policies, rng)
        parts.append(part)
        size += len(part) + len(separator)
    if rng.random() < 0.4:
        parts.append(pick(bank.forms, rng))
    return separator.join(parts)


def pick(items: tuple[str, ...], rng: Draws) -> str:
    """One of `items`, all with equal probability."""
    return items[int(rng.random() * len(items))]


def _policy(policies: Policies, rng: Draws) -> str:
    """One sentence from a random template."""
    text = pick(policies.templates, rng).format(
        who=pick(policies.who, rng),
        topic=pick(policies.topics, rng),
        what=pick(policies.what, rng),
        when=pick(policies.when, rng),
        number=2 + int(rng.random() * 89),
    )
    return text[0].upper() + text[1:]
