"""The body of a POST: its format, the checks of it, and the document that answers it. Pure.

    {"knobs": {"n_run": 8}}

This module checks everything that does not depend on the engine, and reports all faults of a body at once. What depends on the engine
(whether it has a knob, and the knob's range) is checked by `control` before anything is set.
"""

import json
from dataclasses import dataclass
from typing import Any

MAX_BODY_BYTES = 512 * 1024
MAX_NUMBER = 2**31 - 1
MAX_FAULTS = 10
KNOBS = ("n_run", "token_budget")


class OrderError(ValueError):
    """A body that is not a valid order; `refused` names every wrong field with the reason."""

    def __init__(self, refused: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in refused.items()))
        self.refused = refused


@dataclass(frozen=True)
class Order:
    """One order: knobs by name."""

    knobs: dict[str, int]


def answer(*, applied: dict[str, int] | None = None, refused: dict[str, str] | None = None) -> dict[str, Any]:
    """The document that answers an order."""
    return {"applied": applied or {}, "refused": refused or {}}


def parse_order(body: bytes) -> Order:
    """Reads the order in a POST's body.

    Raises:
        OrderError: Names what is wrong and what is allowed; no part of such a body may be used.
    """
    if len(body) > MAX_BODY_BYTES:
        raise OrderError({"body": f"more than {MAX_BODY_BYTES} bytes; allowed: that at most"})
    document = _json(body)
    if not isinstance(document, dict):
        raise OrderError({"body": f"{_shown(document)}; allowed: a JSON object with knobs"})
    faults = {_name(key): "no such field; allowed: knobs" for key in document if key != "knobs"}
    knobs = _numbers(document.get("knobs", {}), faults)
    for name in [name for name in knobs if name not in KNOBS]:
        faults[f"knobs.{_name(name)}"] = f"no such knob; allowed: {', '.join(KNOBS)}"
    if not faults and not knobs:
        faults["body"] = "says nothing to do; allowed: knobs, not empty"
    if faults:
        raise OrderError(dict(list(faults.items())[:MAX_FAULTS]))
    return Order(knobs)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except OrderError:
        raise
    # ValueError covers bad UTF-8, bad JSON and numbers of too many digits.
    except (ValueError, RecursionError) as error:
        raise OrderError({"body": f"no JSON ({type(error).__name__}: {str(error)[:100]}); allowed: a JSON object"}) from None


def _no_constant(text: str) -> Any:
    raise OrderError({"body": f"{text} is no JSON number; allowed: whole numbers"})


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _value in pairs]
        twice = next(name for name in document if names.count(name) > 1)
        raise OrderError({_name(twice): "given twice; allowed: once"})
    return document


def _numbers(value: Any, faults: dict[str, str]) -> dict[str, int]:
    if not isinstance(value, dict):
        faults["knobs"] = f"{_shown(value)}; allowed: an object of whole numbers by name"
        return {}
    good = {}
    for name, number in value.items():
        # In Python a JSON true is an int.
        if type(number) is not int:
            faults[f"knobs.{_name(name)}"] = f"{_shown(number)}; allowed: a whole number"
        elif not 0 <= number <= MAX_NUMBER:
            faults[f"knobs.{_name(name)}"] = f"{_shown(number)}; allowed: 0 to {MAX_NUMBER}"
        else:
            good[name] = number
    return good


def _shown(value: Any) -> str:
    """A value for an error message, cut to a short length; a number of a million digits is not written out."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "a number of more than 18 digits"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _name(name: str) -> str:
    return name if len(name) <= 60 else name[:60] + "..."
