"""What of a scheduler can be controlled, why the rest cannot, and how that is told: the same for every engine. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import VERSION

ACTIONS = ("reprioritize", "evict")


@dataclass(frozen=True)
class Knob:
    """One live knob: what it may be set to (`low` to `high`, multiples of `step`), its start-up value, and how it is read and written."""

    low: int
    high: int
    start: int
    read: Callable[[], int]
    write: Callable[[int], None]
    step: int = 1

    def fault(self, value: int) -> str:
        """Why it may not be set to `value`, empty where it may."""
        if not self.low <= value <= self.high:
            return f"{value}; allowed: {self.low} to {self.high}"
        if value % self.step:
            return f"{value}; allowed: multiples of the page size {self.step}, {self.low} to {self.high}"
        return ""


def sorted_out(found: Mapping[str, Knob | str]) -> tuple[dict[str, Knob], dict[str, str]]:
    """The knobs that there are, and for each of the others the reason why there is none."""
    knobs = {name: knob for name, knob in found.items() if isinstance(knob, Knob)}
    return knobs, {name: reason for name, reason in found.items() if isinstance(reason, str)}


def state_of(knobs: Mapping[str, Knob], absent: Mapping[str, str], counters: Mapping[str, int]) -> dict[str, Any]:
    """The document that a GET shows."""
    return {
        "plugin_version": VERSION,
        "knobs": {name: {"value": knob.read(), "min": knob.low, "max": knob.high, "start": knob.start} for name, knob in knobs.items()},
        "actions": [action for action in ACTIONS if action not in absent],
        "absent": dict(absent),
        "counters": dict(counters),
    }


def refusals(
    knobs: Mapping[str, Knob], absent: Mapping[str, str], wanted: Mapping[str, int], *, priorities: bool, evict: bool
) -> dict[str, str]:
    """Why an order cannot be obeyed, by field; empty where it can.

    Args:
        knobs: What there is.
        absent: Why the rest is not there, by knob or action.
        wanted: Values by knob.
        priorities: Whether the order asks for some.
        evict: Whether the order asks for it.
    """
    refused = {}
    for name, value in wanted.items():
        knob = knobs.get(name)
        if reason := absent.get(name, "no such knob") if knob is None else knob.fault(value):
            refused[f"knobs.{name}"] = reason
    if priorities and "reprioritize" in absent:
        refused["priorities"] = absent["reprioritize"]
    if evict and "evict" in absent:
        refused["evict"] = absent["evict"]
    return refused
