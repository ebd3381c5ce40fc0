"""The common base of all errors (`HmasError`, defined in the engines package), and one subclass per subsystem."""

import reprlib
from itertools import islice
from typing import Any

from hmas.engines import errors as engine_errors

HmasError = engine_errors.HmasError


class ConfigError(HmasError):
    """A configuration file or setting that cannot be used; the message names the file, the line and the allowed values."""


class OverrideError(HmasError):
    """An override document that cannot be applied; the message names the JSON path."""


SHOWN_CHARS = 80
"""Most characters of a value quoted in a message; longer values are cut."""


class _ShortRepr(reprlib.Repr):
    """Like `repr`, at the cost of what is shown: a client's value may have millions of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 2 * SHOWN_CHARS

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        # The base class sorts all keys, whatever it shows of them.
        return super().repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)


_SHORT = _ShortRepr()


class BodyError(HmasError):
    """A field of a request's JSON body that cannot be used.

    Attributes:
        field: The field's name, with its index if it is in a list: `messages[3].content`.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        """Takes the field, its value and the allowed values; the message names all three."""
        shown, note = _SHORT.repr(value), ""
        if isinstance(value, float) and value.is_integer() and abs(value) >= 1 << 63:
            # So orjson reads whole numbers beyond 64 bits.
            shown, note = str(int(value)), " (beyond 64 bits)"
        if len(shown) > SHOWN_CHARS:
            shown = shown[: SHOWN_CHARS - 3] + "..."
        super().__init__(f"{field} is {shown}{note}; allowed: {allowed}")
        self.field = field


class TooManyError(BodyError):
    """A field of a request's JSON body that has more entries than are allowed."""

    def __init__(self, field: str, count: int, limit: int, what: str = "entries") -> None:
        """Takes the field, the number of its entries, and the allowed number; `what`: what the entries are."""
        HmasError.__init__(self, f"{field} has {count} {what}; allowed: at most {limit}")
        self.field = field


class BusError(HmasError):
    """The message bus is not available or gives an invalid answer."""


class MessageError(BusError):
    """A bus payload that cannot be decoded: malformed, of an unknown type or of an unknown version."""


class PolicyError(HmasError):
    """An unknown policy or a parameter out of its range."""


class SchedulingError(HmasError):
    """A call on the scheduler that its state does not allow, such as finishing an unknown request."""


class TraceError(HmasError):
    """A workload file with unusable rows; the message names the row and the field."""


class ModelError(HmasError):
    """A learned model that cannot be loaded or trained."""


class AdminError(HmasError):
    """The admin API refused the call, with this HTTP status, or is not available (0)."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class AdminUnreachable(AdminError):
    """There is no answer at the admin API's address, or not in time."""
