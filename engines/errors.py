"""The base class of all errors of H-MAS, and the errors of the engines package."""


class HmasError(Exception):
    """Base class of every error that H-MAS raises on purpose. Its text names the field, the value and what is allowed."""


class EngineError(HmasError):
    """An engine cannot do what it was asked to do."""


class EngineUnavailable(EngineError):
    """No answer came from the engine: refused, reset, or timed out before the response's head."""


class ConnectionBroken(EngineUnavailable):
    """The connection to an engine ended before the answer did, or the received bytes are not HTTP."""


class AnswerBroken(ConnectionBroken):
    """The connection ended after the head of the answer. The engine may be well: some engines end what they cannot serve so."""


class StaleConnection(EngineUnavailable):
    """A kept connection ended before any byte of the answer. The engine had probably closed it before the request arrived."""


class EngineSilent(EngineUnavailable):
    """The engine has not begun or not continued its answer for too long. It may be well: its health check tells."""


class EngineProtocolError(EngineError):
    """The engine's answer does not follow the protocol: HTML, broken JSON, half an SSE event."""


class AnswerTooLarge(EngineProtocolError):
    """The answer is larger than the gateway holds; another engine's would be as large."""


class ProfileError(EngineError):
    """A performance profile cannot be used."""
