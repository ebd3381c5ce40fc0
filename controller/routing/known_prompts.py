"""The block keys of prompts' beginnings, by the hashes of their text: learned from prompts whose tokens are known. Pure and bounded."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from hmas.controller.routing.exact_index import ExactIndex, block_keys

BLOCKS_MOST = 65_536
"""Pieces of text that are remembered, those used last: 4 million tokens, in about 15 MB."""
KEYS_MOST = 4_000_000
"""Block keys that are remembered: 32 MB."""


class KnownPrompt:
    """One prompt whose tokens are known: its block keys by tokens of a block, and its length in tokens."""

    __slots__ = ("keys", "tokens")

    def __init__(self, tokens: Sequence[int], sizes: Sequence[int], adapter: str) -> None:
        """Raises: OverflowError: As `block_keys`."""
        self.tokens = len(tokens)
        self.keys = {size: block_keys(tokens, size, adapter) for size in sizes}

    def common(self, other: "KnownPrompt") -> int:
        """How many leading tokens it surely shares with another one: whole blocks of the smallest size."""
        for size, keys in self.keys.items():
            theirs = other.keys.get(size)
            if theirs is not None:
                pairs = enumerate(zip(keys, theirs, strict=False))
                return size * next((place for place, (mine, its) in pairs if mine != its), min(len(keys), len(theirs)))
        return 0


class KnownPrompts:
    """From the hash of a piece of text, which stands for all text before it too (`Request.blocks`), to a prompt that begins with it.

    How many of that prompt's tokens the text up to there has, is taken in proportion to its length, until a second prompt that departs at
    that piece shows how many tokens the two share.
    """

    def __init__(self, blocks_most: int = BLOCKS_MOST, keys_most: int = KEYS_MOST) -> None:
        self._half, self._keys_half = max(1, blocks_most // 2), max(1, keys_most // 2)
        self._young: dict[int, tuple[KnownPrompt, int]] = {}
        self._old: dict[int, tuple[KnownPrompt, int]] = {}
        self._keys = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def learn(self, blocks: Sequence[int], prompt: KnownPrompt) -> None:
        """Records a prompt under the hashes of its text."""
        depth = self.depth(blocks)
        common = 0
        tokens: list[int] = []
        if depth:
            before, _ = self._at(blocks[depth - 1]) or (prompt, 0)
            common = min(prompt.common(before), prompt.tokens)
            for block in blocks[:depth]:
                _, known = self._at(block) or (prompt, common)
                tokens.append(min(known, common))
            tokens[-1] = common
        # The text ends with a piece that is no whole block: half of one on average.
        each = (prompt.tokens - common) / (len(blocks) - depth + 0.5)
        tokens += [common + int(each * place) for place in range(1, len(blocks) - depth + 1)]
        self._keys += sum(map(len, prompt.keys.values()))
        young, old = self._young, self._old
        for block, count in zip(blocks, tokens, strict=True):
            old.pop(block, None)
            young[block] = (prompt, count)
        if len(young) >= self._half or self._keys >= self._keys_half:
            self._old, self._young, self._keys = young, {}, 0

    def depth(self, blocks: Sequence[int]) -> int:
        """How many leading pieces of a text are known."""
        return bisect_left(blocks, True, key=lambda block: self._at(block) is None)

    def find(self, blocks: Sequence[int]) -> tuple[KnownPrompt, int] | None:
        """A prompt that begins as the text does, and how many leading tokens the two have in common; None where none is known."""
        depth = self.depth(blocks)
        return self._at(blocks[depth - 1]) if depth else None

    def _at(self, block: int) -> tuple[KnownPrompt, int] | None:
        return self._young.get(block) or self._old.get(block)


class CachedOf:
    """Implements `EngineCached` for one prompt.

    Attributes:
        prompt: The prompt's own tokens, once they are known.
    """

    __slots__ = ("_blocks", "_complete", "_index", "_last", "_prompts", "_version", "prompt")

    def __init__(self, index: ExactIndex, prompts: KnownPrompts, blocks: Sequence[int]) -> None:
        self._index = index
        self._prompts = prompts
        self._blocks = blocks
        self._version = -1
        self._complete: Collection[str] = ()
        self._last: tuple[Mapping[str, int], int] = ({}, 0)
        self.prompt: KnownPrompt | None = None

    @property
    def complete(self) -> Collection[str]:
        """See `EngineCached.complete`; of engines of a block size that the prompt has no keys for, nothing is known."""
        return self._complete

    def look(self) -> tuple[Mapping[str, int], int]:
        """See `EngineCached.look`; looked up again only where the index has changed."""
        index = self._index
        if self._version != index.version:
            self._version = index.version
            found = (self.prompt, self.prompt.tokens) if self.prompt is not None else self._prompts.find(self._blocks)
            if found is None:
                self._last = ({}, 0)
            else:
                prompt, tokens = found
                known = max(0, tokens + 1 - max(prompt.keys, default=1))
                self._last = (index.matched(prompt.keys, tokens), known)
                self._complete = index.complete_with(prompt.keys)
        return self._last

    def tell(self, prompt: KnownPrompt) -> None:
        """The prompt's own tokens are known now."""
        self.prompt = prompt
        self._version = -1
