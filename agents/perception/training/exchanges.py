"""Conversations that stand before a question: other prompts as what the user asked, and texts as what the assistant answered. Pure."""

from collections.abc import Sequence

from hmas.controller.core.client_systems import Draws

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


def _pick(items: Sequence[str], rng: Draws) -> str:
    return items[int(rng.random() * len(items))]
