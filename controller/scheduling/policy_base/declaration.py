"""What the class of a policy declares: the signals that it orders by, and that a user's own class may derive from it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

T = TypeVar("T")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr  # noqa: PLC0414  policies import it from here
else:

    def mypyc_attr(**_: Any) -> Callable[[T], T]:
        """Permits interpreted subclasses of a compiled class. It concerns the compiler alone, so its package is no dependency."""
        return lambda decorated: decorated


class Signal(msgspec.Struct, frozen=True):
    """One signal that a policy reads, described for operators.

    Attributes:
        name: The name of the signal.
        freshness: When the value was obtained.
        fallback: What counts if the value is unknown.
    """

    name: str
    freshness: str
    fallback: str


_ANSWERS = "the last agent answer before dispatch; a waiting request is re-keyed when one comes"
_PRIOR = "the history of its tenant and prompt length until then"

ARRIVAL = Signal("arrival", "fixed at intake", "none needed: every request has it")
PRIORITY = Signal("client priority", "fixed at intake, clamped to what the tenant may claim", "0, the ordinary one")
TENANT = Signal("tenant", "fixed at intake, from the API key", "none needed: every request has it")
SESSION = Signal("session", "fixed at intake, as the client names it", "the tenant stands for a session")
WEIGHT = Signal("tenant weight", "configuration and overrides, from the next dispatch on", "1")
PROMPT_LENGTH = Signal("prompt length", "fixed at intake, estimated from the text", "none needed: every request has it")
TARGETS = Signal("SLO targets", "declared at intake, else " + _ANSWERS, "the targets of its task type, else of `unknown`")
OUTPUT_LENGTH = Signal("predicted output length", _ANSWERS, _PRIOR)
FIRST_TOKEN_TIME = Signal("predicted service time to the first token", _ANSWERS, _PRIOR)
SERVICE_TIME = Signal("predicted service time T_tot", _ANSWERS, _PRIOR)
SERVED_TOKENS = Signal("output tokens of requests that have ended", "at each end", "the predicted length while a request runs")
RETRIED = Signal("a try that failed", "when the request comes back", "counts as not tried yet")
