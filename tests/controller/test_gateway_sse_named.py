"""Streams of events with names: counted without parsing each, passed on byte for byte, and held back until an answer begins."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_kit import named

from hmas.controller.gateway.requests.apis.messages import MessagesScanner
from hmas.controller.gateway.requests.apis.responses import ResponsesScanner
from hmas.controller.gateway.requests.sse import MAX_OPENING_BYTES, EventScanner, usage_figures
from hmas.engines.errors import EngineProtocolError

TEXT = 'tok "x" \\ \n\n event: response.completed'


def created(**more: Any) -> list[dict[str, Any]]:
    response = {"id": "resp_1", "status": "in_progress", **more}
    return [{"type": "response.created", "response": response}, {"type": "response.in_progress", "response": response}]


def delta(text: str, number: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": text, "sequence_number": number}


def completed(tokens: int, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": tokens}
    return {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "usage": usage, **more}}


def response_stream(tokens: int) -> bytes:
    rest: list[dict[str, Any]] = [{"type": "response.output_item.added", "item": {}}]
    rest += [delta(TEXT, number) for number in range(tokens)]
    rest += [{"type": "response.output_text.done", "text": TEXT * tokens}, completed(tokens)]
    return named(*created(), *rest)


def message_stream(tokens: int) -> bytes:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 0}}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    deltas = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}} for _ in range(tokens)]
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": tokens}}
    return named(start, {"type": "ping"}, block, *deltas, {"type": "content_block_stop", "index": 0}, end, {"type": "message_stop"})


STREAMS: dict[type[EventScanner], Callable[[int], bytes]] = {ResponsesScanner: response_stream, MessagesScanner: message_stream}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@given(tokens=st.integers(0, 12), cuts=st.lists(st.integers(1, 4000), max_size=30))
def test_however_it_is_cut_it_comes_out_the_same(kind: type[EventScanner], line_end: bytes, tokens: int, cuts: list[int]):
    data = STREAMS[kind](tokens).replace(b"\n", line_end)
    places = sorted({cut for cut in cuts if cut < len(data)})
    scanner, out = kind(), b""
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        piece = scanner.feed(data[start:end])
        assert piece == b"" or piece.endswith(line_end * 2), "never half an event"
        out += piece
    assert out == data
    assert scanner.tokens == tokens
    assert scanner.done
    assert scanner.complete
    assert not scanner.aborted
    assert scanner.error is None
    assert usage_figures(scanner.usage) == (tokens, 4)
    assert scanner.events == data.count(b"\nevent: ") + 1


def test_events_without_names_count_too():
    scanner = ResponsesScanner()
    data = b"".join(line + b"\n\n" for line in response_stream(3).split(b"\n") if line.startswith(b"data:"))
    assert scanner.feed(data) == data
    assert (scanner.tokens, scanner.done, scanner.response_id) == (3, True, "resp_1")


@pytest.mark.parametrize("scanner", [ResponsesScanner(), MessagesScanner()])
def test_nothing_goes_out_before_the_answer_begins(scanner: EventScanner):
    opening, rest = (created(), delta("a")) if isinstance(scanner, ResponsesScanner) else ([{"type": "message_start"}], {"type": "x"})
    assert scanner.feed(named(*opening)) == b""
    assert scanner.feed(named(rest)[:9]) == b""
    assert scanner.feed(named(rest)[9:]) == named(*opening, rest)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_further_empty_lines_between_events_mean_nothing(kind: type[EventScanner], line_end: bytes):
    data = STREAMS[kind](2).replace(b"\n\n", b"\n\n\n").replace(b"\n", line_end)
    for cut in range(1, len(data)):
        scanner = kind()
        out = scanner.feed(data[:cut]) + scanner.feed(data[cut:])
        assert out in (data, data.removesuffix(line_end)), cut
        assert (scanner.tokens, scanner.done, scanner.complete) == (2, True, True), cut


def test_what_is_held_back_is_bounded():
    scanner = ResponsesScanner()
    piece = named(*created(instructions="x" * (2 << 20)))
    for _ in range(MAX_OPENING_BYTES // len(piece)):
        scanner.feed(piece)
    with pytest.raises(EngineProtocolError, match="before it began"):
        scanner.feed(piece)


@pytest.mark.parametrize(
    ("scanner", "document", "message", "status"),
    [
        (ResponsesScanner, {"type": "error", "code": "server_error", "message": "no", "param": None, "sequence_number": 2}, "no", 0),
        (ResponsesScanner, {"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}, "bad", 400),
        (ResponsesScanner, {"type": "error", "code": "400", "message": "bad"}, "bad", 400),
        (ResponsesScanner, {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "oops"}}}, "oops", 0),
        (ResponsesScanner, {"type": "response.failed", "response": {}}, "the response failed", 0),
        (MessagesScanner, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "busy", 0),
        (MessagesScanner, {"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}, "bad", 400),
        (MessagesScanner, {"type": "error", "error": {"type": "BadRequestError", "message": "bad"}}, "bad", 400),
    ],
)
def test_error_events(scanner: type[EventScanner], document: dict[str, Any], message: str, status: int):
    found = scanner()
    assert found.feed(named(document)) == named(document)
    assert found.error is not None
    assert (found.error.message, found.error.status, found.tokens) == (message, status, 0)


def test_an_end_without_a_reason_is_an_abort():
    scanner = MessagesScanner()
    scanner.feed(named({"type": "message_delta", "delta": {"stop_reason": None}}, {"type": "message_stop"}))
    assert scanner.aborted
    cancelled = ResponsesScanner()
    cancelled.feed(named({"type": "response.cancelled", "response": {"status": "cancelled"}}))
    assert cancelled.aborted


@pytest.mark.parametrize("scanner", [ResponsesScanner(), MessagesScanner()])
def test_a_stream_that_ends_early_is_not_complete(scanner: EventScanner):
    scanner.feed(STREAMS[type(scanner)](4)[:-300])
    assert not scanner.done
    assert not scanner.complete


def test_done_ends_a_stream_of_responses_too():
    scanner = ResponsesScanner()
    assert scanner.feed(named(*created()) + b"data: [DONE]\n\n").endswith(b"[DONE]\n\n")
    assert scanner.done
