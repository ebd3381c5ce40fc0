"""What the prefix caches of instances hold, by what the engines themselves report of each block. Pure and bounded."""

from array import array
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from hmas.controller.routing.block_table import BlockTable
from hmas.controller.routing.prefix_index import leading
from hmas.engines.kv_events import KvEvent

BLOCKS_MOST = 10_000_000
"""Blocks of all instances together: 43 to 85 bytes each, and 130 where two instances beyond the first 63 share each."""
INSTANCE_BLOCKS_MOST = 1_000_000
"""Blocks of one instance: 16 million tokens in blocks of 16, several times what the largest engines hold."""
OWNER_SEGMENTS, CACHE_SEGMENTS = 1024, 32
SWEPT_AT_ONCE = 512
BITS = (1 << 64) - 1
SINGLE, SHARED = 1 << 63, BITS
"""Under a key stand the bits of the instances that have the block while these are few enough, else SINGLE and the number of the one, or
SHARED, and then the bits stand elsewhere."""


def chain_start(adapter: str) -> int:
    """What the keys of a prompt's blocks begin with: engines share no block between LoRA adapters."""
    return hash(("hmas kv block", adapter)) & BITS or 1


def block_key(before: int, tokens: bytes) -> int:
    """Our key of a block: of its token ids (4 bytes each) and of the key of the block before it.

    Keys are the same only in this process: Python draws the key of its hash function at the start, so no one can aim at a key.
    """
    return hash((before, tokens)) & BITS or 1


def block_keys(tokens: Sequence[int], block_tokens: int, adapter: str = "") -> "array[int]":
    """The keys of the whole blocks of a prompt.

    Raises:
        OverflowError: A token id is not a number of 32 bits.
    """
    data, width = array("I", tokens).tobytes(), 4 * block_tokens
    found, last = array("Q"), chain_start(adapter)
    for end in range(width, len(data) + 1, width):
        last = block_key(last, data[end - width : end])
        found.append(last)
    return found


class _Cache:
    """The cache of one instance: our key of each block by the engine's own hash, which says nothing to us."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.block_tokens = 0
        self.keys = BlockTable(CACHE_SEGMENTS)


class ExactIndex:
    """The instances that have a block, by our key of the block, and each instance's keys by its engine's hashes.

    An engine evicts the ends of prompts first, so an instance that has a block has all before it, and a look-up is a binary search.

    Attributes:
        complete: Instances of which every block is known; another one may have more than the index says.
        version: Grows with every change.
        sizes: Tokens of a block, of all engines that have reported any.
    """

    def __init__(self, blocks_most: int = BLOCKS_MOST, instance_blocks_most: int = INSTANCE_BLOCKS_MOST) -> None:
        self._blocks_most, self._instance_blocks_most = blocks_most, instance_blocks_most
        self._owners = BlockTable(OWNER_SEGMENTS)
        self._shared: dict[int, int] = {}
        self._caches: dict[str, _Cache] = {}
        self._names: dict[int, str] = {}
        self._free: list[int] = []
        self._leaving: deque[tuple[int, Iterator[int]]] = deque()
        self._blocks = 0
        self.complete: set[str] = set()
        self.version = 0
        self.sizes: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Blocks of all instances, those of instances that were cleared and are not swept yet included."""
        return self._blocks

    def blocks_of(self, instance: str) -> int:
        """How many blocks an instance has."""
        cache = self._caches.get(instance)
        return 0 if cache is None else len(cache.keys)

    def complete_with(self, sizes: Collection[int]) -> Collection[str]:
        """Those of `complete` whose blocks have one of these sizes, or that have no block."""
        if all(size in sizes for size in self.sizes):
            return self.complete
        return {name for name in self.complete if name not in self._caches or self._caches[name].block_tokens in sizes}

    def size_bytes(self) -> int:
        """About the memory of the index."""
        return self._owners.size_bytes() + sum(cache.keys.size_bytes() for cache in self._caches.values()) + 200 * len(self._shared)

    def stored(self, instance: str, event: KvEvent) -> bool:
        """Records stored blocks; those whose parent is not known, or of another size, are left out. False if there is no room for them."""
        hashes, tokens, block_tokens = event.hashes, event.tokens, event.block_tokens
        cache = self._caches.get(instance) or self._new_cache(instance)
        if not cache.block_tokens:
            cache.block_tokens = block_tokens
            if block_tokens not in self.sizes:
                self.sizes = tuple(sorted({one.block_tokens for one in self._caches.values() if one.block_tokens}))
        keys = cache.keys
        last = keys.get(event.parent) if event.parent else chain_start(event.adapter)
        if not last or block_tokens != cache.block_tokens:
            return True
        if self._blocks + len(hashes) > self._blocks_most or len(keys) + len(hashes) > self._instance_blocks_most:
            return False
        number, width = cache.number, 4 * block_tokens
        self.version += 1
        for place, engine_hash in enumerate(hashes):
            last = block_key(last, tokens[place * width : (place + 1) * width])
            before = keys.put(engine_hash, last)
            if before == last:
                continue
            if before:
                self._disown(before, number)
            else:
                self._blocks += 1
            self._own(last, number)
        return True

    def removed(self, instance: str, hashes: Sequence[int]) -> None:
        """Records that an instance has evicted blocks, by the engine's hashes; unknown ones are passed."""
        cache = self._caches.get(instance)
        if cache is None:
            return
        self.version += 1
        for engine_hash in hashes:
            if key := cache.keys.pop(engine_hash):
                self._blocks -= 1
                self._disown(key, cache.number)

    def clear(self, instance: str) -> None:
        """Forgets an instance. At once it counts as one that has nothing; `sweep` frees the memory bit by bit."""
        self.complete.discard(instance)
        cache = self._caches.pop(instance, None)
        if cache is not None:
            self.version += 1
            del self._names[cache.number]
            self._leaving.append((cache.number, cache.keys.values()))

    def sweep(self) -> bool:
        """Frees some of the blocks of cleared instances; True while there are more."""
        if not self._leaving:
            return False
        number, keys = self._leaving[0]
        some = list(islice(keys, SWEPT_AT_ONCE))
        for key in some:
            self._disown(key, number)
        self._blocks -= len(some)
        if len(some) < SWEPT_AT_ONCE:
            self._leaving.popleft()
            self._free.append(number)
        return bool(self._leaving)

    def matched(self, keys: Mapping[int, Sequence[int]], tokens: int) -> dict[str, int]:
        """By instance, how many of the first `tokens` of a prompt it has; instances that have none are left out.

        Args:
            keys: `block_keys` of the prompt, by tokens of a block.
            tokens: How much of the prompt counts.
        """
        found: dict[str, int] = {}
        for size, of_size in keys.items():
            count = tokens // size
            for bits, depth in leading(of_size if count >= len(of_size) else of_size[:count], self._at):
                left = bits
                while left:
                    bit = left & -left
                    if name := self._names.get(bit.bit_length() - 1):
                        found[name] = depth * size
                    left ^= bit
        return found

    def _at(self, key: int) -> int:
        value = self._owners.get(key)
        if value < SINGLE:
            return value
        return self._shared[key] if value == SHARED else 1 << (value - SINGLE)

    def _own(self, key: int, number: int) -> None:
        self._set(key, self._at(key) | 1 << number)

    def _disown(self, key: int, number: int) -> None:
        self._set(key, self._at(key) & ~(1 << number))

    def _set(self, key: int, bits: int) -> None:
        value = bits if bits < SINGLE else SHARED if bits & (bits - 1) else SINGLE + bits.bit_length() - 1
        before = self._owners.put(key, value) if bits else self._owners.pop(key)
        if value == SHARED:
            self._shared[key] = bits
        elif before == SHARED:
            del self._shared[key]

    def _new_cache(self, instance: str) -> _Cache:
        # A number is used again only when no block has it any more.
        number = self._free.pop() if self._free else len(self._names) + len(self._leaving)
        cache = self._caches[instance] = _Cache(number)
        self._names[number] = instance
        return cache
