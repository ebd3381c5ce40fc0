"""Whose turn it is: the flows that have somebody waiting, lowest tag first."""

import heapq

from controller.scheduling.policies.flow import Flow

_SLACK = 64


class Turns:
    """A heap of flows by tag, ties by a number of the discipline's choice.

    A flow's place counts while it carries the flow's stamp; so moving a flow and taking it out only leave a stale place
    behind, which is skipped when it comes up and swept out when stale ones are more than half.
    """

    __slots__ = ("_heap", "_stamp", "_standing")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Flow]] = []
        self._stamp = 0
        self._standing = 0

    def first(self) -> Flow | None:
        """The flow with the lowest tag, None with none; it stays where it is."""
        heap = self._heap
        while heap:
            place = heap[0]
            if place[3].stamp == place[2]:
                return place[3]
            heapq.heappop(heap)
        return None

    def lowest(self) -> float | None:
        """The lowest tag, None with no flow."""
        return None if self.first() is None else self._heap[0][0]

    def stand(self, flow: Flow, tie: int) -> None:
        """Puts a flow where its tag asks for, or moves it there."""
        stood = (flow.tag, tie)
        if flow.stamp:
            if flow.stood == stood:
                return
        else:
            self._standing += 1
        self._stamp += 1
        flow.stamp = self._stamp
        flow.stood = stood
        heap = self._heap
        place = (flow.tag, tie, self._stamp, flow)
        if heap and heap[0][3] is flow:
            heapq.heapreplace(heap, place)  # what stood there is stale now
        else:
            heapq.heappush(heap, place)
            if len(heap) > 2 * self._standing + _SLACK:
                self._heap = [kept for kept in heap if kept[3].stamp == kept[2]]
                heapq.heapify(self._heap)

    def leave(self, flow: Flow) -> None:
        """Takes a flow out, if it is in."""
        if flow.stamp:
            flow.stamp = 0
            self._standing -= 1
