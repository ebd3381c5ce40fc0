"""One error root (`HmasError`, on the lowest floor), one child per subsystem."""

from hmas.engines.errors import HmasError


class ConfigError(HmasError):
    """A configuration file or setting that cannot be used; names the file, the line and what is allowed."""


class OverrideError(HmasError):
    """An override document that cannot be applied; names the JSON path."""


SHOWN_CHARS = 80
"""A value that is quoted in a message is cut to this many characters."""


class BodyError(HmasError):
    """A field of a request's JSON body that cannot be used.

    Attributes:
        field: The field's name, with the place in a list where it is in one: `messages[3].content`.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        """Takes the field, what it holds and what it may hold; the message names all three."""
        shown = repr(value)
        if len(shown) > SHOWN_CHARS:
            shown = shown[: SHOWN_CHARS - 3] + "..."
        super().__init__(f"{field} is {shown}; allowed: {allowed}")
        self.field = field


class BusError(HmasError):
    """The message bus is not there or answers what it should not."""


class MessageError(BusError):
    """A bus payload that cannot be decoded: malformed, of an unknown type or of an unknown version."""


class PolicyError(HmasError):
    """An unknown policy or a parameter out of its range."""


class SchedulingError(HmasError):
    """A call on the scheduler that its state does not allow, such as finishing a request it never had."""


class TraceError(HmasError):
    """A workload file with unusable rows; names the row and the field."""


class ModelError(HmasError):
    """A learned model that cannot be loaded or trained."""


class AdminError(HmasError):
    """The admin API refused, or is not there."""


class AdminUnreachable(AdminError):
    """Nothing answers at the admin API's address, or not in time."""


__all__ = [
    "AdminError",
    "AdminUnreachable",
    "BodyError",
    "BusError",
    "ConfigError",
    "HmasError",
    "MessageError",
    "ModelError",
    "OverrideError",
    "PolicyError",
    "SchedulingError",
    "TraceError",
]
