"""The exact index of prefix caches: what it finds, how it forgets, and its memory."""

import tracemalloc
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_events_kit import BLOCK, event_of, removed, stored

from hmas.controller.routing.block_table import BlockTable
from hmas.controller.routing.exact_index import ExactIndex, block_keys
from hmas.engines.kv_events import KvEvent

operations = st.lists(st.tuples(st.sampled_from("gpr"), st.integers(1, 40), st.integers(1, 2**64 - 1)), max_size=200)


@given(operations)
def test_a_table_is_a_dict(operations):
    table = BlockTable(2)
    expected: dict[int, int] = {}
    for what, number, value in operations:
        key = number * (0x9E3779B97F4A7C15 >> 40)
        if what == "g":
            assert table.get(key) == expected.get(key, 0)
        elif what == "p":
            assert table.put(key, value) == expected.get(key, 0)
            expected[key] = value
        else:
            assert table.pop(key) == expected.pop(key, 0)
        assert len(table) == len(expected)
    assert sorted(table.values()) == sorted(expected.values())
    assert all(table.get(key) == value for key, value in expected.items())


def prompt(*pieces: int, size: int = BLOCK) -> list[int]:
    return [1000 * piece + place for piece in pieces for place in range(size)]


def look(index: ExactIndex, tokens: list[int], size: int = BLOCK) -> dict[str, int]:
    return index.matched({size: block_keys(tokens, size)}, len(tokens))


prompts = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.sampled_from("abc"), st.booleans()), max_size=25)


@given(done=prompts, asked=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_it_finds_what_the_engines_hold(done, asked):
    """Against sets of prefixes: blocks are stored from the beginning on and evicted from the end."""
    index = ExactIndex()
    held: dict[str, set[tuple[int, ...]]] = {name: set() for name in "abc"}
    for pieces, name, keeps in done:
        tokens = prompt(*pieces)
        if keeps:
            assert index.stored(name, event_of(stored(tokens)))
            held[name] |= {tuple(pieces[: end + 1]) for end in range(len(pieces))}
        else:
            gone = [one for one in held[name] if one[: len(pieces)] == tuple(pieces)]
            for one in gone:
                index.removed(name, event_of(removed(prompt(*one), [BLOCK * len(one)])).hashes)
            held[name] -= set(gone)
    expected = {
        name: BLOCK * max((depth for depth in range(1, len(asked) + 1) if tuple(asked[:depth]) in prefixes), default=0)
        for name, prefixes in held.items()
    }
    assert look(index, prompt(*asked)) == {name: tokens for name, tokens in expected.items() if tokens}
    assert {name: index.blocks_of(name) for name in "abc"} == {name: len(prefixes) for name, prefixes in held.items()}


def test_blocks_go_on_from_a_known_parent_only():
    index = ExactIndex()
    tokens = prompt(1, 2, 3)
    assert index.stored("a", event_of(stored(tokens, start=BLOCK)))
    assert look(index, tokens) == {}, "what came before it is not known"
    index.stored("a", event_of(stored(tokens[:BLOCK])))
    index.stored("a", event_of(stored(tokens, start=BLOCK)))
    assert look(index, [*tokens, 5]) == {"a": 48}
    assert look(index, [*tokens[:20], 5, *tokens[21:]]) == {"a": 16}
    index.removed("b", (1, 2))
    index.removed("a", (1, 2))
    assert look(index, tokens) == {"a": 48}


def test_adapters_and_block_sizes_share_nothing():
    index = ExactIndex()
    tokens = prompt(1, 2, 3, 4, 5, 6, 7, 8)
    index.stored("plain", event_of(stored(tokens)))
    index.stored("sql", event_of(stored(tokens, lora_name="sql")))
    index.stored("large", event_of(stored(tokens, size=64)))
    index.stored("large", event_of(stored(prompt(9), size=16)))
    assert index.sizes == (16, 64)
    assert look(index, tokens) == {"plain": 128}
    assert index.matched({16: block_keys(tokens, 16, "sql")}, 128) == {"sql": 128}
    both = {size: block_keys(tokens, size) for size in index.sizes}
    assert index.matched(both, 128) == {"plain": 128, "large": 128}
    assert index.matched(both, 127) == {"plain": 112, "large": 64}, "only so much of the prompt counts"
    assert look(index, prompt(9)) == {}


def test_a_hash_that_is_used_again_for_other_tokens_stands_for_the_newer_ones():
    index = ExactIndex()
    first, second = event_of(stored(prompt(1))), event_of(stored(prompt(2)))
    index.stored("a", first)
    index.stored("a", second._replace(hashes=first.hashes))
    assert (look(index, prompt(1)), look(index, prompt(2)), index.blocks_of("a")) == ({}, {"a": 16}, 1)


def test_an_instance_that_is_cleared_has_nothing_at_once_and_its_memory_is_freed_bit_by_bit():
    index = ExactIndex()
    shared = prompt(*range(700))
    for name in "abc":
        index.stored(name, event_of(stored(shared[: BLOCK * 200])))
    index.stored("a", event_of(stored(prompt(*range(1000, 1100)))))
    index.complete = {"a", "b"}
    index.clear("a")
    assert (look(index, shared[:64]), index.complete) == ({"b": 64, "c": 64}, {"b"})
    index.stored("a", event_of(stored(shared[:32])))
    assert look(index, shared[:64]) == {"a": 32, "b": 64, "c": 64}
    while index.sweep():
        pass
    assert look(index, shared[:64]) == {"a": 32, "b": 64, "c": 64}
    assert len(index) == 2 + 200 + 200
    for name in "abc":
        index.clear(name)
    while index.sweep():
        pass
    assert (len(index), look(index, shared)) == (0, {})
    for _ in range(50):
        index.stored("a", event_of(stored(shared[:32])))
        index.clear("a")
        while index.sweep():
            pass
    assert index.size_bytes() < 200_000, "numbers are used again, so sets of instances stay small"


def test_more_blocks_than_allowed_are_refused():
    index = ExactIndex(blocks_most=10, instance_blocks_most=6)
    assert index.stored("a", event_of(stored(prompt(1, 2, 3, 4, 5))))
    assert not index.stored("a", event_of(stored(prompt(6, 7))))
    assert index.stored("b", event_of(stored(prompt(1, 2, 3, 4, 5))))
    assert not index.stored("c", event_of(stored(prompt(1))))
    assert look(index, prompt(1)) == {"a": 16, "b": 16}


def test_a_thousand_instances_with_the_same_beginning():
    index = ExactIndex()
    tokens = prompt(*range(20))
    for number in range(1000):
        index.stored(f"i{number}", event_of(stored(tokens[: BLOCK * (1 + number % 20)])))
    found = look(index, tokens)
    assert len(found) == 1000
    assert (found["i0"], found["i999"]) == (16, 320)


@pytest.mark.slow
@pytest.mark.parametrize(("sharing", "most"), [(1, 95), (2, 95)])
def test_memory_of_a_block_is_bounded(sharing, most):
    """Up to 30,000 blocks: the tables double as they grow, so the share of free slots is the same at ten million."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 50_000, 16 * 100).tolist()
    data = array("I", tokens).tobytes()
    tracemalloc.start()
    index = ExactIndex()
    most_of_all = 0.0
    for number in range(300 // sharing):
        start = KvEvent((1 + 2 * number,), tokens=number.to_bytes(8, "big") * 8, block_tokens=16)
        hashes = tuple((1 << 20) * (number + 1) + 0x9E3779B97F4A7C15 * place % (1 << 63) for place in range(1, 101))
        for copy in range(sharing):
            name = f"i{(number + copy) % 10}"
            index.stored(name, start)
            index.stored(name, KvEvent(hashes, tokens=data, block_tokens=16, parent=start.hashes[0]))
        if len(index) > 12_500 and number % 25 == 0:
            most_of_all = max(most_of_all, tracemalloc.get_traced_memory()[0] / len(index))
    tracemalloc.stop()
    assert len(index) > 29_000
    assert most_of_all < most
