"""The turns of the flows with waiting entries, lowest tag first."""

from hmas.controller.scheduling.policy_base.flow import Flow
from hmas.controller.scheduling.policy_base.indexed_heap import STAMP, WHO, IndexedHeap


class Turns:
    """Flows by tag; the policy chooses the number that breaks ties. Placing, moving and leaving are O(log f) amortised."""

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
