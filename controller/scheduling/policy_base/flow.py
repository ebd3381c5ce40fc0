"""A flow: the waiting requests of one tenant or session with the account of its service; and the turns of the flows."""

import heapq
from collections.abc import Mapping

from hmas.controller.scheduling.policy_base.heap import STAMP, WHO, IndexedHeap, Place
from hmas.controller.scheduling.policy_base.keyed import PRIORITY_LIMIT
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

LEAST_WEIGHT = 1e-6

State = tuple[float, float, int]
"""The account of a flow: tag, used, turn."""


class Flow:
    """One tenant or session: a heap of its waiting entries, and its account.

    Within a flow the client priority orders first, which affects no other flow, then arrival.

    Attributes:
        name: The name of the flow.
        size: How many entries wait.
        tag: Its position among the flows: the lowest goes first.
        used: Service taken that the tag does not show, as the policy counts it.
        turn: Breaks ties of tags, or marks that the flow was seen before, depending on the policy.
        tickets: Its claim while it takes part in the turns, for policies that add claims up; 0 otherwise.
        stands: Its place in the turns; None if it has none.
    """

    __slots__ = ("_heap", "name", "size", "stands", "tag", "tickets", "turn", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.tag = 0.0
        self.used = 0.0
        self.turn = 0
        self.tickets = 0
        self.stands: Place | None = None
        self._heap = IndexedHeap()

    def state(self) -> State:
        """The current account."""
        return self.tag, self.used, self.turn

    def push(self, place: Place) -> bool:
        """Adds a place: priority, arrival number, stamp, entry. Returns whether it is the next one now."""
        self.size += 1
        self._heap.put(place)
        return bool(self._heap.lowest()[0][STAMP] == place[STAMP])

    def load(self, places: list[Place]) -> None:
        """Adds many places: O(n)."""
        self.size += len(places)
        self._heap.put_all(places)

    def first(self) -> Place | None:
        """The place of the next entry, None if empty."""
        heap = self._heap.lowest()
        return heap[0] if heap else None

    def pop(self) -> QueueEntry:
        """Takes the next entry out; there must be one."""
        self.size -= 1
        entry: QueueEntry = heapq.heappop(self._heap.lowest())[WHO]
        return entry

    def drop(self, place: Place) -> None:
        """Takes out a place anywhere in the flow."""
        self.size -= 1
        self._heap.drop(place[STAMP])

    def rank(self, place: Place) -> int:
        """How many places of the flow come before that place. O(n)."""
        return sum(1 for other in self._heap.standing() if other < place)


def flow_name(entry: QueueEntry, *, sessions: bool) -> str:
    """The flow of an entry: its tenant, or its session if sessions count and the request names one."""
    request = entry.request
    return f"{request.tenant}\0{request.session}" if sessions and request.session else request.tenant


def by_session(parameters: Mapping[str, float]) -> bool:
    """Reads the parameter `by` of several policies: 0 tenants, 1 sessions."""
    return parameters["by"] >= 0.5


def order_within(entry: QueueEntry) -> float:
    """The order within a flow: the client priority, lower first."""
    priority = entry.request.priority
    return float(max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, priority))) if priority else 0.0


def tokens_of(entry: QueueEntry, output_tokens: float) -> float:
    """Prompt and output tokens, 1 or more."""
    return max(1.0, entry.request.prompt_tokens + output_tokens)


def service_ms_of(entry: QueueEntry, output_tokens: float) -> float:
    """T_tot at that length, milliseconds, 1 or more (H-MAS 3.2)."""
    return max(1.0, entry.estimates.ttft_ms + entry.estimates.tpot_ms * output_tokens)


class Turns:
    """The flows with waiting entries by tag, lowest first; the policy chooses the number that breaks ties.

    Placing, moving and leaving are O(log f) amortised.
    """

    __slots__ = ("_heap", "_stamp")

    def __init__(self) -> None:
        self._heap = IndexedHeap()
        self._stamp = 0

    def first(self) -> Flow | None:
        """The flow with the lowest tag, None if there is none; it keeps its place."""
        heap = self._heap.lowest()
        if not heap:
            return None
        flow: Flow = heap[0][WHO]
        return flow

    def lowest_tag(self) -> float | None:
        """The lowest tag, None if there is no flow."""
        heap = self._heap.lowest()
        return float(heap[0][0]) if heap else None

    def stand(self, flow: Flow, tie: int) -> None:
        """Places a flow by its tag, or moves it there."""
        before = flow.stands
        if before is not None and before[0] == flow.tag and before[1] == tie:
            return
        self._stamp += 1
        flow.stands = place = (flow.tag, tie, self._stamp, flow)
        if before is None:
            self._heap.put(place)
        else:
            self._heap.replace(before[STAMP], place)

    def leave(self, flow: Flow) -> None:
        """Removes a flow, if it is present."""
        if flow.stands is not None:
            self._heap.drop(flow.stands[STAMP])
            flow.stands = None
