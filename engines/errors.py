"""The root of every error of H-MAS, and the errors of this floor."""


class HmasError(Exception):
    """Root of every error that H-MAS raises on purpose. Its text names the field, the value and what is allowed."""


class EngineError(HmasError):
    """An engine cannot do what was asked of it."""


class EngineUnavailable(EngineError):
    """No answer came from the engine: refused, reset, or timed out before the response's head."""


class EngineProtocolError(EngineError):
    """The engine answered something that is not the protocol: HTML, broken JSON, half an SSE event."""


class ProfileError(EngineError):
    """A performance profile that cannot be used."""
