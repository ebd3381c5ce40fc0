"""The codec: what is written comes back, and nothing else gets through."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_kit import instance_view, system_snapshot
from typing_kit import of_type

from hmas.controller.bus.codec import decode, encode
from hmas.controller.core import messages as m
from hmas.controller.core.errors import MessageError
from hmas.controller.core.types import OutcomeKind, TaskType
from hmas.engines.base import EngineSnapshot

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ATOMS = {
    str: TEXT,
    int: st.integers(-(2**62), 2**62),
    float: FINITE,
    bool: st.booleans(),
    TaskType: st.sampled_from(TaskType),
    OutcomeKind: st.sampled_from(OutcomeKind),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | FINITE | TEXT,
    lambda s: st.lists(s, max_size=3) | st.dictionaries(TEXT, s, max_size=3),
)
MESSAGES = list(m.STREAM_OF)


def value_of(kind: object) -> st.SearchStrategy[object]:
    """Values of one field's type, as msgspec sees it."""
    match kind:
        case msgspec.inspect.StructType():
            return instance_of(kind.cls)
        case msgspec.inspect.DictType():
            return st.dictionaries(value_of(kind.key_type), value_of(kind.value_type), max_size=3)
        case msgspec.inspect.ListType():
            return st.lists(value_of(kind.item_type), max_size=3)
        case msgspec.inspect.VarTupleType():
            return st.lists(value_of(kind.item_type), max_size=3).map(tuple)
        case msgspec.inspect.TupleType():
            return st.tuples(*map(value_of, kind.item_types))
        case msgspec.inspect.TupleType():
            return st.tuples(*(value_of(part) for part in kind.item_types))
        case msgspec.inspect.UnionType():
            return st.one_of([value_of(part) for part in kind.types])
        case msgspec.inspect.EnumType():
            return st.sampled_from(kind.cls)
        case msgspec.inspect.LiteralType():
            return st.sampled_from(kind.values)
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.AnyType():
            return JSON
        case msgspec.inspect.StrType():
            return ATOMS[str]
        case msgspec.inspect.IntType():
            return ATOMS[int]
        case msgspec.inspect.FloatType():
            return ATOMS[float]
        case msgspec.inspect.BoolType():
            return ATOMS[bool]
    raise AssertionError(kind)


def instance_of(cls: type) -> st.SearchStrategy[object]:
    fields = of_type(msgspec.inspect.StructType, msgspec.inspect.type_info(cls)).fields
    return st.builds(cls, **{field.name: value_of(field.type) for field in fields})


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_message_comes_back_as_it_was(cls):
    @given(instance_of(cls))
    def round_trip(message):
        assert decode(encode(message)) == message

    round_trip()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_message_error(payload):
    with contextlib.suppress(MessageError):
        assert isinstance(decode(payload), m.Message)


@given(instance_of(m.RequestNotice), st.data())
def test_a_damaged_payload_is_a_message_or_a_message_error(message, data):
    payload = bytearray(encode(message))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MessageError):
        assert isinstance(decode(bytes(payload)), m.Message)


def snapshot() -> m.Event:
    return m.Event(sent_s=1.0, source="meta", kind="policy", subject="edf")


def test_an_older_gateways_account_of_an_instance_can_be_read():
    raw = msgspec.json.decode(encode(system_snapshot(instance_view(models=["m"]))))
    del raw["m"]["instances"][0]["models"]
    assert of_type(m.SystemSnapshot, decode(msgspec.json.encode(raw))).instances[0].models == []


def test_unknown_fields_are_ignored():
    raw = msgspec.json.decode(encode(snapshot()))
    raw["m"]["colour"] = {"of": ["a", "later", "version"]}
    raw["later"] = True
    assert decode(msgspec.json.encode(raw)) == snapshot()


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "envelope"),
        (b"[]", "envelope"),
        (b'{"m":{}}', "`v`"),
        (b'{"v":2,"m":{"type":"event"}}', "version 2"),
        (b'{"v":"1","m":{}}', "envelope"),
        (b'{"v":1,"m":{"type":"gossip"}}', "gossip"),
        (b'{"v":1,"m":{}}', "type"),
        (b'{"v":1,"m":{"type":"event","sent_s":"now","source":"a","kind":"b","subject":"c"}}', "$.sent_s"),
        (b'{"v":1,"m":' + b"[" * 100_000, "recursion"),
    ],
)
def test_what_cannot_be_read_is_named(payload, said):
    with pytest.raises(MessageError, match=said.replace("$", r"\$")):
        decode(payload)


def test_a_number_that_is_none_never_reaches_a_reader():
    payload = encode(m.ControlAction(sent_s=1.0, instance="a", n_run=1, utilization=float("nan")))
    with pytest.raises(MessageError, match="utilization"):
        decode(payload)


@pytest.mark.parametrize("bad", [object(), "\ud800"])
def test_what_json_cannot_carry_is_refused_where_it_is_written(bad):
    with pytest.raises(MessageError, match="Event"):
        encode(m.Event(sent_s=1.0, source="a", kind="b", subject=bad))


def test_nested_snapshots_survive():
    engine = EngineSnapshot(engine="a", taken_s=1.0, healthy=True, kv_usage=0.5)
    message = system_snapshot(instance_view(engine=engine))
    assert of_type(m.SystemSnapshot, decode(encode(message))).instances[0].engine == engine
