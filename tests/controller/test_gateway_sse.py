"""Streams are cut at event boundaries, counted, and passed on byte for byte."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.gateway.requests.sse import MAX_EVENT_BYTES, EventScanner, usage_figures
from hmas.engines.errors import AnswerTooLarge, EngineProtocolError


def event(document: Any, *, spaced: bool = False, gap: bytes = b"\n\n") -> bytes:
    return b"data: " + (json.dumps(document).encode() if spaced else orjson.dumps(document)) + gap


def delta(content: str | None = None, *, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    inner = {} if content is None else {"content": content}
    return {"id": "x", "choices": [{"index": 0, "delta": inner | fields, "finish_reason": finish}]}


def stream(tokens: int, *, usage: bool = True, spaced: bool = False, gap: bytes = b"\n\n") -> bytes:
    events = [event(delta("", role="assistant"), spaced=spaced, gap=gap)]
    events += [event(delta(f'tok{number} "usage": {{ data: [DONE] \n\n'), spaced=spaced, gap=gap) for number in range(tokens)]
    events.append(event(delta("", finish="stop"), spaced=spaced, gap=gap))
    if usage:
        document = {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 3}}}
        events.append(event(document, spaced=spaced, gap=gap))
    return b"".join(events) + b"data: [DONE]" + gap


@given(
    tokens=st.integers(0, 12),
    cuts=st.lists(st.integers(1, 2000), max_size=30),
    usage=st.booleans(),
    spaced=st.booleans(),
    gap=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
)
def test_however_it_is_cut_it_comes_out_the_same(tokens: int, cuts: list[int], usage: bool, spaced: bool, gap: bytes):
    data = stream(tokens, usage=usage, spaced=spaced, gap=gap)
    places = sorted({cut for cut in cuts if cut < len(data)})
    scanner, out = EventScanner(), []
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        piece = scanner.feed(data[start:end])
        assert piece == b"" or piece.endswith(gap), "never half an event"
        out.append(piece)
    assert b"".join(out) == data
    assert scanner.tokens == tokens
    assert scanner.done
    assert scanner.complete
    assert usage_figures(scanner.usage) == ((tokens, 3) if usage else (None, None))


TEXTS = st.sampled_from(
    [" tok", "", "a", 'say "hi"', "line\nend", "back\\slash", "\\", "héllo", "\u2028", '"},"finish_reason":"stop"', "[DONE]", '"usage":{']
)
EVENTS = st.one_of(
    TEXTS.map(delta),
    TEXTS.map(lambda text: delta(text, finish="length")),
    TEXTS.map(lambda text: delta(text, role="assistant")),
    TEXTS.map(lambda text: delta(reasoning_content=text)),
    TEXTS.map(lambda text: {"id": text, "choices": [{"index": 0, "text": text, "finish_reason": None}]}),
    TEXTS.map(lambda text: {"id": "x", "choices": [*delta(text)["choices"], *delta("b")["choices"]]}),
    st.just({"id": "x", "choices": []}),
    st.just({"id": "x", "choices": [], "usage": {"completion_tokens": 3}}),
)


def naive_count(documents: list[dict[str, Any]]) -> int:
    """What the scanner may not differ from: every event parsed, every choice looked at."""
    choices = [choice for document in documents for choice in document["choices"]]
    deltas = [{"text": choice.get("text"), **choice.get("delta", {})} for choice in choices]
    return sum(any(value for key, value in found.items() if key != "role") for found in deltas)


@given(
    runs=st.lists(st.tuples(EVENTS, st.integers(1, 12)), max_size=8),
    cuts=st.lists(st.integers(1, 3000), max_size=12),
    spaced=st.booleans(),
    gap=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
)
def test_tokens_are_counted_as_if_every_event_were_parsed(
    runs: list[tuple[dict[str, Any], int]], cuts: list[int], spaced: bool, gap: bytes
):
    documents = [document for document, times in runs for _ in range(times)]
    data = b"".join(event(document, spaced=spaced, gap=gap) for document in documents)
    places = sorted({cut for cut in cuts if cut < len(data)})
    scanner = EventScanner()
    out = [scanner.feed(data[start:end]) for start, end in zip([0, *places], [*places, len(data)], strict=True) if end > start]
    assert b"".join(out) == data
    assert scanner.tokens == naive_count(documents)


@pytest.mark.parametrize("texts", ["ab", "abcabc"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_further_empty_lines_between_events_mean_nothing(line_end: bytes, texts: str):
    data = b"".join(event(delta(text)) + b"\n" for text in texts).replace(b"\n", line_end)
    for cut in range(1, len(data)):
        scanner = EventScanner()
        out = scanner.feed(data[:cut]) + scanner.feed(data[cut:])
        assert out in (data, data.removesuffix(line_end)), cut
        assert scanner.tokens == len(texts), cut
    scanner.feed(event(delta("", finish="stop"), gap=2 * line_end))
    assert scanner.feed(line_end) == b""
    assert scanner.complete, "an empty line that is held back is no half event"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("gaps", [(b"\n\n", b"\r\n\r\n"), (b"\r\n\r\n", b"\n\n"), (b"\n\r\n", b"\n\n")])
def test_comments_and_events_may_end_in_different_ways(gaps: tuple[bytes, bytes], size: int):
    of_events, of_comments = gaps
    events = [event(delta(text), gap=of_events) for text in ("a", "b", "c d")] + [event(delta("", finish="stop"), gap=of_events)]
    data = b"".join(one + b": ping" + of_comments for one in events) + b"data: [DONE]" + of_events
    scanner = EventScanner()
    assert b"".join(scanner.feed(data[at : at + size]) for at in range(0, len(data), size)) == data
    assert (scanner.tokens, scanner.done, scanner.complete) == (3, True, True)


def test_a_stream_of_several_answers_is_complete_once_each_is_finished():
    def of(index: int, content: str | None = None, finish: str | None = None) -> bytes:
        document = delta(content, finish=finish)
        document["choices"][0]["index"] = index
        return event(document)

    scanner = EventScanner()
    for piece, complete in (
        (of(0, "a") + of(1, "b"), False),
        (of(0, "c", "stop"), False),
        (of(1, "d") + of(0, "") + of(1, "e"), False),
        (of(1, finish="length"), True),
        (event({"choices": [], "usage": {"completion_tokens": 5}}), True),
    ):
        scanner.feed(piece)
        assert scanner.complete == complete
    assert scanner.tokens == 5


def test_half_an_event_is_held_back():
    scanner = EventScanner()
    first = event(delta("a"))
    assert scanner.feed(first + b'data: {"id":"x","cho') == first
    assert not scanner.complete
    scanner = EventScanner()
    scanner.feed(event(delta("", finish="stop")))
    assert scanner.complete, "some servers leave [DONE] out"
    assert scanner.feed(b"data: {") == b""
    assert not scanner.complete


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html><html>",
        b"\x00\xff\xfe}{",
        b"Internal Server Error",
        b"\r\n<!DOCTYPE html>",
        b"data: {broken\n\n",
        b"data: [1, 2]\n\n",
        b'{"choices": []}\n\n',
        event(delta("a")) + b"garbage\n\n",
        event(delta("a")) + b"data: nonsense\n\n",
    ],
)
def test_what_is_no_event_stream_is_named_so(data: bytes):
    with pytest.raises(EngineProtocolError, match="the engine sent"):
        EventScanner().feed(data)


def test_an_event_without_an_end_is_bounded():
    scanner = EventScanner()
    for _ in range(MAX_EVENT_BYTES >> 20):
        assert scanner.feed(b"data: ".ljust(1 << 20, b"x")) == b""
    with pytest.raises(AnswerTooLarge, match="without an end"):
        scanner.feed(b"x")


def test_comments_and_named_events_pass():
    scanner = EventScanner()
    data = b": ping\n\nevent: message\nid: 5\nretry: 100\n" + event(delta("a"))
    assert scanner.feed(data) == data
    assert scanner.tokens == 1


@pytest.mark.parametrize("gap", [b"\n\n", b"\r\n\r\n"])
def test_comments_before_the_first_event_are_dropped(gap: bytes):
    scanner, comment, first = EventScanner(), b": keep-alive" + gap, event(delta("a"), gap=gap)
    assert scanner.feed(comment) == b""
    assert scanner.feed(comment + first[:9]) == b""
    assert scanner.feed(first[9:]) == first
    assert scanner.feed(comment) == comment
    assert scanner.tokens == 1


@pytest.mark.parametrize(
    "document", [{"error": {"message": "out of memory", "code": 500}}, {"object": "error", "message": "out of memory"}]
)
@pytest.mark.parametrize("after", [0, 2])
def test_the_engines_own_error_event_is_seen(document: dict[str, Any], after: int):
    scanner = EventScanner()
    for _ in range(after):
        scanner.feed(event(delta("a")))
    scanner.feed(event(document))
    assert scanner.error is not None
    assert scanner.error.message == "out of memory"


def test_tool_calls_and_reasoning_count_as_tokens():
    scanner = EventScanner()
    scanner.feed(event(delta(role="assistant")))
    assert scanner.tokens == 0
    scanner.feed(event(delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])))
    scanner.feed(event(delta(reasoning_content="hm")))
    scanner.feed(event({"choices": [{"index": 0, "text": "x"}]}))
    assert scanner.tokens == 3


def test_an_engine_that_drops_a_request_says_abort():
    scanner = EventScanner()
    scanner.feed(event(delta("a")) + event(delta("", finish="abort")))
    assert scanner.aborted


@pytest.mark.parametrize(
    ("usage", "figures"),
    [
        ({}, (None, None)),
        ({"completion_tokens": "5"}, (None, 0)),
        ({"completion_tokens": -1, "prompt_tokens_details": None}, (None, 0)),
        ({"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}, (7, 2)),
    ],
)
def test_odd_usage_counts_as_not_said(usage: dict[str, Any], figures: tuple[int | None, int | None]):
    assert usage_figures(usage) == figures


@pytest.mark.parametrize(
    "around", [b"data: %s\nretry: 15000\n\n", b"data: %s\r\nevent: message\r\n\r\n", b": upstream data: ok\n\ndata: %s\n\n"]
)
def test_other_fields_and_comments_are_no_part_of_the_data(around: bytes):
    scanner = EventScanner()
    assert scanner.feed(around % orjson.dumps(delta("a"))) == around % orjson.dumps(delta("a"))
    assert scanner.tokens == 1


def test_data_in_several_lines_is_one_document():
    scanner = EventScanner()
    scanner.feed(b'data: {"choices": [{"index": 0,\ndata: "delta": {"content": "a"}, "finish_reason": null}]}\n\n')
    assert scanner.tokens == 1
