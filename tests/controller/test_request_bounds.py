"""Bodies that hold more than any client means: refused by count, at a bounded cost, and without keeping what was parsed."""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from body_kit import no_model, parsed, refusal
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import all_of_type, known

from hmas.controller.core import body_bounds
from hmas.controller.core.body_bounds import (
    MESSAGES_MOST,
    PARTS_MOST,
    PROMPTS_MOST,
    SEQUENCES_MOST,
    STRUCTURE_VALUES,
    TOOLS_MOST,
    VALUES_MOST,
    BodyStructure,
    colons_by_piece,
    colons_of_body,
    colons_of_document,
)
from hmas.controller.core.errors import BodyError
from hmas.controller.core.request_body import CHAT, COMPLETIONS, Call, read_call
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.requests.parse import MAX_DEPTH, BodyParser
from hmas.engines.tokens import estimate_tokens, estimate_tokens_of

LISTS_MOST = VALUES_MOST // (STRUCTURE_VALUES + 1)
SIZE = 16 << 20
"""The default of `gateway.max_body_bytes`."""
HELD_MOST_S = 0.05
HELD_MOST_LOOPS = 10
"""The same bound on a slow machine, in loops of `loop_s`: the bodies here take up to seven on any."""


def chat(**fields: object) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields)


def message(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


TOO_MANY: dict[str, tuple[str, dict[str, Any], str]] = {
    "messages": (CHAT, {"messages": [message("a")] * (MESSAGES_MOST + 1)}, "messages has 8193 entries; allowed: at most 8192"),
    "parts": (CHAT, {"messages": [message(["a"] * PARTS_MOST), message(["a"])]}, "messages has 8193 content parts; allowed: at most 8192"),
    "tools": (CHAT, {"messages": [message("a")], "tools": [{}] * (TOOLS_MOST + 1)}, "tools has 1025 entries; allowed: at most 1024"),
    "prompts": (COMPLETIONS, {"prompt": ["a"] * (PROMPTS_MOST + 1)}, "prompt has 2049 entries; allowed: at most 2048"),
    "lists of ids": (COMPLETIONS, {"prompt": [[1]] * (PROMPTS_MOST + 1)}, "prompt has 2049 entries; allowed: at most 2048"),
}


@pytest.mark.parametrize("case", TOO_MANY)
def test_too_many_entries_are_refused_with_their_number_and_the_allowed_one(case: str):
    path, fields, says = TOO_MANY[case]
    error = refusal(path, orjson.dumps({"model": "m"} | fields))
    assert error is not None
    assert (error.status, error.code, error.param) == (400, "invalid_value", says.split()[0])
    assert str(error) == says


def test_as_many_as_are_allowed_are_read():
    parts = [message(["a"] * (PARTS_MOST // MESSAGES_MOST))] * MESSAGES_MOST
    assert parsed(CHAT, orjson.dumps({"model": "m", "messages": parts, "tools": [{}] * TOOLS_MOST})).turns == MESSAGES_MOST
    assert parsed(COMPLETIONS, orjson.dumps({"model": "m", "prompt": ["a"] * PROMPTS_MOST})).prompts == PROMPTS_MOST
    ids = parsed(COMPLETIONS, orjson.dumps({"model": "m", "prompt": [7] * 300_000}))
    assert (ids.prompt_tokens, ids.prompts) == (300_000, 1)


@pytest.mark.parametrize("prompt", [["a", 1], [[1], "a"], [1, True], [{}]])
def test_a_list_of_different_kinds_is_no_prompt(prompt: list[object]):
    error = refusal(COMPLETIONS, orjson.dumps({"model": "m", "prompt": prompt}))
    assert error is not None
    assert error.param == "prompt"


@pytest.mark.parametrize(
    ("most", "tokens"), [(None, 1000), (100, 200), (5000, 1000), (-1, 1000), (0, 1000), (True, 1000), ("x", 1000), ("9", 18)]
)
def test_a_prompt_is_as_long_as_the_engine_is_told_to_leave_it(most: object, tokens: int):
    call = read_call(COMPLETIONS, {"model": "m", "prompt": [[1] * 500, [2] * 500], "truncate_prompt_tokens": most})
    assert (call.prompt_tokens, call.counted) == (tokens, True)
    assert not read_call(CHAT, orjson.loads(chat())).counted


def test_whole_numbers_beyond_64_bits_are_shown_whole():
    for number, shown in ((2**65, str(2**65)), (-(2**70), str(-(2**70))), (10**300, "1" + "0" * 15)):
        error = refusal(CHAT, chat(priority=0).replace(b":0", b":%d" % number))
        assert error is not None
        assert f"priority is {shown}" in str(error)
        assert " (beyond 64 bits); allowed: a whole number from" in str(error)
        assert len(str(error)) < 200
    small = refusal(CHAT, chat(n=2.0**40))
    assert "n is 1099511627776.0; allowed" in str(small)


def test_answers_are_counted_over_all_prompts():
    call = read_call(COMPLETIONS, {"model": "m", "prompt": ["a"] * 8, "n": 4, "max_tokens": 10, "min_tokens": 2})
    assert (call.prompts, call.choices, call.sequences) == (8, 4, 32)
    assert (call.max_output_tokens, call.min_output_tokens) == (320, 64)
    assert read_call(COMPLETIONS, {"model": "m", "prompt": "a", "n": 2, "best_of": 5}).sequences == 5
    assert read_call(COMPLETIONS, {"model": "m", "prompt": [1, 2, 3]}).sequences == 1
    with pytest.raises(BodyError, match=f"n is 3; allowed: at most 2 with 2048 prompts, {SEQUENCES_MOST} answers in all"):
        read_call(COMPLETIONS, {"model": "m", "prompt": ["a"] * 2048, "n": 3})
    with pytest.raises(BodyError, match="best_of"):
        read_call(COMPLETIONS, {"model": "m", "prompt": "a", "best_of": 0})


# -- the same key twice -----------------------------------------------------------------------------------------------------

TWICE = {
    "at the top": (b'{"model":"m","messages":[{"role":"user","content":"a"}],"model":"x"}', "model"),
    "in a message": (b'{"model":"m","messages":[{"role":"user","content":"a","role":"system"}]}', "role"),
    "in a part": (b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}', "text"),
    "deep in a tool": (b'{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"a":{"b":1,"b":2}}]}', "b"),
    "once escaped": (b'{"model":"m","messages":[{"role":"user","content":"a"}],"n":1,"\\u006e":9}', "n"),
    "beside escaped colons": (b'{"model":"m","messages":[{"role":"user","content":"\\u003a\\u003A"}],"n":1,"n":9}', "n"),
    "with objects in both": (b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":{"y":1},"x":{"y":{}}}', "x"),
    "with spaces": (b'{ "model" : "m", "messages": [{"role": "user", "content": "a"}], "n"\n:\n1, "n" : 9 }', "n"),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_key_that_stands_twice_in_an_object_is_refused(case: str):
    body, key = TWICE[case]
    error = refusal(CHAT, body)
    assert error is not None
    assert (error.status, error.code, error.param) == (400, "repeated_key", key)
    assert repr(key) in str(error)


def test_a_repeated_key_in_a_large_body_is_refused_without_its_name():
    error = refusal(CHAT, chat()[:-1] + b',"text":"' + b"x" * 400_000 + b'","n":1,"n":2}')
    assert error is not None
    assert (error.code, error.param) == ("repeated_key", None)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "::", "\\u003a", "\\\\u003a:", '"model": "x"', "http://a:80/\\"])
@pytest.mark.parametrize("escape", [False, True])
def test_what_looks_like_a_key_inside_a_text_is_none(text: str, escape: bool):
    body = chat(messages=[message(text)] * 3, **{text: [text]})
    assert refusal(CHAT, with_escaped_colons(body) if escape else body) is None


JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(alphabet=':\\u03aA"{,}[] x', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet=':\\ua"x', max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_no_document_without_repeated_keys_is_taken_for_one(document: object, escaped: bool):
    body = with_escaped_colons(orjson.dumps(document)) if escaped else orjson.dumps(document)
    assert orjson.loads(body) == document
    assert colons_of_body(body) == colons_of_document(document) == sum(colons_by_piece(document))
    twice = b'{"k":%b,"k":%b}' % (body, body)
    assert colons_of_body(twice) > colons_of_document(orjson.loads(twice))


def with_escaped_colons(body: bytes) -> bytes:
    """The same document with every colon inside a text escaped."""
    found, inside, escapes = [], False, False
    for char in body:
        if char == 34 and not escapes:
            inside = not inside
        found.append(b"\\u003A" if char == 58 and inside else bytes([char]))
        escapes = char == 92 and not escapes
    return b"".join(found)


# -- cost -------------------------------------------------------------------------------------------------------------------


def best_s(work: Callable[[], object], times: int = 5) -> float:
    took = []
    for _ in range(times):
        begun_s = time.thread_time()
        work()
        took.append(time.thread_time() - begun_s)
    return min(took)


def test_an_ordinary_chat_costs_microseconds_to_check():
    body = chat(messages=[message('Say: "what" is this? ' * 8 + "word " * 300), message("word: " * 350)])
    assert 3500 < len(body) < 4500
    document = orjson.loads(body)
    rounds = 200
    took_s = best_s(lambda: [colons_of_body(body) == colons_of_document(document) for _ in range(rounds)]) / rounds
    assert took_s < 20e-6


def test_many_texts_cost_no_more_than_one_to_estimate():
    words = ["word"] * 8000
    assert estimate_tokens_of(words) == pytest.approx(estimate_tokens(" ".join(words)), rel=0.01)
    assert estimate_tokens_of([]) == 0
    assert estimate_tokens_of([" "]) == 1
    many = ["some more words, as they come: " * 20] * 2000
    assert estimate_tokens_of(many) == pytest.approx(estimate_tokens("".join(many)), rel=0.05)
    assert best_s(lambda: estimate_tokens_of(words)) < 20 * best_s(lambda: estimate_tokens(" ".join(words)))


def test_what_was_parsed_is_not_kept():
    body = chat(metadata={str(number): [number, "x"] for number in range(20_000)})
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call = parsed(CHAT, body)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert call.model == "m"
    # The document takes megabytes; the parser keeps some keys for the next one.
    assert kept < 300_000


def filled(head: bytes, piece: bytes, tail: bytes, number: int) -> bytes:
    return head + piece * (number - 1) + piece.rstrip(b",") + tail


def ends_of(head: bytes, piece: bytes, tail: bytes) -> bytes:
    """A body of 16 MB that repeats one piece."""
    return filled(head, piece, tail, (SIZE - len(head) - len(tail)) // len(piece))


PROMPT, CONTENT = b'{"model":"m","prompt":[', b'{"model":"m","messages":[{"role":"user","content":['
MESSAGES, OTHER = b'{"model":"m","messages":[', b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":['
KEYS = b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":{'
CALLS = b'{"model":"m","messages":[{"role":"assistant","tool_calls":['
HEAVY: dict[str, tuple[str, Callable[[], bytes]]] = {
    "prompts": (COMPLETIONS, lambda: ends_of(PROMPT, b'"a",', b"]}")),
    "parts": (CHAT, lambda: ends_of(CONTENT, b'"a",', b"]}]}")),
    "part objects": (CHAT, lambda: ends_of(CONTENT, b'{"type":"text","text":"a"},', b"]}]}")),
    "messages": (CHAT, lambda: ends_of(MESSAGES, b'{"role":"user","content":"a"},', b"]}")),
    "tools": (CHAT, lambda: ends_of(b'{"model":"m","messages":[],"tools":[', b"{},", b"]}")),
    "calls within the bounds": (CHAT, lambda: filled(CALLS, b'{"function":{"arguments":{}}},', b"]}]}", VALUES_MOST // 16 - 20)),
    "empty lists": (CHAT, lambda: ends_of(OTHER, b"[],", b"]}")),
    "a text": (COMPLETIONS, lambda: b'{"model":"m","prompt":"' + b"word " * (SIZE // 5 - 10) + b'"}'),
    "a text of escapes": (COMPLETIONS, lambda: b'{"model":"m","prompt":"u003a' + b"\\\\" * (SIZE // 2 - 20) + b'"}'),
    "lists within the bounds": (CHAT, lambda: filled(OTHER, b"[],", b"]}", LISTS_MOST - 20)),
    "objects within the bounds": (CHAT, lambda: filled(OTHER, b'{"a":1},', b"]}", LISTS_MOST // 2 - 40)),
    "texts within the bounds": (CHAT, lambda: filled(OTHER, b'"two words of text",', b"]}", VALUES_MOST - 60)),
    "keys within the bounds": (
        CHAT,
        lambda: KEYS + b",".join(b'"%0155d":1.5' % number for number in range(LISTS_MOST - 20)) + b"}}",
    ),
    "mixed within the bounds": (
        CHAT,
        lambda: (
            KEYS
            + b",".join(b'"%0155d":1.5' % number for number in range(LISTS_MOST // 2))
            + b'},"y":['
            + b",".join(['"中文中文中"'.encode()] * (VALUES_MOST // 2 - 60))
            + b"]}"
        ),
    ),
    "prompts of ids within the bounds": (COMPLETIONS, lambda: filled(PROMPT, b"12345,", b"]}", VALUES_MOST - 60)),
    "parts within the bounds": (CHAT, lambda: filled(CONTENT, b'"%b",' % (b"word " * 400), b"]}]}", PARTS_MOST)),
    "a prompt that is no text": (COMPLETIONS, lambda: filled(b'{"model":"m","prompt":{"a":[', b'{"a":[]},', b"]}}", LISTS_MOST // 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HEAVY)
async def test_no_body_holds_the_loop(case: str):
    path, make = HEAVY[case]
    body = make()
    assert len(body) <= SIZE
    # As in the gateway, which puts full collections off.
    gc.disable()
    try:
        held_s = min([await longest_turn_s(path, body) for _ in range(3)])
    finally:
        gc.enable()
    assert held_s < max(HELD_MOST_S, HELD_MOST_LOOPS * loop_s())


def loop_s() -> float:
    """How long this machine takes for 200,000 additions now."""
    begun_s, total = time.thread_time(), 0
    for number in range(200_000):
        total += number
    return time.thread_time() - begun_s


async def longest_turn_s(path: str, body: bytes) -> float:
    """The longest time between two turns of the loop while a body is parsed, as the processor counts it for this thread."""
    parser, longest_s = BodyParser(), 0.0
    last_s = time.thread_time()

    async def parse() -> None:
        with suppress(ApiError):
            await parser.call(path, body, no_model)

    task = asyncio.create_task(parse())
    while not task.done():
        await asyncio.sleep(0)
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    await task
    return longest_s


async def test_large_bodies_take_turns():
    path, body = CHAT, filled(OTHER, b"[],", b"]}", LISTS_MOST - 20)
    parser = BodyParser()
    calls = await asyncio.gather(*(parser.call(path, body, no_model) for _ in range(4)), return_exceptions=True)
    assert [call.model for call in all_of_type(Call, calls)] == ["m"] * 4
    one = asyncio.create_task(parser.call(path, body, no_model))
    await asyncio.sleep(0)
    one.cancel()
    assert (await parser.call(path, body, no_model)).model == "m"


async def test_a_replaced_priority_is_the_only_change_in_large_bodies_too():
    parser = BodyParser()
    for size in (10, 400_000):
        body = chat(priority=-9, custom={"k": [1.5, None], "text": "x" * size})
        assert orjson.loads(await parser.with_fields(body, {"priority": 3})) == orjson.loads(body) | {"priority": 3}


def test_deep_nesting_is_read_and_refused_where_it_has_to_be_written():
    deep = orjson.loads(b"[" * 400 + b"]" * 400)
    assert refusal(CHAT, b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":' + b"[" * 400 + b"]" * 400 + b"}") is None
    assert known(refusal(CHAT, b'{"x":' + b"[" * 400 + b'{"a":1,"a":2}' + b"]" * 400 + b"}")).code == "repeated_key"
    with pytest.raises(BodyError, match=r"tools is .* at most 254 levels deep"):
        read_call(CHAT, {"model": "m", "messages": [message("a")], "tools": [deep]})


async def test_a_field_is_written_into_a_body_as_deep_as_is_allowed():
    def nested(levels: int) -> bytes:
        return b'{"x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    assert orjson.loads(await BodyParser().with_fields(nested(MAX_DEPTH), {"model": "m"}))["model"] == "m"
    with pytest.raises(ApiError, match="too deeply for model and priority to be written into it; allowed: at most 254 levels"):
        await BodyParser().with_fields(nested(MAX_DEPTH + 1), {"model": "m", "priority": 0})


@given(st.lists(st.sampled_from([b"\\", b"\\u003a", b"\\\\u003A", b":", b"u003a", b"x", b"\\\\"]), max_size=12), st.integers(7, 15))
def test_pieces_do_not_split_an_escaped_character(parts: list[bytes], size: int):
    body = b'"' + b"".join(parts) + b'"'
    try:
        text = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_bounds, "PIECE_BYTES", size)
        structure = BodyStructure()
        while structure.count(body):
            pass
    assert structure.counted == len(body)
    assert structure.colons == colons_of_body(body) == text.count(":")
