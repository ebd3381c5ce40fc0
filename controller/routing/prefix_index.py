"""Which instance has probably cached which beginning of a prompt, learned from what was sent, and how far reports bear it out. Bounded."""

from collections.abc import Callable, Sequence

BLOCKS_LEAST, BLOCKS_EACH, BLOCKS_MOST = 131_072, 8_192, 1_048_576
"""Blocks that are remembered, those used last: at least, for each instance, and at most. For each instance half a million tokens in blocks
of 64, about what the KV cache of a large engine holds; at least 8 million tokens in about 25 MB, at most 67 million in about 200 MB."""
IDS_MOST = 4096
"""Numbers of instances in use at once, those that have left included; at more, the index starts empty."""
TRUST_DECAY = 0.9
TRUST_LEAST = 512.0
"""Tokens expected before the engine's reports count."""


def leading(blocks: Sequence[int], at: Callable[[int], int]) -> list[tuple[int, int]]:
    """Who has how many leading `blocks`: bits of instances, and the number of blocks that those have.

    `at` gives the bits of the instances that have a block. One that has a block has all before it, so this is a binary search for each
    different number of blocks that instances have.
    """
    found: list[tuple[int, int]] = []
    last = len(blocks) - 1
    held = at(blocks[0]) if last >= 0 else 0
    if not held:
        return found
    # What was looked up behind `low`, nearest last: the next search begins there.
    behind = [(last, at(blocks[last]))]
    low = 0
    while held:
        high, bits = behind[-1]
        if bits & held == held:
            behind.pop()
            if not behind:
                found.append((held, last + 1))
                break
            low = high
            continue
        # The first block that some of `held` lack. All of them have the one at `low`.
        while high - low > 1:
            middle = (low + high) // 2
            here = at(blocks[middle])
            if here & held == held:
                low = middle
            else:
                high, bits = middle, here
                behind.append((middle, here))
        left = bits & held
        found.append((held & ~left, high))
        held, low = left, high
        behind.pop()
        if held and not behind:
            found.append((held, last + 1))
            break
    return found


class Trust:
    """The share of what an index expects of an instance that its engine had cached, by the engine's own reports."""

    def __init__(self) -> None:
        self._expected: dict[str, float] = {}
        self._found: dict[str, float] = {}

    def reported(self, instance: str, expected_tokens: float, cached_tokens: int) -> None:
        """Compares what was expected to be cached of a prompt with the engine's report."""
        self._expected[instance] = TRUST_DECAY * self._expected.get(instance, 0.0) + expected_tokens
        self._found[instance] = TRUST_DECAY * self._found.get(instance, 0.0) + min(expected_tokens, float(cached_tokens))

    def of(self, instance: str) -> float:
        """0 to 1, over what was reported lately; 1 until the engine has reported on enough."""
        expected = self._expected.get(instance, 0.0)
        return 1.0 if expected < TRUST_LEAST else self._found[instance] / expected

    def left(self, instance: str) -> None:
        """Forgets an instance."""
        self._expected.pop(instance, None)
        self._found.pop(instance, None)


class PrefixIndex:
    """A map from the hash of a block, which stands for all blocks before it too, to the instances that a prompt with it was sent to.

    Two generations of half the bound each keep what was used last: a full young one becomes the old one, and the old one is dropped.
    """

    def __init__(self, blocks_most: int | None = None) -> None:
        """`blocks_most`: a bound that does not grow with the instances (`BLOCKS_EACH`)."""
        self._fixed = blocks_most
        self._half = max(1, (BLOCKS_LEAST if blocks_most is None else blocks_most) // 2)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._bits: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def instances(self) -> int:
        """Instances that something was sent to and that have not left."""
        return len(self._bits)

    def matched(self, blocks: Sequence[int]) -> dict[str, int]:
        """By instance, how many leading `blocks` it has; instances that have none are left out."""
        found: dict[str, int] = {}
        for bits, depth in leading(blocks, self._at):
            self._give(bits, depth, found)
        return found

    def sent(self, blocks: Sequence[int], instance: str) -> None:
        """Records that a prompt goes to an instance."""
        bit = self._bits.get(instance) or self._number(instance)
        young, old = self._young, self._old
        for block in blocks:
            if block in young:
                young[block] |= bit
                continue
            young[block] = bit | old.pop(block, 0)
            if len(young) >= self._half:
                self._old = old = young
                self._young = young = {}

    def left(self, instance: str) -> None:
        """Forgets an instance. Its number is not used again, so that what stands under it in the map counts for none."""
        bit = self._bits.pop(instance, 0)
        self._names.pop(bit, None)

    def _at(self, block: int) -> int:
        return self._young.get(block, 0) | self._old.get(block, 0)

    def _number(self, instance: str) -> int:
        if self._next >= IDS_MOST:
            self._next = 0
            self._young, self._old, self._bits, self._names = {}, {}, {}, {}
        bit = 1 << self._next
        self._next += 1
        self._bits[instance] = bit
        self._names[bit] = instance
        if self._fixed is None:
            self._half = min(BLOCKS_MOST, max(BLOCKS_LEAST, BLOCKS_EACH * len(self._bits))) // 2
        return bit

    def _give(self, bits: int, depth: int, found: dict[str, int]) -> None:
        names = self._names
        while bits:
            bit = bits & -bits
            name = names.get(bit)
            if name is not None:
                found[name] = depth
            bits ^= bit
