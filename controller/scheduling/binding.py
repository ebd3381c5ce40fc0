"""Binding at arrival: the router chooses the instance of a request when it comes, and the request waits in that instance's own queue."""

import math
from collections.abc import Sequence

from hmas.controller.core.placement import Choice, InstanceState
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.model_queue import QueuedRequest
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.routers import Routers


class _Bound:
    """A request that waits in the queue of an instance: what it counts there, and why the router chose that one."""

    __slots__ = ("choice", "prompt_tokens", "sequences", "tokens")

    def __init__(self, entry: QueueEntry, choice: Choice) -> None:
        self.choice = choice
        self.sequences = entry.request.sequences
        self.tokens = entry.request.prompt_tokens + int(entry.estimates.output_tokens)
        self.prompt_tokens = max(0, entry.request.prompt_tokens - (choice.cached_tokens or 0))


class QueuedInstance:
    """An instance as routers see it where requests are bound at arrival: what waits in its queue counts as sent (`InstanceState`)."""

    __slots__ = ("_instance", "_prompt_tokens", "_sequences", "_tokens", "name", "waiting")

    def __init__(self, instance: InstanceState) -> None:
        """Its queue is empty."""
        self._instance = instance
        self.name = instance.name
        self.waiting = 0
        self._sequences = 0
        self._tokens = 0
        self._prompt_tokens = 0

    def count(self, bound: _Bound, more: int) -> None:
        """Counts a request that is bound to it (1), or no longer one that has left its queue (-1)."""
        self.waiting += more
        self._sequences += more * bound.sequences
        self._tokens += more * bound.tokens
        self._prompt_tokens += more * bound.prompt_tokens

    @property
    def n_run(self) -> int:
        """See `InstanceState`, like all that follow."""
        return self._instance.n_run

    @property
    def in_flight(self) -> int:
        """Requests that it has or that wait for it."""
        return self._instance.in_flight + self.waiting

    @property
    def sequences(self) -> int:
        """Their sequences."""
        return self._instance.sequences + self._sequences

    @property
    def in_flight_tokens(self) -> int:
        """Their prompts and expected output."""
        return self._instance.in_flight_tokens + self._tokens

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that it has still to compute."""
        return self._instance.prefill_tokens + self._prompt_tokens

    @property
    def awaiting(self) -> int:
        """Requests without a first token."""
        return self._instance.awaiting + self.waiting

    @property
    def kv_committed(self) -> float:
        """Share of the KV fence that requests in flight have."""
        return self._instance.kv_committed

    @property
    def routing_window(self) -> float:
        """Sequences that its load is compared with."""
        return self._instance.routing_window

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that its KV cache holds."""
        return self._instance.kv_capacity_tokens

    @property
    def prefill_token_ms(self) -> float:
        """Measured time of a prompt token."""
        return self._instance.prefill_token_ms

    @property
    def decode_token_ms(self) -> float:
        """Measured time of an output token of a request alone."""
        return self._instance.decode_token_ms

    @property
    def caches_prefixes(self) -> bool | None:
        """Whether its engine caches the beginnings of prompts."""
        return self._instance.caches_prefixes


class ArrivalBinding:
    """Binds requests to instances, and anew where an instance stops taking requests. Every call is O(instances) unless stated otherwise.

    Published dispatchers choose at arrival: this is their own form, while the central queue leaves a request to whichever instance comes
    first. A request that no instance may take now is bound to none, and waits in the queue of its model.
    """

    __slots__ = ("_bound", "_changed", "_queued", "_routers", "_wait_queue")

    def __init__(self, wait_queue: WaitQueue, routers: Routers) -> None:
        """Binds requests of this queue by these routers."""
        self._wait_queue = wait_queue
        self._routers = routers
        self._queued: dict[str, QueuedInstance] = {}
        self._bound: dict[str, _Bound] = {}
        self._changed: set[str] = set()

    def bind(self, entry: QueueEntry, avoided: frozenset[str], now_s: float) -> None:
        """Chooses the instance of a request that is about to wait."""
        entry.bound = ""
        for pool in self._pools(entry, avoided):
            for state, choice in self._routers.ranking(entry, pool, now_s) if pool else ():
                entry.bound = choice.instance
                bound = self._bound[entry.request.id] = _Bound(entry, choice)
                queued = self._queued.get(choice.instance)
                if queued is None:
                    queued = self._queued[choice.instance] = QueuedInstance(state)
                queued.count(bound, 1)
                self._routers.sent(entry, choice.instance, now_s)
                return

    def leaves(self, entry: QueueEntry) -> Choice | None:
        """Records that a request leaves its instance's queue; returns why it was bound there, None if it was not. O(1)."""
        bound = self._bound.pop(entry.request.id, None)
        if bound is None:
            return None
        queued = self._queued[entry.bound]
        queued.count(bound, -1)
        if not queued.waiting:
            del self._queued[entry.bound]
        return bound.choice

    def gives_up(self, entry: QueueEntry) -> None:
        """Records that a request is not sent to the instance that it was bound to. O(1)."""
        if self.leaves(entry) is not None:
            self._routers.ended(entry.request, entry.bound, None)

    def changed(self, instance: str) -> None:
        """Has `rebind` look at an instance, which may have stopped to take requests or changed the models that it serves. O(1)."""
        self._changed.add(instance)

    def rebind(self, avoided: frozenset[str], now_s: float) -> None:
        """Binds requests anew whose instance takes none, or none of their model, any more. O(requests bound to instances that changed)."""
        moves: list[tuple[QueuedRequest, str]] = []
        for name in sorted(self._changed):
            for waiting in self._wait_queue.queues.stranded(name):
                entry, was = waiting.entry, waiting.entry.bound
                self.gives_up(entry)
                self.bind(entry, avoided, now_s)
                moves.append((waiting, entry.bound))
                entry.bound = was
        self._changed.clear()
        if moves:
            self._wait_queue.rebind(moves, now_s)

    def _pools(self, entry: QueueEntry, avoided: frozenset[str]) -> Sequence[Sequence[InstanceState]]:
        """Instances that may take the request when its turn comes; those that are avoided stand apart, for when there is no other.

        An instance that has to show that it serves again gets no more into its queue than it may have in flight (`Recovery`).
        """
        model, only = entry.request.model, entry.only
        instances = self._wait_queue.queues.of(model).instances
        kv_tokens, context = instances.least_to_hold(entry)
        # `may_take` and `can_hold`, inlined: with a thousand instances the calls would cost more than the rest.
        able = [
            instance
            for instance in instances.all
            if instance.available
            and instance.fence.fits(kv_tokens)
            and instance.context.get(model, context) >= context
            and instance.name not in entry.tried
            and (not only or instance.name == only)
            and (instance.recovery.limit == math.inf or self._queued.get(instance.name, instance).in_flight < instance.recovery.limit)
        ]
        get = self._queued.get
        if not avoided:
            return [[get(instance.name, instance) for instance in able]]
        return [[get(i.name, i) for i in able if i.name not in avoided], [get(i.name, i) for i in able if i.name in avoided]]
