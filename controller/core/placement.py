"""The interface between scheduler and routers: scheduling and routing depend on each other only through these types."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from hmas.controller.core.types import Estimates, Request

Server = TypeVar("Server")


def servers_of(serving: Iterable[tuple[Server, frozenset[str] | None]]) -> dict[str, list[Server]]:
    """Who serves each model that any of them names, in their order; those with None serve any. O(instances x models)."""
    servers: dict[str, list[Server]] = {}
    of_any: list[Server] = []
    for server, models in serving:
        if models is None:
            of_any.append(server)
        for model in servers if models is None else models:
            if model not in servers:
                servers[model] = of_any.copy()
            servers[model].append(server)
    return servers


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
        """Prompt tokens of the requests without a first token yet, without those that they are expected to find cached."""

    @property
    def awaiting(self) -> int:
        """Streaming requests that were sent and have no first token yet."""

    @property
    def kv_committed(self) -> float:
        """Share of the KV fence that is committed, 0 to 1; 0 without a fence."""

    @property
    def routing_window(self) -> float:
        """Sequences that its load is compared with: its window; if an agent set that, the mean window of all instances like it."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that its KV cache holds, 0 if unknown."""

    @property
    def prefill_token_ms(self) -> float:
        """Measured time to compute one prompt token that is not cached, milliseconds; 0 before the first measurement."""

    @property
    def decode_token_ms(self) -> float:
        """Measured time per output token of a request alone, milliseconds; 0 before the first measurement."""

    @property
    def caches_prefixes(self) -> bool | None:
        """Whether its engine keeps the KV cache of prompts for others that begin alike; None if it does not say."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One place in a router's ranking.

    Attributes:
        instance: The instance's name.
        reason: Why it stands there, as a short text.
        scores: Scorer, its score from 0 to 1, and its weight, for routers that are made of scorers.
        cached_tokens: Tokens of the prompt that the instance is expected to find cached, None if nothing is known about its cache.
    """

    instance: str
    reason: str
    scores: tuple[tuple[str, float, float], ...] = ()
    cached_tokens: int | None = None


class Router(Protocol):
    """Ranks the instances for a request.

    A router may have the hooks `sent`, `ended` and `left` of `Scorer`, too. What changes with a dispatch is recorded in `sent`, because a
    request may not go to the instance that stands first.
    """

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterable[Choice]:
        """The instances for `entry`, best first; it goes to the first one that the KV fence and the TPOT guard admit it to.

        The ranking is read only as far as it is needed, so a generator is a good answer. Instances that it leaves out are not tried. An
        empty ranking lets the request wait. One that names an instance that is not in `instances`, or one of them twice, is a fault: the
        rest of `instances` then follows, the emptiest first.

        Args:
            entry: The request that would go next.
            instances: The instances that may take it now: healthy, with a free slot, serving the model. They are in the order of the
                configuration, each once, and at least one. The sequence must not be changed.
            now_s: The time.
        """


class Scorer(Protocol):
    """Scores instances for a request: one part of a router. Pure but for what its hooks record.

    Optional: `uses_blocks = True` where it reads `Request.blocks`, which the gateway computes only then; `uses_times_alone = True` where it
    reads `Estimates.alone`, which prediction computes only then; and the hooks that it needs.

    - `favours(entry)`: names of instances that it may score high whatever their load; with many instances they are scored besides the
      emptiest.
    - `cached(entry, instance)`: `Choice.cached_tokens`. The TPOT guard then expects the instance to compute only the rest.
    - `sent(entry, instance, now_s)`: a request goes to an instance.
    - `ended(request, instance, cached_tokens)`: a request that was sent has ended; `cached_tokens` are the prompt tokens that the engine
      found cached, None if it did not say.
    - `left(instance)`: an instance has gone away; it comes back without what its cache held.

    Attributes:
        name: Its name in weights.
        summary: What a high score means, in one line.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:
        """A score from 0 to 1 for each of `instances`, in their order, higher for a better one; empty if they are all alike to it.

        One call has all instances, so that a score may be relative to the others.
        """
