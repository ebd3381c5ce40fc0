"""The length that a prompt itself asks for: "no shorter than 2000 words", "in three sentences". Pure."""

import re

TOKENS_PER_WORD = 1.35

_DEMAND = re.compile(
    r"(no (?:shorter|fewer|less) than|at least|more than|less than|fewer than|under|at most|no more than|within|up to)?"
    r" ?\b(\d[\d,]{0,6}|one|two|three|four|five|six|ten)[ -](word|sentence|paragraph|page)s?\b"
)
_TOKENS_PER = {"word": TOKENS_PER_WORD, "sentence": 25.0, "paragraph": 110.0, "page": 650.0}
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
_UPPER = frozenset(["less than", "fewer than", "under", "at most", "no more than", "within", "up to"])
_DEMAND_LIMIT = 32_768.0


def demanded_tokens(text: str) -> float:
    """Length that the prompt itself asks for ("no shorter than 2000 words", "in three sentences"), in tokens; 0 where it asks for none.

    Of several demands the largest counts. An upper limit is taken at four fifths.
    """
    largest = 0.0
    for quantifier, count, unit in _DEMAND.findall(text.lower()):
        number = _COUNTS.get(count) or int(count.replace(",", ""))
        tokens = number * _TOKENS_PER[unit] * (0.8 if quantifier in _UPPER else 1.0)
        largest = max(largest, tokens)
    return min(largest, _DEMAND_LIMIT)
