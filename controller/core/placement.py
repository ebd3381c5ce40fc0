"""What the scheduler and the routers agree on: scheduling and routing know each other through these types alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hmas.controller.core.types import Estimates, Request


class Routable(Protocol):
    """What a router may look at of a request that has to go somewhere."""

    @property
    def request(self) -> Request:
        """The request itself."""
        ...

    @property
    def estimates(self) -> Estimates:
        """What is believed about it."""
        ...


class InstanceState(Protocol):
    """The gateway's live account of one engine instance, as routers see it: they read, never write."""

    @property
    def name(self) -> str:
        """The instance's name."""
        ...

    @property
    def n_run(self) -> int:
        """Window in force: requests that may be in flight, 1 or more."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        ...

    @property
    def in_flight_tokens(self) -> int:
        """Their prompts plus the output expected of them when they were sent."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of those without a first token yet."""
        ...

    @property
    def awaiting(self) -> int:
        """Requests with a stream that were sent and have no first token yet."""
        ...

    @property
    def kv_committed(self) -> float:
        """Share of the KV fence taken, 0 to 1; 0 without a fence."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A router's decision: the instance's name and why, in words short enough for a log line."""

    instance: str
    reason: str


class Router(Protocol):
    """Picks the instance of a request."""

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:
        """The instance for `entry`, or None to let it wait.

        Args:
            entry: The request that would go next.
            instances: Those that may take it now: healthy, a slot free, the fence lets it in, the model is served. In the
                order of the configuration, never more than exist, possibly empty.
        """
        ...
