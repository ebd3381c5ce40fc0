"""Reads from an operator's words what code can read: numbers, tenants, and names that no tenant has. Pure.

A model's answer may only hold what the words name: these functions say what that is. They find too much rather than too little, because
what they do not find is refused.
"""

import difflib
import itertools
import re
from collections.abc import Collection, Sequence
from functools import partial

_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_UNITS = {name: number for number, name in enumerate(_SMALL.split())}
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_SCALES = {"dozen": 12.0, "hundred": 100.0, "thousand": 1e3, "k": 1e3, "million": 1e6, "m": 1e6}
_FRACTIONS = {"half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4, "fifth": 1 / 5, "tenth": 1 / 10}
_MULTIPLES = {r"doubl|twice": 2.0, r"tripl|thrice": 3.0, r"quadrupl": 4.0, r"\bhalv|\bhalf": 0.5}
_EVERYBODY = re.compile(r"\b(all|every|everyone|everybody|each|both|others?|rest|else|tenants)\b")
_CLOSE = 0.75
"""Similarity from which a word counts as a tenant's name with a mistake in it, as difflib measures it."""


def digits(words: str) -> str:
    """The words in lower case, with every spelt number in digits: `twenty-five hundred` becomes `2500`."""
    text = words.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = re.sub(
        rf"\b({'|'.join(_TENS)})(?:[ -]({'|'.join(list(_UNITS)[1:10])}))?\b",
        lambda found: str(_TENS[found[1]] + _UNITS.get(found[2] or "zero", 0)),
        text,
    )
    text = re.sub(rf"\b({'|'.join(_UNITS)})\b", lambda found: str(_UNITS[found[1]]), text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"\ban? (?=dozen|hundred|thousand|million)", "1 ", text)
    for name, scale in _SCALES.items():
        # `5m` is five minutes, except where it counts tokens or requests.
        after = r"(?= (?:\w+ )?(?:tokens|requests))" if name == "m" else ""
        text = re.sub(rf"\b(\d+(?:\.\d+)?)[ -]?{name}\b{after}", partial(_scaled, scale), text)
        if name == "hundred":
            text = re.sub(r"\b(\d+00) and (\d\d?)\b", lambda found: str(int(found[1]) + int(found[2])), text)
    return text


def _scaled(scale: float, found: re.Match[str]) -> str:
    return f"{float(found[1]) * scale:.12g}"


def numbers(words: str) -> set[float]:
    """Every number in the words. A percentage is there as a fraction, too, and so are `half`, `three quarters` and the like."""
    text = digits(words)
    found = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}
    found |= {float(number) / 100 for number in re.findall(r"(\d+(?:\.\d+)?) ?(?:%|percent|per cent)", text)}
    for count, name in re.findall(rf"\b(?:(\d+) )?({'|'.join(_FRACTIONS)})s?\b", text):
        found |= {_FRACTIONS[name], _FRACTIONS[name] * float(count or 1)}
    return found


def factors(words: str) -> set[float]:
    """Every factor that the words may name: `double`, `halve`, `3 times`, `to 80 %`, `by 30 %` (0.7 and 1.3)."""
    text, plain = digits(words), numbers(words)
    found = {factor for pattern, factor in _MULTIPLES.items() if re.search(pattern, text)}
    found |= {
        float(number)
        for pair in re.findall(r"\b(\d+(?:\.\d+)?)(?: ?x\b| times| ?-?fold)|\bx ?(\d+(?:\.\d+)?)", text)
        for number in pair
        if number
    }
    parts = {number for number in plain if 0.0 < number < 1.0}
    return found | (set() if re.search(r"\bby ", text) else parts) | {1.0 + part for part in parts} | {1.0 - part for part in parts}


def is_in(value: float, allowed: Collection[float]) -> bool:
    """Whether the value is one of the numbers, but for rounding."""
    return any(abs(value - one) <= 0.002 * max(abs(one), 1e-9) for one in allowed)


def named(words: str, tenants: Collection[str]) -> tuple[set[str], set[str]]:
    """The tenants that the words name in full, and those that they may mean: by part of a name (`batch` of `batch-jobs`) or as a group."""
    tokens: list[str] = _parts(words)
    full = set()
    for tenant in sorted(tenants, key=lambda name: -len(_parts(name))):  # `team-a` is not named where `team-a-chat` stands
        parts = _parts(tenant)
        for start in range(len(tokens) - len(parts) + 1):
            if tokens[start : start + len(parts)] == parts and len("".join(parts)) > 1:
                tokens[start : start + len(parts)] = [""] * len(parts)
                full.add(tenant)
    if _EVERYBODY.search(words.lower()):
        return full, set(tenants)
    stems = {token.rstrip("s") for token in tokens if len(token) > 2}
    return full, full | {tenant for tenant in tenants if any(len(part) > 2 and part.rstrip("s") in stems for part in _parts(tenant))}


def strangers(words: str, tenants: Collection[str], known: Collection[str]) -> list[str]:
    """What looks like a tenant's name and is none: `team-z` or `team z` beside `team-a`, `bacth-jobs` beside `batch-jobs`.

    `known` are other names that may stand in the operator's words, such as models'.
    """
    heads = [_parts(tenant) for tenant in tenants]
    others = {"-".join(_parts(name)) for name in known}
    found: dict[tuple[str, ...], str] = {}
    for token in re.findall(r"[a-z0-9]+(?:[-_.][a-z0-9]+)+", _bare(words)):
        parts = _parts(token)
        close = difflib.get_close_matches(token, [tenant.lower() for tenant in tenants], n=1, cutoff=_CLOSE)
        same_series = any(len(head) > 1 and head[0] == parts[0] for head in heads)
        if (close or same_series) and not _begins(parts, heads) and "-".join(parts) not in others:
            found[tuple(parts)] = token
    tokens = re.findall(r"[a-z0-9]+", _bare(words))
    series = {head[0] for head in heads if len(head) > 1 and len(head[1]) == 1}
    for first, second in itertools.pairwise(tokens):
        if first in series and len(second) == 1 and not _begins([first, second], heads):
            found.setdefault((first, second), f"{first} {second}")
    return list(found.values())


def _begins(parts: Sequence[str], heads: Sequence[Sequence[str]]) -> bool:
    """Whether a tenant's name is, begins or ends with these parts, or is what they begin with, as in `team-a-only`."""
    size = len(parts)
    return any(parts in (list(head[:size]), list(head[-size:])) or list(parts[: len(head)]) == list(head) for head in heads)


def _bare(text: str) -> str:
    return re.sub(r"['\N{RIGHT SINGLE QUOTATION MARK}]s?\b", "", text.lower())


def _parts(text: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", _bare(text))
