"""The project's own prompts: every task type in many phrasings, languages and surroundings, the same for the same seed. Pure.

Thin classes get most of their variety from here, and every class the phrasings that the collected templates lack. Half of the commands
are put around texts of the training rows, so that no text by itself tells the class: the passage under a question may just as well be
summarised.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hmas.agents.perception.reading import TASKS
from hmas.agents.perception.training.data import GENERATED, Row
from hmas.controller.core.types import TaskType
from hmas_lab.training.grammar import own_grammar

OTHER_LANGUAGES = 0.09
BORROWED = 0.5
"""Share of prompts whose material is a text of the training rows."""
WEIGHTS: Mapping[TaskType, float] = {
    TaskType.LETTER_DRAFTING: 1.2,
    TaskType.ESSAY_GENERATION: 1.1,
    TaskType.PARAPHRASING: 1.2,
    TaskType.TRANSLATION: 1.2,
    TaskType.LONG_FORM_GENERATION: 1.6,
    TaskType.INSTRUCTION_FOLLOWING: 1.3,
    TaskType.RESEARCH_AND_COMMUNICATION: 2.6,
    TaskType.SUMMARIZATION: 1.4,
    TaskType.CODE_GENERATION: 1.5,
    TaskType.MATH_REASONING: 1.4,
}
"""How often a task is drawn, 1 where it is not named."""

TOPICS = ("issue", "concept", "res_topic", "res_factor", "res_outcome", "res_method")
THINGS = ("lon_about", "fol_about", "product", "field", "food")
"""Rules of the grammar that phrases of the rows are mixed into, mostly and partly."""
SUBJECTS = "ex_one", 350
"""The rule of what experts ask about, and how many phrases of the rows it gets: about as many as it has of its own."""
RENEWED = 200
"""Prompts after which other words and phrases are drawn."""

_NAMES = ("User", "Assistant", "Kim", "Tom", "Lena", "Ravi", "Customer", "Agent", "M", "W", "Mia", "Pavel", "A", "B", "Joe", "Speaker 1")
_OPENINGS = (
    "You are a helpful assistant.\n",
    "You are a helpful assistant.\n\n",
    "Hi, ",
    "Hello! ",
    "hey, ",
    "Please ",
    "Hi there. ",
    "### Instruction:\n",
    "[INST] ",
    "Human: ",
    "Task: ",
    "You are an AI assistant that follows instructions well. Answer truthfully.\n",
    "Good morning,\n\n",
)
_CLOSINGS = (
    " Thanks!",
    "\n\nThanks in advance.",
    " please",
    "\n",
    "\n\n### Response:",
    " [/INST]",
    "\nAssistant:",
    " asap",
    " Take your time.",
    "\n\nOutput:",
)
_QUESTION_START = re.compile(r"(?:^|\n)(?:Question|Context|Passage|Text|Article|Bio|Movie plot|\[Story\]|\[Reference Story\])\s*:\s*")
_PHRASE = re.compile(
    r"\b(?:the|an?|of|in|for|with|and|by) ((?:[a-z][a-z-]{3,} ){0,2}[a-z][a-z-]{3,})"
    r"(?= (?:of|in|and|is|was|are|were|to|for|with|that|by|on|at|has|from)\b|[,.;])"
)
_COMMON_ROWS, _RARE_ROWS = 40, 2
_SENTENCE = re.compile(r"[^.!?\n]{25,220}[.!?]")


class Material:
    """Texts of the training rows, by kind, for commands to be about."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Cuts passages, sentences and conversations out of prompts."""
        self.passages: list[str] = []
        self.sentences: list[str] = []
        self.conversations: list[str] = []
        for row in rows:
            if row.task is TaskType.DIALOGUE and row.prompt.count("\nAssistant:") >= 2:
                self.conversations.append(row.prompt.rsplit("\nAssistant:", 1)[0])
                continue
            body = _body(row)
            if len(body) > 250:
                self.passages.append(body)
            self.sentences += [text for text in _SENTENCE.findall(body)[-2:] if not text.endswith("?")]

        self.remarks = [text for row in rows if row.task is TaskType.EXTRACTION and 20 < len(text := _body(row)) < 120 and "\n" not in text]
        self.nouns, self.phrases = _lexicon(rows)

    def lexicon(self, rng: np.random.Generator) -> dict[str, list[str]]:
        """Words and phrases of the rows as further alternatives where the grammar names things: its own few must not stand for a class."""

        def some(pool: list[str], count: int) -> list[str]:
            return [pool[int(index)] for index in rng.integers(len(pool), size=count)] if pool else []

        return {
            "noun": some(self.nouns, 50),
            SUBJECTS[0]: some(self.phrases, SUBJECTS[1]),
            "chat1": some(self.remarks, 15),
            "chat2": some(self.remarks, 15),
            **{name: some(self.phrases, 50) for name in TOPICS},
            **{name: some(self.phrases, 12) for name in THINGS},
        }

    def draw(self, rng: np.random.Generator) -> dict[str, str]:
        """Texts for the grammar's slots, each borrowed with the same chance."""
        given: dict[str, str] = {}
        if self.passages and rng.random() < BORROWED:
            text = self.passages[int(rng.integers(len(self.passages)))]
            if rng.random() < 0.4:
                text = text[: int(rng.integers(200, 1200))]
            if rng.random() < 0.08:
                # As corpora have it: lower case, marks set apart.
                text = re.sub(r"([.,!?;:()])", r" \1", text.lower())
            given["material"] = text
        if self.sentences and rng.random() < BORROWED:
            given["short_material"] = self.sentences[int(rng.integers(len(self.sentences)))].strip()
        if self.conversations and rng.random() < BORROWED:
            text = self.conversations[int(rng.integers(len(self.conversations)))]
            for role, name in zip(("User", "Assistant"), rng.choice(_NAMES, size=2, replace=False), strict=True):
                text = text.replace(f"{role}:", f"{name}:")
            given["conversation"] = text
        return given


def generate(count: int, seed: int, material: Material | None = None) -> list[Row]:
    """`count` prompts; equal ones are left out, so a few less."""
    grammar = own_grammar()
    rng = np.random.default_rng(seed)
    material = material or Material(())
    weights = np.array([WEIGHTS.get(task, 1.0) for task in TASKS])
    weights /= weights.sum()
    seen: dict[str, Row] = {}
    for number in range(count):
        if number % RENEWED == 0:
            grammar = own_grammar().extended(material.lexicon(rng))
        task = TASKS[int(rng.choice(len(TASKS), p=weights))]
        rule = f"xx_{task.value}" if rng.random() < OTHER_LANGUAGES else task.value
        text = _roughen(grammar.expand(rule, rng, material.draw(rng)).strip(), rng)
        text = _surround(text, rng)
        turns = int(rng.choice([0, 1, 1, 1, 2]))
        seen.setdefault(
            text,
            Row(
                prompt=text,
                task=task,
                source=GENERATED,
                rule=f"{GENERATED} {rule}",
                licence="Apache-2.0",
                prompt_chars=len(text),
                has_tools=bool(rng.random() < (0.25 if task is TaskType.DIALOGUE else 0.06)),
                turns=turns,
                images=int(rng.random() < 0.03),
            ),
        )
    return list(seen.values())


def _body(row: Row) -> str:
    """The text that a command is about, without the command: a borrowed one must not give two orders. Empty where that cannot be told."""
    if row.task is TaskType.MATH_REASONING:
        return row.prompt if len(row.prompt) < 600 else ""
    if row.task is TaskType.SUMMARIZATION:
        return row.prompt.partition("\n\n")[2].removeprefix("Article: ")
    if row.task is TaskType.EXTRACTION and len(row.prompt) < 400:
        return re.split(r":\s|\n", row.prompt, maxsplit=1)[-1].strip()
    parts = _QUESTION_START.split(row.prompt)
    return parts[-1].partition("\nQuestion:")[0].strip() if len(parts) > 1 else ""


def _lexicon(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Words that some rows have but few, and noun phrases as far as they can be told without a parser; both in a fixed order."""
    spread: Counter[str] = Counter()
    phrases: set[str] = set()
    for row in rows:
        text = row.prompt[:1500]
        spread.update(set(re.findall(r"(?<![\w-])[a-z]{4,11}(?![\w-])", text)))
        phrases.update(_PHRASE.findall(text))
    nouns = {word for word, count in spread.items() if _RARE_ROWS <= count <= _COMMON_ROWS and not word.endswith(("ed", "ly", "ing"))}
    return sorted(nouns), sorted(phrase for phrase in phrases if any(spread[word] <= _COMMON_ROWS for word in phrase.split()))


def _surround(text: str, rng: np.random.Generator) -> str:
    """A greeting, a system prompt or a chat marker before or after, as clients put them."""
    if rng.random() < 0.14:
        opening = _OPENINGS[int(rng.integers(len(_OPENINGS)))]
        text = opening + (text[:1].lower() + text[1:] if opening.endswith(", ") or opening == "Please " else text)
    if rng.random() < 0.08:
        text += _CLOSINGS[int(rng.integers(len(_CLOSINGS)))]
    return text


def _roughen(text: str, rng: np.random.Generator) -> str:
    """What hurried people do: lower case, no full stop, a letter too few, two swapped."""
    draw = rng.random()
    if draw < 0.10:
        return text[:1].lower() + text[1:]
    if draw < 0.13:
        return text.lower()
    if draw < 0.16:
        return text.rstrip(".?!:")
    if draw < 0.20 and len(text) > 20:
        at = int(rng.integers(1, min(len(text) - 2, 120)))
        if text[at : at + 2].isalpha():
            return text[:at] + text[at + 1] + text[at] + text[at + 2 :] if draw < 0.18 else text[:at] + text[at + 1 :]
    return text
