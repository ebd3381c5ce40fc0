"""The length that a prompt itself asks for: "no shorter than 2000 words", "in three sentences". Pure."""

import re

TOKENS_PER_WORD = 1.35

TOKENS_PER = {"word": TOKENS_PER_WORD, "sentence": 25.0, "paragraph": 110.0, "page": 650.0}
COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
UPPER = frozenset(["less than", "fewer than", "under", "at most", "no more than", "within", "up to"])
_LIMIT = 32_768.0
DEMAND = re.compile(
    r"(no (?:shorter|fewer|less) than|at least|more than|less than|fewer than|under|at most|no more than|within|up to)?"
    r" ?\b(\d[\d,]{0,6}|one|two|three|four|five|six|ten)[ -](word|sentence|paragraph|page)s?\b"
)
_BEFORE = 32
"""Characters before a unit that may hold its number and quantifier."""
_MENTIONS = 24
"""Most mentions of one unit that are examined."""


def demanded_tokens(low: str) -> float:
    """Returns the length that a prompt in lower case itself asks for ("no shorter than 2000 words", "in three sentences"), in tokens.

    0 if it asks for none. Of several demands the largest counts. An upper limit counts as four fifths. It reads only what stands before a
    unit: a text without units costs almost nothing.
    """
    largest = 0.0
    for unit, tokens in TOKENS_PER.items():
        place = low.find(unit)
        for _ in range(_MENTIONS):
            if place < 0:
                break
            # The number's last character stands just before a blank or a hyphen.
            if place > 1 and low[place - 1] in " -":
                for quantifier, count, found in DEMAND.findall(low, max(0, place - _BEFORE), place + len(unit) + 2):
                    if found == unit:
                        number = COUNTS.get(count) or int(count.replace(",", ""))
                        largest = max(largest, number * tokens * (0.8 if quantifier in UPPER else 1.0))
            place = low.find(unit, place + len(unit))
    return min(largest, _LIMIT)
