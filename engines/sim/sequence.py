"""A request inside an engine model, and the model's own queue of waiting requests."""

import heapq
from typing import Literal

from hmas.engines.sim.request import SimRequest


class Sequence:
    """The state of one request inside the engine.

    Attributes:
        key: Sort key in the engine's queue.
        prompt_tokens, output_tokens: Its input, and the output at which it finishes.
        tokens: Input and output tokens so far. While the sequence decodes, this is stale; the value is `base` plus the group's steps.
        computed: Tokens whose KV is in the cache; also stale while it decodes.
        blocks: KV blocks it occupies, including shared ones; also stale while it decodes.
        cached_tokens: Prompt tokens that it found cached.
        refs: Cached prefix units to which it holds a reference. `units_seen`: units of its prompt that were looked up or registered.
        scheduled: Tokens it computes in the step that is being planned.
        place: Its state.
        swapped: Whether its KV is on the host.
    """

    __slots__ = (
        "base",
        "blocks",
        "cached_tokens",
        "computed",
        "hash_tokens",
        "hashes",
        "id",
        "joined",
        "key",
        "output_tokens",
        "place",
        "prompt_tokens",
        "refs",
        "scheduled",
        "swapped",
        "tokens",
        "units_seen",
    )

    def __init__(self, request: SimRequest, key: tuple[int, float, int]) -> None:
        self.id = request.id
        self.key = key
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.tokens = request.prompt_tokens
        self.computed = 0
        self.blocks = 0
        self.cached_tokens = 0
        self.base = 0
        self.joined = 0
        self.scheduled = 0
        self.hashes = request.block_hashes
        self.hash_tokens = request.hash_tokens
        self.units_seen = 0
        self.refs: list[int] | None = None
        self.swapped = False
        self.place: Literal["waiting", "running", "gone"] = "waiting"


class EngineQueue:
    """A heap of sequences, lowest key first; a sequence removed by `forget` stays in the heap and is skipped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Sequence]] = []
        self.live = 0

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence."""
        sequence.place = "waiting"
        self.live += 1
        heapq.heappush(self._heap, (sequence.key, sequence))

    def head(self) -> Sequence | None:
        """The first sequence, None if none waits."""
        heap = self._heap
        while heap and heap[0][1].place != "waiting":
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> Sequence:
        """Removes the sequence that `head` has just returned."""
        self.live -= 1
        sequence = heapq.heappop(self._heap)[1]
        sequence.place = "running"
        return sequence

    def forget(self, sequence: Sequence) -> None:
        """Removes a waiting sequence for good."""
        sequence.place = "gone"
        self.live -= 1
        if len(self._heap) > 2 * self.live + 16:
            self._heap = [entry for entry in self._heap if entry[1].place == "waiting"]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)
