"""Scores instances by how much of the prompt their prefix cache holds."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import ClassVar

from hmas.controller.core.placement import InstanceState, Routable
from hmas.controller.core.prompt_texts import BLOCK_CHARS, BLOCK_TOKENS, BLOCKS_MOST
from hmas.controller.core.types import EngineCached, Request
from hmas.controller.routing.prefix_index import PrefixIndex, Trust
from hmas.controller.routing.scorers.session import mean_load, under_cap

SMALL_TOKENS = 512
"""Prompts below this length count as so long: to compute a few tokens again is cheaper than an uneven load."""
FAVOURED = 8
"""Most instances that are scored whatever their load."""
RUNNING_LEAST, RUNNING_EACH = 16_384, 256
"""Requests that were sent and whose expected cached tokens are remembered until they end: at most so many, or so many for each instance if
that is more."""


class Prefix:
    """The share of the prompt that need not be computed there, unless `under_cap` forbids it.

    What is cached is known from the engine's own reports of its blocks where it sends them (`Request.cached`), else from `PrefixIndex`:
    what was sent there. The second also goes on where the first ends because the tokens of the rest of the prompt are not known.

    What the cache saves is lost again where more prompt tokens than elsewhere wait to be computed first, so these are subtracted.

    An engine that has reported fewer cached tokens with its answers than expected is trusted less; one that has never reported any may not
    report at all, and is believed to cache unless it says that it does not. Each of the two sources has a trust of its own.
    """

    name: ClassVar[str] = "prefix"
    summary: ClassVar[str] = "share of the prompt that it has cached, by its KV events or by what was sent to it"
    uses_blocks: ClassVar[bool] = True

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self._trust = Trust()
        self._trust_in_events = Trust()
        self._expected: OrderedDict[str, tuple[float, Trust]] = OrderedDict()
        # By instance: in how many requests with KV events that have not ended each block is.
        self._held: dict[str, dict[int, int]] = {}
        # Engines that say that they cache, and those that have reported cached tokens with an answer. By default vLLM and SGLang only
        # say so: what they do not report is then no miss.
        self._caches: set[str] = set()
        self._reports: set[str] = set()
        self._publishes: set[str] = set()
        self._found: Mapping[str, int] = {}
        self._for: object = None

    def score(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> list[float]:  # noqa: ARG002  the contract's
        """See `Scorer.score`."""
        request = entry.request
        found, cached = self._matched(request), request.cached
        if not found and (cached is None or not cached.look()[0]):
            return []
        each, most = _block_tokens(request), max(SMALL_TOKENS, request.prompt_tokens)
        mean = mean_load(instances)
        least = min([instance.prefill_tokens for instance in instances])
        scores: list[float] = []
        for instance in instances:
            name, caches = instance.name, instance.caches_prefixes
            if caches:
                self._caches.add(name)
            tokens, trust = self._by_source(request, name, found.get(name, 0) * each if caches is not False else 0.0)
            saved = tokens * trust.of(name) - (instance.prefill_tokens - least) if tokens else 0.0
            scores.append(saved / most if saved > 0.0 and under_cap(instance, mean) else 0.0)
        return scores

    def favours(self, entry: Routable) -> Iterable[str]:
        """See `Scorer.favours`: those with the most, by either source."""
        found = self._matched(entry.request)
        names = nlargest(FAVOURED, found, key=found.__getitem__)
        if entry.request.cached is not None:
            reported = entry.request.cached.look()[0]
            names += nlargest(FAVOURED, reported, key=reported.__getitem__)
        return names

    def cached(self, entry: Routable, instance: str) -> int | None:
        """See `Scorer.cached`: known of an engine that says that it caches or has reported tokens or blocks; never the whole prompt."""
        request = entry.request
        known = instance in self._caches or instance in self._reports
        if not request.blocks or not (known or self._shows_blocks(request.cached, instance)):
            return None
        # Of a request that was sent to it, and waits there, the index holds the prompt itself.
        tokens, trust = self._expected.get(request.id) or self._expects(request, instance)
        return min(int(tokens * trust.of(instance)), request.prompt_tokens - 1)

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002  likewise
        """The instance computes the prompt, and has it from now on."""
        request = entry.request
        if not request.blocks:
            return
        self._expected[request.id] = self._expects(request, instance)
        if len(self._expected) > max(RUNNING_LEAST, RUNNING_EACH * self.index.instances):
            # Of a request that is forgotten, the end is not noticed.
            self._expected.popitem(last=False)
            self._held.clear()
        self.index.sent(request.blocks, instance)
        if request.cached is not None:
            held = self._held.setdefault(instance, {})
            for block in request.blocks:
                held[block] = held.get(block, 0) + 1
        self._for = None

    def ended(self, request: Request, instance: str, cached_tokens: int | None) -> None:
        """Compares with the engine's report."""
        expected = self._expected.pop(request.id, None)
        if expected is not None and request.cached is not None and (held := self._held.get(instance)):
            for block in request.blocks:
                if (count := held.pop(block, 0)) > 1:
                    held[block] = count - 1
        if cached_tokens:
            self._reports.add(instance)
        if expected is not None and expected[0] > 0.0 and cached_tokens is not None and instance in self._reports:
            expected[1].reported(instance, expected[0], cached_tokens)

    def left(self, instance: str) -> None:
        """Its cache is empty when it comes back."""
        self.index.left(instance)
        self._trust.left(instance)
        self._trust_in_events.left(instance)
        self._caches.discard(instance)
        self._reports.discard(instance)
        self._publishes.discard(instance)
        self._held.pop(instance, None)
        self._for = None

    def _shows_blocks(self, cached: EngineCached | None, instance: str) -> bool:
        """Whether an instance reports its blocks: of this prompt, or all; where no tokens of the prompt are known, once it has done so."""
        if cached is None:
            return False
        if instance not in self._publishes and (instance in cached.look()[0] or instance in cached.complete):
            self._publishes.add(instance)
        return instance in self._publishes

    def _expects(self, request: Request, instance: str) -> tuple[float, Trust]:
        """Tokens of the prompt that an instance should have cached, and the trust in the source that says so."""
        tokens = self._matched(request).get(instance, 0) * _block_tokens(request)
        return self._by_source(request, instance, tokens)

    def _by_source(self, request: Request, instance: str, sent_tokens: float) -> tuple[float, Trust]:
        """Tokens of the prompt that an instance has, where `sent_tokens` were sent there, and the trust in the source that says so.

        Of what it reports not to have, it computes what it has been sent for requests that have not ended.
        """
        cached = request.cached
        if cached is None:
            return sent_tokens, self._trust
        reported, known = cached.look()
        tokens = float(reported.get(instance, 0))
        if tokens >= sent_tokens:
            return tokens, self._trust_in_events
        if tokens < known and instance in cached.complete:
            held = self._held_of(request.blocks, instance) * _block_tokens(request)
            return (held, self._trust) if held > tokens else (tokens, self._trust_in_events)
        return sent_tokens, self._trust

    def _held_of(self, blocks: Sequence[int], instance: str) -> int:
        """How many leading blocks are of a request that the instance has not ended. One that holds a block holds all before it."""
        held = self._held.get(instance)
        return bisect_left(blocks, True, key=lambda block: block not in held) if held else 0

    def _matched(self, request: Request) -> Mapping[str, int]:
        """Looked up once for a ranking, in which `favours` and `score` may both ask."""
        if not request.blocks:
            return {}
        if self._for is not request:
            self._for, self._found = request, self.index.matched(request.blocks)
        return self._found


def _block_tokens(request: Request) -> float:
    """About the tokens of one block. The prompt ends with a piece that is no whole block: half of one on average.

    Of a prompt with as many blocks as are hashed at most, the rest is in none of them. Pictures count in the prompt's length and are in no
    block, so a block has no more tokens than characters.
    """
    each = min(float(BLOCK_CHARS), request.prompt_tokens / (len(request.blocks) + 0.5))
    return each if len(request.blocks) < BLOCKS_MOST else min(each, float(BLOCK_TOKENS))
