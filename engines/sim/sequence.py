"""A request inside an engine model."""

from typing import Literal

from hmas.engines.sim.request import Pause, SimRequest


class Sequence:
    """The state of one request inside the engine.

    Attributes:
        key: Sort key in the engine's queue.
        context_tokens: Input tokens: the prompt and the answers of tools.
        tokens: Input and output tokens so far. While the sequence decodes, this is stale; the value is `base` plus the group's steps.
        computed: Tokens whose KV is in the cache; also stale while it decodes.
        blocks: KV blocks it occupies, including shared ones; also stale while it decodes.
        refs: Cached prefix units to which it holds a reference. `units_seen`: units of its prompt that were looked up or registered.
        scheduled: Tokens it computes in the step that is being planned.
        stop_at: Output tokens at which it finishes or pauses next.
        place: Its state.
        swapped: Whether its KV is on the host.
    """

    __slots__ = (
        "base",
        "blocks",
        "computed",
        "context_tokens",
        "hash_tokens",
        "hashes",
        "id",
        "joined",
        "key",
        "output_tokens",
        "pauses",
        "place",
        "refs",
        "scheduled",
        "stop_at",
        "swapped",
        "tokens",
        "units_seen",
    )

    def __init__(self, request: SimRequest, key: tuple[int, float, int]) -> None:
        self.id = request.id
        self.key = key
        self.context_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.tokens = request.prompt_tokens
        self.computed = 0
        self.blocks = 0
        self.base = 0
        self.joined = 0
        self.scheduled = 0
        self.hashes = request.block_hashes
        self.hash_tokens = request.hash_tokens
        self.units_seen = 0
        self.refs: list[int] | None = None
        self.pauses: tuple[Pause, ...] = request.pauses
        self.stop_at = request.pauses[0].at_tokens if request.pauses else request.output_tokens
        self.swapped = False
        self.place: Literal["waiting", "running", "paused", "gone"] = "waiting"
