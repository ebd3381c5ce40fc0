"""What the approximate index of prefix caches knows, forgets, and how engines' reports and load bound it."""

from collections import Counter

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_kit import State, chosen, entry

from hmas.controller.core.request_body import CHAT, COMPLETIONS, read_call
from hmas.controller.routing import prefix_index
from hmas.controller.routing.prefix_index import IDS_MOST, PrefixIndex, Trust
from hmas.controller.routing.registry import make_router
from hmas.controller.routing.scorers.prefix import Prefix

prompts = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), st.sampled_from("abc")), max_size=30)


def chain(pieces: list[int]) -> tuple[int, ...]:
    """Hashes that stand for a piece and all before it."""
    return tuple(hash(tuple(pieces[: place + 1])) for place in range(len(pieces)))


@given(sent=prompts, asked=st.lists(st.integers(0, 3), max_size=6))
def test_it_finds_what_a_comparison_of_all_prompts_finds(sent, asked):
    index = PrefixIndex()
    for pieces, name in sent:
        index.sent(chain(pieces), name)
    expected: dict[str, int] = {}
    for pieces, name in sent:
        common = 0
        while common < min(len(pieces), len(asked)) and pieces[common] == asked[common]:
            common += 1
        expected[name] = max(common, expected.get(name, 0))
    assert index.matched(chain(asked)) == {name: count for name, count in expected.items() if count}


def test_it_remembers_as_much_for_each_of_many_instances(monkeypatch):
    for bound, blocks in (("LEAST", 40), ("EACH", 10), ("MOST", 80)):
        monkeypatch.setattr(prefix_index, f"BLOCKS_{bound}", blocks)
    index = PrefixIndex()
    kept: list[int] = []
    for instances in (2, 6, 20):
        for number in range(instances):
            index.sent((), f"engine-{number}")
        for block in range(1000):
            index.sent((1000 * instances + block,), "engine-0")
        kept.append(sum(bool(index.matched((1000 * instances + block,))) for block in range(1000)))
    assert all(most // 2 <= found <= most for found, most in zip(kept, (40, 60, 80), strict=True))
    assert len(index) <= 80


def test_it_is_bounded_and_keeps_what_was_used_last():
    index = PrefixIndex(blocks_most=1000)
    hot = tuple(range(-100, 0))
    for number in range(200):
        index.sent(hot, "a")
        index.sent(tuple(range(1000 * number, 1000 * number + 50)), "b")
        assert len(index) <= 1000
    assert index.matched(hot) == {"a": 100}
    assert index.matched((199_000,)) == {"b": 1}
    assert index.matched((0,)) == {}


def test_an_instance_that_left_has_nothing_when_it_comes_back():
    index = PrefixIndex()
    index.sent((1, 2), "a")
    index.sent((1,), "b")
    index.left("a")
    assert index.matched((1, 2)) == {"b": 1}
    index.sent((1,), "a")
    assert index.matched((1, 2)) == {"a": 1, "b": 1}
    for _ in range(IDS_MOST):
        index.left("a")
        index.sent((1,), "a")
    assert index.matched((1, 2)) == {"a": 1}


def test_reports_below_what_was_expected_lower_the_trust_and_true_ones_restore_it():
    trust = Trust()
    assert trust.of("a") == 1.0
    trust.reported("a", 100.0, 0)
    assert trust.of("a") == 1.0, "too little to judge by"
    for _ in range(30):
        trust.reported("a", 1000.0, 250)
    assert trust.of("a") == pytest.approx(0.25, abs=0.02)
    for _ in range(60):
        trust.reported("a", 1000.0, 5000)
    assert trust.of("a") == pytest.approx(1.0, abs=0.02)
    trust.left("a")
    assert trust.of("a") == 1.0


def test_a_prompt_goes_where_its_beginning_is_unless_that_instance_is_much_busier():
    router = make_router("prefix-aware")
    states = [State("a", n_run=100, in_flight=11), State("b", n_run=100, in_flight=10), State("c", n_run=100, in_flight=10)]
    blocks = tuple(range(60))
    chosen(router, states[0], one=entry(4000, blocks=blocks))
    assert chosen(router, *states, one=entry(4000, blocks=(*blocks[:40], 99))) == "a"
    assert chosen(router, *states, one=entry(4000, blocks=(98, *blocks))) == "b", "another beginning"
    states[0].in_flight = 30
    assert chosen(router, *states, one=entry(4000, blocks=blocks)) == "b"


def test_a_short_prompt_is_not_worth_an_uneven_load():
    router = make_router("default")
    states = [State("a", in_flight=2), State("b", in_flight=1)]
    chosen(router, states[0], one=entry(70, blocks=(1,)))
    assert chosen(router, *states, one=entry(70, blocks=(1,))) == "b"


@pytest.mark.parametrize(("name", "most", "used"), [("default", 1.1, 4), ("prefix-aware", 1.5, 3)])
def test_a_prefix_that_all_requests_share_does_not_pile_the_load_on_one_instance(name, most, used):
    """Each request lasts for 40 arrivals; no instance gets more than `most` times its share."""
    router = make_router(name)
    states = [State(f"i{number}", n_run=32) for number in range(4)]
    by_name = {state.name: state for state in states}
    running: list[str] = []
    taken: Counter[str] = Counter()
    for number in range(2000):
        place = chosen(router, *states, one=entry(2000, blocks=(*range(28), 1000 + number)))
        taken[place] += 1
        running.append(place)
        by_name[place].in_flight += 1
        if len(running) > 40:
            by_name[running.pop(0)].in_flight -= 1
    assert len(taken) >= used
    assert max(taken.values()) <= most * 2000 / 4


def test_an_engine_that_reports_no_hits_after_it_has_shown_that_it_reports_is_not_believed():
    scorer = Prefix()
    first = entry(4000, blocks=tuple(range(60)))
    scorer.sent(first, "a", 0.0)
    scorer.ended(first.request, "a", 100)
    for _ in range(40):
        again = entry(4000, blocks=tuple(range(60)))
        scorer.sent(again, "a", 0.0)
        scorer.ended(again.request, "a", 0)
    assert scorer.score(entry(4000, blocks=tuple(range(60))), [State("a"), State("b")], 0.0)[0] < 0.05


@pytest.mark.parametrize("says", [None, True])
def test_an_engine_that_never_reports_is_believed_to_cache(says: bool | None):
    scorer, states = Prefix(), [State("a", caches_prefixes=says), State("b", caches_prefixes=says)]
    for cached in (None, 0):
        for _ in range(40):
            again = entry(4000, blocks=tuple(range(60)))
            scorer.score(again, states, 0.0)
            scorer.sent(again, "a", 0.0)
            scorer.ended(again.request, "a", cached)
    assert scorer.score(entry(4000, blocks=tuple(range(60))), states, 0.0) == [pytest.approx(60 / 60.5), 0.0]


def test_what_an_engine_says_of_its_cache_counts_before_its_first_hit():
    scorer = Prefix()
    one = entry(4000, blocks=tuple(range(60)))
    states = [State("says", caches_prefixes=True), State("none", caches_prefixes=False), State("silent")]
    for state in states:
        scorer.sent(one, state.name, 0.0)
    assert scorer.score(one, states, 0.0) == [pytest.approx(60 / 60.5), 0.0, pytest.approx(60 / 60.5)]
    again = entry(4000, blocks=tuple(range(60)))
    assert [scorer.cached(again, state.name) for state in states] == [pytest.approx(60 / 60.5 * 4000, abs=1), None, None]


def blocks(*texts: str, salt: str | None = "t", **fields: object) -> tuple[int, ...]:
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return read_call(CHAT, {"model": "m", "messages": messages, **fields}, block_salt=salt).blocks


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))


def test_the_blocks_of_a_body_are_those_of_its_texts_in_order_apart_by_tenant_and_model():
    system, question = "You are a bank. " * 100, "What is my balance? " * 100
    first = blocks(system, question)
    assert len(first) == (len(system) + len(question)) // 256
    assert common(first, blocks(system, question, "An answer. " * 50, "And now?")) == len(first) - (len(question) % 256 == 0)
    assert common(first, blocks(system, "Something else " * 100)) == len(system) // 256
    assert common(first, blocks(system, question, salt="another")) == 0
    assert common(first, blocks(system, question, cache_salt="x")) == 0
    assert blocks(system, question, salt=None) == ()
    assert blocks("short", "one") == ()
    parts = [{"role": "system", "content": [{"type": "text", "text": system}]}, {"role": "user", "content": question}]
    assert read_call(CHAT, {"model": "m", "messages": parts}, block_salt="t").blocks == first


def test_requests_with_the_same_tools_share_their_blocks_behind_the_system_prompt():
    system, question, other = "You are a bank. " * 50, "What is my balance? " * 100, "Something else " * 100
    tools = [{"type": "function", "function": {"name": "f", "description": "It transfers money. " * 100}}]
    text = len(orjson.dumps(tools))
    first = blocks(system, question, tools=tools)
    assert common(first, blocks(system, other, tools=tools)) == (len(system) + text) // 256
    assert common(first, blocks(system, question)) == common(first, blocks(system, question, tools=tools[:0])) == len(system) // 256

    def alone(text: str) -> tuple[int, ...]:
        return read_call(CHAT, {"model": "m", "messages": [{"role": "user", "content": text}], "tools": tools}, block_salt="t").blocks

    assert common(alone(question), alone(other)) == text // 256


def test_the_blocks_of_a_long_prompt_are_bounded():
    assert len(blocks("x" * 3_000_000, "y")) == 1024


def test_a_prompt_of_token_ids_has_blocks_of_64():
    def of(prompt: object) -> tuple[int, ...]:
        return read_call(COMPLETIONS, {"model": "m", "prompt": prompt}, block_salt="t").blocks

    ids = list(range(200))
    assert len(of(ids)) == 3
    assert common(of(ids), of([*ids[:130], 7, *ids[131:]])) == 2
    assert of([ids, ids]) == (), "several prompts have no one beginning"
    assert len(of("some text " * 100)) == 3


def test_more_prompts_to_compute_first_than_the_cache_saves_are_no_advantage():
    scorer = Prefix()
    scorer.sent(entry(4000, blocks=tuple(range(62))), "a", 0.0)
    for ahead, score in ((0, 62 / 62.5), (2000, 62 / 62.5 - 0.5), (5000, 0.0)):
        states = [State("a", prefill_tokens=500 + ahead), State("b", prefill_tokens=500)]
        assert scorer.score(entry(4000, blocks=tuple(range(62))), states, 0.0) == [pytest.approx(score), 0.0]
