"""What can be controlled in a scheduler, why the rest cannot, and how that is reported: the same for every engine. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import VERSION

PRIORITY = "priority"
"""The name under which it is reported why the engine's own queue is not ordered by the request's priority."""


@dataclass(frozen=True)
class Knob:
    """One live knob: its allowed values (`low` to `high`, multiples of `step`), its start-up value, and how to read and write it."""

    low: int
    high: int
    start: int
    read: Callable[[], int]
    write: Callable[[int], None]
    step: int = 1

    def fault(self, value: int) -> str:
        """Why the knob may not be set to `value`, empty if it may."""
        if not self.low <= value <= self.high:
            return f"{value}; allowed: {self.low} to {self.high}"
        if value % self.step:
            return f"{value}; allowed: multiples of the page size {self.step}, {self.low} to {self.high}"
        return ""


def sorted_out(found: Mapping[str, Knob | str]) -> tuple[dict[str, Knob], dict[str, str]]:
    """Splits into the available knobs, and the reason for each knob that is missing."""
    knobs = {name: knob for name, knob in found.items() if isinstance(knob, Knob)}
    return knobs, {name: reason for name, reason in found.items() if isinstance(reason, str)}


def state_of(knobs: Mapping[str, Knob], absent: Mapping[str, str], counters: Mapping[str, int]) -> dict[str, Any]:
    """The document that a GET returns."""
    return {
        "plugin_version": VERSION,
        "knobs": {
            name: {"value": knob.read(), "min": knob.low, "max": knob.high, "start": knob.start, "step": knob.step}
            for name, knob in knobs.items()
        },
        "priority": PRIORITY not in absent,
        "absent": dict(absent),
        "counters": dict(counters),
    }


def refusals(knobs: Mapping[str, Knob], absent: Mapping[str, str], wanted: Mapping[str, int]) -> dict[str, str]:
    """Why an order of values by knob cannot be carried out, by field; empty if it can. `absent` says why a knob is missing."""
    refused = {}
    for name, value in wanted.items():
        knob = knobs.get(name)
        if reason := absent.get(name, "no such knob") if knob is None else knob.fault(value):
            refused[f"knobs.{name}"] = reason
    return refused
