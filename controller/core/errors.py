"""One error root (`HmasError`, on the lowest floor), one child per subsystem."""

from engines.errors import HmasError


class ConfigError(HmasError):
    """A configuration file or setting that cannot be used; names the file, the line and what is allowed."""


class OverrideError(HmasError):
    """An override document that cannot be applied; names the JSON path."""


class BusError(HmasError):
    """The message bus is not there or answers what it should not."""


class MessageError(BusError):
    """A bus payload that cannot be decoded: malformed, of an unknown type or of an unknown version."""


class PolicyError(HmasError):
    """An unknown policy or a hint out of its range."""


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
