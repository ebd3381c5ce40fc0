"""Which block keys the beginning of a text stands for, and the scorer that asks engines' own reports first."""

from collections.abc import Mapping

import msgspec
import pytest
from kv_events_kit import BLOCK, event_of, removed, stored
from routing_kit import State, chosen, entry
from typing_kit import known

from hmas.controller.core.types import Request
from hmas.controller.routing.exact_index import ExactIndex
from hmas.controller.routing.known_prompts import CachedOf, KnownPrompt, KnownPrompts
from hmas.controller.routing.registry import make_router
from hmas.controller.routing.scorers.prefix import Prefix
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

SIZES = (BLOCK,)


def text(*pieces: int) -> tuple[int, ...]:
    """Hashes of a text's pieces, each of all before it too."""
    return tuple(hash(pieces[: end + 1]) for end in range(len(pieces)))


def ids(*pieces: int, each: int = 64) -> list[int]:
    return [1000 * piece + place for piece in pieces for place in range(each)]


def tokens_of(prompts: KnownPrompts, blocks: tuple[int, ...]) -> int:
    return known(prompts.find(blocks))[1]


def test_a_text_that_begins_like_a_known_one_has_its_first_tokens():
    prompts = KnownPrompts()
    assert prompts.find(text(1, 2)) is None
    prompt = KnownPrompt(ids(1, 2, 3, 4, 5), SIZES, "")
    prompts.learn(text(1, 2, 3, 4, 5), prompt)
    assert prompts.find(text(1, 2, 3, 4, 5, 6)) == (prompt, pytest.approx(320, abs=40))
    found, tokens = known(prompts.find(text(1, 2, 9)))
    assert (found, tokens) == (prompt, pytest.approx(128, abs=20))
    assert prompts.depth(text(1, 2, 9)) == 2
    assert prompts.find(text(9, 1)) is None


def test_a_second_prompt_shows_how_many_tokens_the_shared_text_has():
    """A system prompt in words, then a question in a script of which each piece is five times as many tokens."""
    prompts = KnownPrompts()
    first = KnownPrompt([*ids(1, 2), *ids(3, 4, each=320)], SIZES, "")
    prompts.learn(text(1, 2, 3, 4), first)
    assert tokens_of(prompts, text(1, 2, 8)) > 300, "in proportion to the text"
    second = KnownPrompt([*ids(1, 2), *ids(5, 6, each=320)], SIZES, "")
    prompts.learn(text(1, 2, 5, 6), second)
    assert prompts.find(text(1, 2, 8)) == (second, 128)
    assert tokens_of(prompts, text(1, 8)) <= 128
    prompts.learn(text(1, 2, 5, 6, 7), KnownPrompt([*ids(1, 2), *ids(5, 6, each=320), *ids(7)], SIZES, ""))
    assert tokens_of(prompts, text(1, 2, 5, 6, 8)) == 768
    assert tokens_of(prompts, text(1, 2, 8)) == 128


def test_memory_is_bounded_by_pieces_and_by_keys():
    prompts = KnownPrompts(blocks_most=100, keys_most=1000)
    for number in range(60):
        prompts.learn(text(99, number, *range(10)), KnownPrompt(ids(99, number, *range(10), each=16), SIZES, ""))
        assert len(prompts) <= 150
    assert tokens_of(prompts, text(99, 59)) > 0
    assert tokens_of(prompts, text(99, 0, 0)) == tokens_of(prompts, text(99)), "only what all share"
    long = KnownPrompts(blocks_most=10_000, keys_most=1000)
    for number in range(50):
        long.learn(text(1, number), KnownPrompt(ids(1, number, each=4000), SIZES, ""))
    assert len(long) <= 8


def asked(index: ExactIndex, prompts: KnownPrompts, *pieces: int) -> QueueEntry:
    tokens = 64 * len(pieces)
    plain = entry(tokens)
    request = plain.request
    one = Request(
        id=request.id,
        tenant="t",
        model="m",
        arrival_s=0.0,
        prompt_tokens=tokens,
        blocks=text(*pieces),
        cached=CachedOf(index, prompts, text(*pieces)),
    )
    return QueueEntry(request=one, estimates=plain.estimates, seq=plain.seq)


def filled(*pieces: int) -> tuple[ExactIndex, KnownPrompts, Mapping[str, list[int]]]:
    index, prompts = ExactIndex(), KnownPrompts()
    tokens = ids(*pieces)
    index.stored("a", event_of(stored(tokens)))
    index.complete = {"a", "b"}
    prompts.learn(text(*pieces), KnownPrompt(tokens, SIZES, ""))
    return index, prompts, {"tokens": tokens}


PIECES = tuple(range(1, 21))


def test_what_an_engine_reports_counts_and_not_what_was_sent():
    index, prompts, _ = filled(*PIECES)
    scorer = Prefix()
    states = [State("a"), State("b")]
    first = asked(index, prompts, *PIECES)
    scorer.sent(first, "b", 0.0)
    scorer.ended(first.request, "b", None)
    one = asked(index, prompts, *PIECES)
    assert scorer.score(one, states, 0.0) == [pytest.approx(1.0, abs=0.1), 0.0], "b has evicted it, or never got it"
    index.complete.clear()
    assert scorer.score(one, states, 0.0)[1] == pytest.approx(0.95, abs=0.1), "b may have more than is known"
    index.complete.update("ab")
    index.clear("a")
    assert scorer.score(asked(index, prompts, *PIECES), states, 0.0) == [0.0, 0.0]


def test_what_an_engine_still_computes_counts_until_all_requests_with_it_have_ended():
    index, prompts, _ = filled(*PIECES)
    scorer = Prefix()
    states = [State("a"), State("b")]
    first, second = (asked(index, prompts, *PIECES[:count]) for count in (20, 10))
    for one in (first, second):
        scorer.sent(one, "b", 0.0)
    assert scorer.score(asked(index, prompts, *PIECES), states, 0.0)[1] == pytest.approx(1.0, abs=0.1)
    scorer.ended(first.request, "b", None)
    scorer.ended(first.request, "b", None)
    # The tokens of another one, such as a long body, were never asked for.
    unknown = msgspec.structs.replace(first.request, id="another", cached=None)
    scorer.sent(QueueEntry(request=unknown, estimates=first.estimates, seq=0), "b", 0.0)
    scorer.ended(unknown, "b", None)
    assert scorer.score(asked(index, prompts, *PIECES), states, 0.0)[1] == pytest.approx(0.5, abs=0.1), "the second has half of it"
    scorer.ended(second.request, "b", None)
    assert scorer.score(asked(index, prompts, *PIECES), states, 0.0)[1] == 0.0


def test_where_the_prompts_tokens_are_not_known_what_was_sent_counts():
    index, prompts, _ = filled(*PIECES)
    scorer = Prefix()
    states = [State("a"), State("b")]
    scorer.sent(asked(index, prompts, *PIECES, 31, 32, 33), "a", 0.0)
    grown = asked(index, prompts, *PIECES, 31, 32, 33)
    assert scorer.score(grown, states, 0.0)[0] == pytest.approx(1.0, abs=0.05), "the rest, too"
    scorer.sent(asked(index, prompts, 41, 42, 43, 44, 45, 46, 47, 48, 49), "b", 0.0)
    other = asked(index, prompts, 41, 42, 43, 44, 45, 46, 47, 48, 49)
    assert scorer.score(other, states, 0.0) == [0.0, pytest.approx(1.0, abs=0.1)]


def test_own_tokens_that_come_while_the_request_waits_count_at_once():
    index, prompts = ExactIndex(), KnownPrompts()
    index.stored("a", event_of(stored(ids(*PIECES))))
    index.complete = {"a", "b"}
    one = asked(index, prompts, *PIECES)
    router = make_router("prefix-aware")
    assert one.request.cached is not None
    assert one.request.cached.look() == ({}, 0)
    assert chosen(router, State("b"), State("a"), one=one) == "b"
    assert isinstance(one.request.cached, CachedOf)
    one.request.cached.tell(KnownPrompt(ids(*PIECES), SIZES, ""))
    assert one.request.cached.look() == ({"a": 1280}, 1280 + 1 - BLOCK)
    assert chosen(router, State("b"), State("a"), one=one) == "a"


def test_of_an_engine_whose_block_size_came_later_nothing_is_known():
    index, prompts, _ = filled(*PIECES)
    index.stored("c", event_of(stored(ids(*PIECES), size=64)))
    index.complete = {"a", "b", "c"}
    cached = known(asked(index, prompts, *PIECES).request.cached)
    assert cached.look()[0] == {"a": 1248}, "the text has a piece of unknown length behind these"
    assert cached.complete == {"a", "b"}, "b has no blocks"


def test_an_engine_whose_events_promise_more_than_it_then_reports_is_trusted_less():
    index, prompts, _ = filled(*PIECES)
    scorer = Prefix()
    states = [State("a"), State("b")]
    for cached in (600, *[0] * 40):
        one = asked(index, prompts, *PIECES)
        scorer.sent(one, "a", 0.0)
        scorer.ended(one.request, "a", cached)
    assert scorer.score(asked(index, prompts, *PIECES), states, 0.0)[0] < 0.1
    scorer.left("a")
    assert scorer.score(asked(index, prompts, *PIECES), states, 0.0)[0] > 0.9


def test_evictions_show_at_once():
    index, prompts, kept = filled(*PIECES)
    one = asked(index, prompts, *PIECES)
    tokens = kept["tokens"]
    index.removed("a", event_of(removed(tokens, list(range(656, 1281, BLOCK)))).hashes)
    assert known(one.request.cached).look()[0] == {"a": 640}
