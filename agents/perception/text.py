"""A prompt's text as numbers: what the gateway shows of it, words, and the features that models look up. Pure; no dependency but numpy.

Words are lower-cased runs of letters, single digits, single ideographs and syllables (languages without spaces), punctuation marks and line
breaks. Known words have a number of their own; every other one shares a bucket by its CRC-32, so no language or spelling is lost. Pairs of
neighbours are hashed on top of that, which gives the model what a bag of bigrams gives a linear classifier.
"""

import re
from collections.abc import Mapping
from zlib import crc32

import numpy as np
import numpy.typing as npt

from hmas.controller.core.prompt_texts import EXCERPT_HEAD, EXCERPT_TAIL

HEAD_WORDS, TAIL_WORDS = 56, 40
"""Words of the beginning and of the end that the model reads in order."""
WORDS = HEAD_WORDS + TAIL_WORDS
EDGE_WORDS = 24
"""Words at either end whose pairs have a bucket of their own: commands stand there."""
BAG_LIMIT = 1600
"""Features of one prompt in the bag; an excerpt of 2,000 characters stays below it unless it is made of punctuation."""

Ids = npt.NDArray[np.int64]

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\u0e00-\u0e7f"
_WORD = re.compile(rf"[^\W\d_{_CJK}]+(?:['’][^\W\d_{_CJK}]+)?|[0-9]|[{_CJK}]|\n+|[^\w\s]|\w")
_A, _B = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B)


def excerpt_of(text: str) -> str:
    """Head and tail of a prompt, as the gateway cuts it."""
    if len(text) <= EXCERPT_HEAD + EXCERPT_TAIL:
        return text
    return f"{text[:EXCERPT_HEAD]}\n...\n{text[-EXCERPT_TAIL:]}"


def words_of(text: str) -> list[str]:
    """Words of an excerpt, in order."""
    return _WORD.findall(text.lower())


class Vocabulary:
    """Numbers for words and for pairs of words.

    Attributes:
        size: Numbers for words: 0 is padding, then the known words, then buckets for all others.
        bag_size: Numbers for features of the bag: 0 is padding, then words, then pairs.
    """

    def __init__(self, known: Mapping[str, int], *, unknown: int, pairs: int) -> None:
        """Takes the known words with their numbers from 1, and how many buckets unknown words and pairs have."""
        self._known = dict(known)
        self._first_unknown = len(self._known) + 1
        self._unknown = unknown
        self._pairs = np.uint32(pairs)
        self.size = self._first_unknown + unknown
        self.bag_size = self.size + pairs

    def word_ids(self, text: str) -> Ids:
        """Numbers of an excerpt's words, in order."""
        known, first, buckets = self._known, self._first_unknown, self._unknown
        numbers = [
            # Lone surrogates are no UTF-8, yet they come in JSON.
            known.get(word) or first + crc32(word.encode("utf-8", "surrogatepass")) % buckets
            for word in words_of(text)
        ]
        return np.array(numbers, dtype=np.int64)

    def sequence(self, ids: Ids) -> Ids:
        """The words that the model reads in order: the beginning and the end."""
        if len(ids) <= WORDS:
            return ids
        return np.concatenate([ids[:HEAD_WORDS], ids[-TAIL_WORDS:]])

    def bag(self, ids: Ids) -> Ids:
        """Features of the bag: every word, every pair, and once more the pairs at either end."""
        if len(ids) < 2:
            return ids
        left, right = ids[:-1].astype(np.uint32), ids[1:].astype(np.uint32)
        mixed = left * _A ^ right * _B
        edge = mixed if len(mixed) <= EDGE_WORDS else mixed[:EDGE_WORDS]
        close = mixed[-EDGE_WORDS:]
        hashes = np.concatenate([mixed, edge * _B + np.uint32(1), close * _B + np.uint32(2)])
        # The low bits of a product depend on low bits only; the high ones are folded in.
        hashes ^= hashes >> np.uint32(15)
        pairs = (hashes % self._pairs).astype(np.int64) + self.size
        return np.concatenate([ids, pairs])[:BAG_LIMIT]
