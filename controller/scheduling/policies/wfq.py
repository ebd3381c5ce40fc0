"""Weighted fair queueing over tenants."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from controller.scheduling.lazy_heap import LazyHeap
from controller.scheduling.policies.keyed import PRIORITY_LIMIT
from controller.scheduling.policies.recall import Recall, Ticket
from controller.scheduling.queue_entry import QueueEntry
from controller.scheduling.signals import ARRIVAL, OUTPUT_LENGTH, PRIORITY, PROMPT_LENGTH, SERVICE_TIME, TENANT, WEIGHT, Signal

_IDLE_KEEP = 1024
_LEAST_WEIGHT = 1e-6


class Wfq:
    """Tenants share the service by weight, by start-time fair queueing (Goyal, Vin and Cheng, 1996).

    Each tenant has a start tag; the backlogged tenant with the lowest goes and its tag grows by cost / weight of the request
    taken. Virtual time is the start tag last served; a tenant that comes back after a pause starts there, with no claim to
    what it did not use. When nobody waits any more, all start level again. While two tenants wait, the service that they
    get, per unit of weight, differs by no more than one request of each. Start tags, unlike finish tags, do not depend on
    the cost of the request at the head, so a wrong estimate costs its own tenant only, and re-keying moves nothing between
    tenants.

    A weight counts from the next dispatch on. Within a tenant the client's priority comes first (it harms nobody else), then
    the order of arrival.

    Hint `cost`: what is shared: 0 tokens (prompt and predicted output), 1 predicted service time T_tot in milliseconds.
    """

    name: ClassVar[str] = "wfq"
    summary: ClassVar[str] = "tenants share by weight; keeps one tenant's burst from taking the service of the others"
    default_hints: ClassVar[Mapping[str, float]] = MappingProxyType({"cost": 0.0})
    hint_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"cost": (0.0, 1.0)})
    signals: ClassVar[tuple[Signal, ...]] = (TENANT, WEIGHT, PROMPT_LENGTH, OUTPUT_LENGTH, SERVICE_TIME, PRIORITY, ARRIVAL)
    starvation: ClassVar[str] = "none: while two tenants wait, service per weight differs by one request of each"
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key and removal O(1)"
    source: ClassVar[str] = "Goyal, Vin and Cheng 1996, start-time fair queueing"

    def __init__(self, hints: Mapping[str, float]) -> None:
        self.hints: Mapping[str, float] = dict(hints)
        self._by_time = hints["cost"] >= 0.5
        self._queues: dict[str, LazyHeap[QueueEntry]] = {}
        self._tenant_of: dict[str, str] = {}
        self._backlogged: LazyHeap[str] = LazyHeap()
        self._start: dict[str, float] = {}
        self._virtual = 0.0
        self._recall = Recall()

    def push(self, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the protocol's argument
        """Takes a waiting entry into its tenant's queue."""
        self._put(entry)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:  # noqa: ARG002  the protocol's argument
        """Takes many in at once; all tenants start level, in the order of their first arrival."""
        for entry in entries:
            self._put(entry)

    def pop(self, now_s: float) -> QueueEntry | None:  # noqa: ARG002  the protocol's argument
        """Takes the next entry of the tenant whose turn it is, None when empty."""
        tenant = self._backlogged.pop()
        if tenant is None:
            return None
        queue = self._queues[tenant]
        entry = queue.pop()
        assert entry is not None, "a backlogged tenant has an entry"
        del self._tenant_of[entry.request.id]
        start = self._start[tenant]
        charge = self._cost(entry) / max(_LEAST_WEIGHT, entry.weight)
        self._recall.note(entry.request.id, Ticket(tenant, start, charge, self._virtual))
        self._virtual = max(self._virtual, start)
        self._start[tenant] = start + charge
        self._settle(tenant)
        return entry

    def put_back(self, entry: QueueEntry, now_s: float) -> None:
        """Returns a popped entry to the head of its tenant and takes the charge back."""
        ticket = self._recall.take(entry.request.id)
        if ticket is None or ticket.flow not in self._start:
            self.push(entry, now_s)
            return
        self._start[ticket.flow] -= ticket.charge
        if self._virtual == max(ticket.virtual, ticket.start):
            self._virtual = ticket.virtual
        self._enqueue(entry, ticket.flow)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None where it is not here."""
        tenant = self._tenant_of.pop(request_id, None)
        if tenant is None:
            return None
        entry = self._queues[tenant].discard(request_id)
        self._settle(tenant)
        return entry

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """New estimates change the charge to come, not the place."""

    def served(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """The charge stays as predicted."""

    def ahead(self, request_id: str) -> int | None:
        """An estimate: those before it in its tenant's queue, and as many of each other tenant as get served meanwhile by weight."""
        tenant = self._tenant_of.get(request_id)
        if tenant is None:
            return None
        rank = self._queues[tenant].rank(request_id) or 0
        mine = next(self._queues[tenant].values()).weight
        others = 0
        for name, queue in self._queues.items():
            if name != tenant and queue:
                share = next(queue.values()).weight / max(_LEAST_WEIGHT, mine)
                others += min(len(queue), int((rank + 1) * share))
        return rank + others

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        for queue in self._queues.values():
            yield from queue.values()

    def __len__(self) -> int:
        return len(self._tenant_of)

    def _cost(self, entry: QueueEntry) -> float:
        if self._by_time:
            return max(1.0, entry.estimates.total_ms)
        return max(1.0, entry.request.prompt_tokens + entry.estimates.output_tokens)

    def _put(self, entry: QueueEntry) -> None:
        tenant = entry.request.tenant
        if not self._queues:
            self._start.clear()
            self._virtual = 0.0
        if tenant not in self._queues:
            self._start[tenant] = max(self._start.get(tenant, 0.0), self._virtual)
        self._enqueue(entry, tenant)

    def _enqueue(self, entry: QueueEntry, tenant: str) -> None:
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = LazyHeap()
        key = float(max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, entry.request.priority)))
        queue.push(entry.request.id, key, entry.seq, entry)
        self._tenant_of[entry.request.id] = tenant
        self._settle(tenant)

    def _settle(self, tenant: str) -> None:
        """Puts the tenant where its tag and the arrival of its head ask for, or among the idle."""
        queue = self._queues[tenant]
        head = queue.peek()
        if head is None:
            self._backlogged.discard(tenant)
            del self._queues[tenant]
            self._forget_idle()
        else:
            self._backlogged.push(tenant, self._start[tenant], head[1].seq, tenant)

    def _forget_idle(self) -> None:
        """Bounds the table of tenants: drops the tags of idle ones, of those that would start level anyway first."""
        if len(self._start) <= 2 * (_IDLE_KEEP + len(self._queues)):
            return
        idle = [name for name in self._start if name not in self._queues]
        idle.sort(key=lambda name: self._start[name])
        for name in idle[:-_IDLE_KEEP]:
            del self._start[name]
