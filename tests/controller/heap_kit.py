"""Counts what the heaps under the queues do, for tests of complexity."""

import heapq
from typing import Any

import pytest


class HeapWork:
    """Every call of `heapq` while a test runs: places written or taken, and how many the heap of the last call then held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moves = 0
        self.places = 0
        for name in ("heappush", "heappop", "heapreplace"):
            monkeypatch.setattr(heapq, name, self._counted(getattr(heapq, name)))
        monkeypatch.setattr(heapq, "heapify", self._counted(heapq.heapify, whole=True))

    def _counted(self, plain: Any, *, whole: bool = False) -> Any:
        def call(heap: list[Any], *item: Any) -> Any:
            found = plain(heap, *item)
            self.moves += len(heap) if whole else 1
            self.places = len(heap)
            return found

        return call


@pytest.fixture
def heap_work(monkeypatch: pytest.MonkeyPatch) -> HeapWork:
    return HeapWork(monkeypatch)
