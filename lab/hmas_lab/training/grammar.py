r"""Combinatorial grammars: text files of rules, expanded at random from a seeded generator. Pure.

A file holds rules; `@name` opens one and every following line is one of its alternatives, `\n` in it a line break, lines that start
with `;` are comments. In an alternative

    {name}       is an alternative of that rule,
    {^name}      the same with its first letter in upper case,
    {a|b|}       one of the texts between the bars,
    {#3-90}      a whole number of that range,

and ⟨ ⟩ stand for braces that belong to the text. A rule in two files has the alternatives of both.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

import numpy as np

from hmas.controller.core.errors import ModelError

_SLOT = re.compile(r"\{([^{}]*)\}")
_ARTICLE, _ARTICLE_MARK = "a|an", "\x01"
_ARTICLE_PLACE = re.compile(_ARTICLE_MARK + r" ?(\S?)")
"""The slot {a|an} waits for the letter that follows it."""
_ROUNDS = 40
"""Depth of nesting at which a grammar is taken to be endless."""


class Grammar:
    """Rules by name; see the module for their form."""

    def __init__(self, rules: Mapping[str, list[str]]) -> None:
        """Takes the rules.

        Raises:
            ModelError: A rule without alternatives, or a slot whose rule does not exist.
        """
        self._rules = dict(rules)
        for name, alternatives in self._rules.items():
            if not alternatives:
                raise ModelError(f"grammar: rule {name} has no alternatives")
            for text in alternatives:
                for slot in _SLOT.findall(text):
                    if "|" not in slot and slot[:1] != "#" and slot.lstrip("^") not in self._rules:
                        raise ModelError(f"grammar: rule {name} uses {{{slot}}}, which no file defines")

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def extended(self, more: Mapping[str, list[str]]) -> "Grammar":
        """This grammar with further alternatives of its rules, taken literally: braces in them stay."""
        escaped = {name: [text.replace("{", "⟨").replace("}", "⟩") for text in texts] for name, texts in more.items()}
        return Grammar({**self._rules, **{name: [*self._rules.get(name, ()), *texts] for name, texts in escaped.items()}})

    def expand(self, name: str, rng: np.random.Generator, given: Mapping[str, str] | None = None) -> str:
        """One text of the rule `name`.

        Args:
            name: The rule.
            rng: Where the choices come from.
            given: Texts for slots that are decided already, taken literally: braces in them stay.
        """
        given = given or {}
        # Given texts may hold braces; they go in last, behind markers that no grammar contains.
        marks: dict[str, str] = {}

        def fill(match: re.Match[str]) -> str:
            slot = match.group(1)
            if slot == _ARTICLE:
                return _ARTICLE_MARK
            if "|" in slot:
                options = slot.split("|")
                return options[int(rng.integers(len(options)))]
            if slot[:1] == "#":
                low, high = slot[1:].split("-")
                return str(int(rng.integers(int(low), int(high) + 1)))
            key = slot.lstrip("^")
            if key in given:
                mark = f"\x00{len(marks)}\x00"
                marks[mark] = _raise(given[key]) if slot[0] == "^" else given[key]
                return mark
            alternatives = self._rules[key]
            chosen = alternatives[int(rng.integers(len(alternatives)))]
            # A capital that is asked for is passed on where the text opens with a slot itself.
            return _raise(chosen) if slot[0] == "^" else chosen

        text = "{" + name + "}"
        for _ in range(_ROUNDS):
            text, count = _SLOT.subn(fill, text)
            if not count:
                break
        else:
            raise ModelError(f"grammar: rule {name} does not end within {_ROUNDS} rounds")
        text = _ARTICLE_PLACE.sub(lambda match: f"a{'n' if match.group(1).lower() in 'aeiou' else ''} {match.group(1)}", text)
        text = text.replace("⟨", "{").replace("⟩", "}")
        for mark, content in marks.items():
            text = text.replace(mark, content)
        return text


def _raise(text: str) -> str:
    if text[:1] == "{":
        inner = _SLOT.match(text)
        if inner and "|" not in inner.group(1) and inner.group(1)[:1] not in {"#", "^"}:
            return "{^" + text[1:]
        return text
    return text[:1].upper() + text[1:]


def parse(lines: Iterable[str], rules: dict[str, list[str]]) -> None:
    """Adds the rules of one file to `rules`.

    Raises:
        ModelError: An alternative before the first rule.
    """
    current: list[str] | None = None
    for raw in lines:
        line = raw.rstrip("\n")
        if not line.strip() or line.startswith(";"):
            continue
        if line.startswith("@"):
            current = rules.setdefault(line[1:].strip(), [])
        elif current is None:
            raise ModelError(f"grammar: {line[:60]!r} stands before the first @rule")
        else:
            current.append(line.replace("\\r", "\r").replace("\\n", "\n"))


@cache
def own_grammar() -> Grammar:
    """The project's grammar: every `.grammar` file beside this module."""
    rules: dict[str, list[str]] = {}
    folder = files("hmas_lab.training").joinpath("grammar")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".grammar"):
            parse(file.read_text(encoding="utf-8").splitlines(), rules)
    return Grammar(rules)
