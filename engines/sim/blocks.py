"""The paged KV cache of an engine model: a count of blocks, and a prefix cache keyed by prompt hashes."""

from collections import OrderedDict
from collections.abc import Iterable

from hmas.engines.sim.sequence import Sequence


class _Unit:
    """One cached piece of a prompt: the number of sequences that hold it, and its number of blocks."""

    __slots__ = ("blocks", "holders")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.holders = 1


class BlockPool:
    """KV blocks of one engine.

    Blocks are counted, not numbered. Each hash identifies one unit of a prompt, which is shared by all sequences that hold it. A unit that
    no sequence holds stays cached, counts as free, and is dropped when its blocks are needed: the unit unused for longest first, and within
    one prompt the tail before the head (vLLM V1's order).

    Attributes:
        size: Tokens per block.
        total: Number of all blocks.
        free: Blocks that can be taken: unused blocks, and blocks of cached units that no sequence holds.
        least_free: The lowest value of `free` so far.
    """

    def __init__(self, total: int, size: int) -> None:
        self.total = total
        self.size = size
        self.free = total
        self.least_free = total
        self._units: dict[int, _Unit] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._idle_blocks = 0

    def needed(self, tokens: int) -> int:
        """Blocks that this many tokens take."""
        return -(-tokens // self.size)

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Reserves blocks so that a sequence holds `tokens`; returns False, and takes none, if too few blocks are free."""
        more = -(-tokens // self.size) - sequence.blocks
        if more > self.free:
            return False
        if more > 0:
            sequence.blocks += more
            self.take(more)
        return True

    def take(self, blocks: int) -> None:
        """Takes blocks that are known to be free."""
        self.free -= blocks
        if self.free < self.least_free:  # noqa: PLR1730 - a call costs more than the comparison, and this runs at every step
            self.least_free = self.free
        while self._idle_blocks > self.free:
            unit = self._units.pop(self._idle.popitem(last=False)[0])
            self._idle_blocks -= unit.blocks

    def release(self, sequence: Sequence) -> None:
        """Releases the blocks of a sequence; its cached units stay in the cache for others."""
        shared = 0
        for name in reversed(sequence.refs or ()):
            unit = self._units[name]
            unit.holders -= 1
            shared += unit.blocks
            if not unit.holders:
                self._idle[name] = None
                self._idle_blocks += unit.blocks
                self.free += unit.blocks
        self.free += sequence.blocks - shared
        sequence.blocks = 0
        sequence.refs = None
        sequence.units_seen = 0

    def admit(self, sequence: Sequence, held_back: int) -> bool:
        """Gives a waiting sequence the cached part of its prompt, if the rest of its tokens fits too, beside `held_back` blocks.

        Returns False, and changes nothing, if the sequence has to wait. The rest of its blocks is not taken yet.
        """
        units = self._found(sequence) if sequence.hashes and not sequence.computed else 0
        if not units:
            return self.needed(sequence.tokens) + held_back <= self.free
        per_unit = sequence.hash_tokens // self.size
        names = sequence.hashes[:units]
        idle = sum(not self._units[name].holders for name in names)
        if self.needed(sequence.tokens) - (units - idle) * per_unit + held_back > self.free:
            return False
        for name in names:
            unit = self._units[name]
            if not unit.holders:
                del self._idle[name]
                self._idle_blocks -= unit.blocks
                self.free -= unit.blocks
            unit.holders += 1
        self.least_free = min(self.least_free, self.free)
        sequence.refs = list(names)
        sequence.units_seen = units
        sequence.blocks = units * per_unit
        sequence.computed = units * sequence.hash_tokens
        if sequence.tokens == sequence.prompt_tokens:
            # A sequence that is computed again after a preemption finds what it has computed itself.
            sequence.cached_tokens = sequence.computed
        return True

    def register(self, sequence: Sequence, computed: int) -> None:
        """Adds the units of a sequence's prompt that the `computed` tokens cover to the cache, unless they are there already.

        If another sequence has added a unit meanwhile, this sequence keeps a private copy, which is released with the sequence.
        """
        units = min(computed // sequence.hash_tokens, len(sequence.hashes))
        for name in sequence.hashes[sequence.units_seen : units]:
            if name not in self._units:
                self._units[name] = _Unit(sequence.hash_tokens // self.size)
                if sequence.refs is None:
                    sequence.refs = []
                sequence.refs.append(name)
        sequence.units_seen = max(units, sequence.units_seen)

    def cached(self, hashes: Iterable[int]) -> int:
        """The number of leading units of a prompt that are cached."""
        units = 0
        for name in hashes:
            if name not in self._units:
                break
            units += 1
        return units

    def _found(self, sequence: Sequence) -> int:
        """As `cached`. At least one token is left to compute for the first output token."""
        return self.cached(sequence.hashes[: (sequence.tokens - 1) // sequence.hash_tokens])
