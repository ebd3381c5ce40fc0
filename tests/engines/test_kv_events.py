"""KV events of engines: both forms of batches and events, what is left out, and what is refused."""

import contextlib
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.engines.errors import EngineProtocolError
from hmas.engines.kv_events import BLOCKS_AT_ONCE, TOKENS_MOST, KvEvent, decode_kv_batch, decode_kv_event

IDS = list(range(100, 132))
MAP = {"type": "BlockStored", "block_hashes": [b"a" * 32, b"b" * 32], "parent_block_hash": None, "token_ids": IDS, "block_size": 16}
LIST = ["BlockStored", [b"a" * 32, b"b" * 32], None, IDS, 16, None, "GPU"]


def decoded(*events, form: str = "list") -> list[KvEvent]:
    document = [17.5, list(events), 0] if form == "list" else {"ts": 17.5, "events": list(events), "data_parallel_rank": 0}
    return decoded_message(msgspec.msgpack.encode(document))


def decoded_message(payload: bytes) -> list[KvEvent]:
    return [event for raw in decode_kv_batch(payload) for event in decode_kv_event(raw)]


@pytest.mark.parametrize("form", ["list", "map"])
def test_lists_and_maps_at_both_levels_say_the_same(form):
    events = [MAP | {"medium": "GPU", "lora_name": None}, LIST]
    events += [{"type": "BlockRemoved", "block_hashes": [b"a" * 32]}, ["BlockRemoved", [b"a" * 32], "GPU"]]
    events += [{"type": "AllBlocksCleared"}, ["AllBlocksCleared"]]
    one, same, gone, also, cleared, again = decoded(*events, form=form)
    assert one == same
    assert (len(one.hashes), one.block_tokens, one.parent, one.adapter, len(one.tokens)) == (2, 16, 0, "", 4 * 32)
    assert gone == also == KvEvent(one.hashes[:1])
    assert cleared == again == KvEvent(())


def test_hashes_are_numbers_or_bytes_and_follow_one_another():
    first, second = decoded(MAP | {"block_hashes": [-5, 2**63]}, MAP | {"block_hashes": [7, 8], "parent_block_hash": 2**63})
    assert second.parent == first.hashes[-1]
    assert len({*first.hashes, *second.hashes}) == 4
    assert all(0 < one < 2**64 for one in (*first.hashes, *second.hashes))


def test_a_long_event_becomes_several_that_follow_one_another():
    count = 2 * BLOCKS_AT_ONCE + 3
    hashes = [number.to_bytes(4, "big") for number in range(count)]
    events = decoded(MAP | {"block_hashes": hashes, "token_ids": list(range(16 * count))}, ["BlockRemoved", hashes])
    kept, gone = events[:3], events[3:]
    assert [len(one.hashes) for one in kept] == [len(one.hashes) for one in gone] == [BLOCKS_AT_ONCE, BLOCKS_AT_ONCE, 3]
    assert [one.parent for one in kept[1:]] == [one.hashes[-1] for one in kept[:2]]
    assert all(len(one.tokens) == 64 * len(one.hashes) for one in kept)


def test_adapters_by_name_or_number_and_pairs_of_drafted_ids():
    named, numbered, pairs = decoded(
        MAP | {"lora_id": 3, "lora_name": "sql", "extra_keys": [["sql"], ["sql"]]},
        MAP | {"lora_id": 3},
        MAP | {"token_ids": [[one, one + 1] for one in IDS]},
    )
    assert (named.adapter, numbered.adapter) == ("sql", "lora 3")
    assert pairs.tokens == decoded(MAP)[0].tokens


@pytest.mark.parametrize(
    "event",
    [
        MAP | {"medium": "CPU"},
        {"type": "BlockRemoved", "block_hashes": [b"a"], "medium": "STORAGE"},
        MAP | {"kv_cache_spec_kind": "sliding_window", "token_ids": IDS * 3},
        MAP | {"token_ids": IDS * 3},
        MAP | {"extra_keys": [["salt"], None]},
        MAP | {"extra_keys": [None, [["picture", 3]]]},
        MAP | {"block_size": 1, "token_ids": [1, 2]},
        {"type": "BlockMoved", "anything": 1},
    ],
)
def test_what_says_nothing_of_the_cache_on_the_gpu_by_tokens_alone_is_left_out(event):
    assert decoded(event) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode({"ts": 1.0}),
        msgspec.msgpack.encode([1.0, {"type": "BlockStored"}]),
        msgspec.msgpack.encode([1.0, ["BlockStored"]]),
        *(
            msgspec.msgpack.encode([1.0, [MAP | wrong]])
            for wrong in (
                {"token_ids": IDS[:31]},
                {"token_ids": [-1] * 32},
                {"token_ids": [2**40] * 32},
                {"token_ids": ["a"] * 32},
                {"token_ids": None},
                {"block_size": "16"},
                {"block_size": None},
                {"block_hashes": [1.5, 2]},
                {"block_hashes": "ab"},
                {"parent_block_hash": [1]},
                {"extra_keys": 5},
            )
        ),
        b"\x92\x00" + b"\x91" * 20_000 + b"\x00",
    ],
)
def test_what_is_no_batch_of_events_is_refused(payload):
    with pytest.raises(EngineProtocolError, match="no KV events"):
        decoded_message(payload)


@given(st.binary(max_size=200))
def test_garbage_is_decoded_or_refused(payload):
    with contextlib.suppress(EngineProtocolError):
        decoded_message(payload)


LARGE = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"\x90", b"\x00", b"\x80", b"\xa0", b"\xc0"], ids=["lists", "numbers", "maps", "texts", "nothing"])
@pytest.mark.parametrize("place", ["events", "token_ids", "block_hashes", "extra_keys", "other"])
def test_no_message_of_the_largest_size_takes_long(piece, place):
    """Each step by itself: other work comes between the message and each of its events."""
    count = LARGE - 200
    long = b"\xdd" + count.to_bytes(4, "big") + piece * count
    if place == "events":
        payload = b"\x92\x00" + long
    else:
        fields = {**MAP, place: 0}
        fields.pop(place)
        body = msgspec.msgpack.encode(fields)[1:] + msgspec.msgpack.encode(place) + long
        payload = b"\x92\x00\x91" + bytes([0x80 + len(fields) + 1]) + body
    best_s = float("inf")
    for _ in range(3):
        longest_s = 0.0
        begun_s = time.thread_time()
        try:
            events = decode_kv_batch(payload)
        except EngineProtocolError:
            events = []
        longest_s = time.thread_time() - begun_s
        for event in events:
            begun_s = time.thread_time()
            with contextlib.suppress(EngineProtocolError):
                decode_kv_event(event)
            longest_s = max(longest_s, time.thread_time() - begun_s)
        best_s = min(best_s, longest_s)
    assert best_s < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [False, True])
def test_no_true_event_of_the_largest_size_takes_long(pairs):
    ids = [[7, 8] if pairs else 70_000] * TOKENS_MOST
    payload = msgspec.msgpack.encode([0, [MAP | {"token_ids": ids, "block_hashes": list(range(len(ids) // 16))}]])
    best_s = float("inf")
    for _ in range(3):
        begun_s = time.thread_time()
        assert decoded_message(payload)
        best_s = min(best_s, time.thread_time() - begun_s)
    assert best_s < 0.1, "50 ms of CPU on a machine of its own; tests share theirs"
