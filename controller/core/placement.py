"""The interface between scheduler and routers: scheduling and routing depend on each other only through these types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hmas.controller.core.types import Estimates, Request


class Routable(Protocol):
    """The part of a request that a router may read."""

    @property
    def request(self) -> Request:
        """The request itself."""

    @property
    def estimates(self) -> Estimates:
        """The current estimates of the request."""


class InstanceState(Protocol):
    """The gateway's live account of one engine instance, read-only for routers."""

    @property
    def name(self) -> str:
        """The instance's name."""

    @property
    def n_run(self) -> int:
        """The active window: how many sequences may be in flight, 1 or more."""

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""

    @property
    def sequences(self) -> int:
        """Sequences of these requests: a request for four answers has four. They count against the window."""

    @property
    def in_flight_tokens(self) -> int:
        """Their prompts plus the output expected at dispatch."""

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of the requests without a first token yet."""

    @property
    def awaiting(self) -> int:
        """Streaming requests that were sent and have no first token yet."""

    @property
    def kv_committed(self) -> float:
        """Share of the KV fence that is committed, 0 to 1; 0 without a fence."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A router's decision: the instance's name, and the reason as a short text for a log line."""

    instance: str
    reason: str


class Router(Protocol):
    """Chooses the instance for a request."""

    def choose(self, entry: Routable, instances: Sequence[InstanceState]) -> Choice | None:
        """The instance for `entry`, or None to let it wait.

        Args:
            entry: The request that would go next.
            instances: The instances that may take it now: healthy, with a free slot, serving the model. They are in the order of the
                configuration, each at most once; the list may be empty.
        """
