"""Derives a request's importance from its own words (H-MAS E.5). Pure."""

from hmas.controller.core.slo import IMPORTANCE_MAX, IMPORTANCE_MIN
from hmas.controller.core.types import DEFAULT_IMPORTANCE

_URGENT = (
    "urgent",
    "asap",
    "as soon as possible",
    "immediately",
    "emergency",
    "right now",
    "critical incident",
    "time-sensitive",
    "outage",
)
_PATIENT = ("no rush", "no hurry", "take your time", "whenever you", "just for fun", "just testing", "this is a test", "background job")
_URGENCY_STEP = 0.15
_TOOLS_STEP = 0.05


def importance_of(text: str, *, has_tools: bool) -> float:
    """Returns the importance, 0.5 to 1.0 (E.5), from the urgency in the prompt and from whether a program waits for the answer.

    It moves targets by at most a fifth (Eq. 14), so a client that exaggerates gains little.
    """
    text = text.lower()
    value = DEFAULT_IMPORTANCE
    value += _URGENCY_STEP * any(word in text for word in _URGENT)
    value -= _URGENCY_STEP * any(word in text for word in _PATIENT)
    value += _TOOLS_STEP * has_tools
    return min(IMPORTANCE_MAX, max(IMPORTANCE_MIN, round(value, 4)))
