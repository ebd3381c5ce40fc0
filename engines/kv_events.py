"""KV events of engines, as vLLM and SGLang publish them: decoded from msgpack and checked, in bounded steps. Pure.

A batch is a list `[time, events, ...]` or a map with `events`. An event is a list that begins with its type, or a map with `type`: vLLM
0.32 sends a list of maps, SGLang a list of lists. Hashes are numbers or bytes of the engine's own making; only whether two are equal
counts.
"""

from array import array
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Raw

from hmas.engines.errors import EngineProtocolError

EVENTS_MOST, BLOCKS_MOST, TOKENS_MOST = 32_768, 32_768, 131_072
"""Most events of a batch, and most blocks and tokens of an event: what a step of an engine brings is far below."""
WHOLE_PROMPT_KINDS = ("", "full_attention", "mla_attention", "sink_full_attention", "unknown")
"""Groups of layers whose blocks all stay in the cache; those of a sliding window do not, and say nothing about a prompt's beginning."""
BLOCKS_AT_ONCE = 256
"""Most blocks of one `KvEvent`: a longer event becomes several, so that each is applied in about a millisecond."""
BLOCK_TOKENS_LEAST = 8
BITS = (1 << 64) - 1
NOTHING = (b"\xc0", b"\x90")
"""No value, and an empty list."""

Hash = int | bytes
Hashes = Annotated[list[Hash], Meta(max_length=BLOCKS_MOST)]
Events = Annotated[list[Raw], Meta(max_length=EVENTS_MOST)]
# SGLang gives pairs of ids where it drafts tokens (EAGLE).
TokenIds = Annotated[list[int | tuple[int, int]], Meta(max_length=TOKENS_MOST)]


class KvEvent(NamedTuple):
    """Blocks that follow one another were stored, or blocks were removed, or (without hashes) all of them.

    Attributes:
        hashes: The engine's hash of each block, as a number from 1 to 2^64 - 1 that is the same only in this process.
        group: The group of layers, -1 where the engine names none.
        tokens: Token ids of stored blocks, 4 bytes each, empty for removed ones.
        block_tokens: Tokens of a stored block.
        parent: The hash of the block before the stored ones, 0 where they begin a prompt.
        adapter: The LoRA adapter of the stored ones, empty for none.
    """

    hashes: tuple[int, ...]
    group: int = -1
    tokens: bytes = b""
    block_tokens: int = 0
    parent: int = 0
    adapter: str = ""


class _BatchMap(msgspec.Struct):
    events: Events


class _BatchList(msgspec.Struct, array_like=True):
    ts: Raw
    events: Events


class _Kind(msgspec.Struct, array_like=True):
    type: str


class _EventMap(msgspec.Struct):
    type: str
    block_hashes: Hashes = []
    parent_block_hash: Hash | None = None
    token_ids: TokenIds = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Annotated[list[Raw], Meta(max_length=BLOCKS_MOST)] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _StoredList(_EventMap, array_like=True):
    pass


class _RemovedList(msgspec.Struct, array_like=True):
    type: str
    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None


_batch_map, _batch_list = msgspec.msgpack.Decoder(_BatchMap), msgspec.msgpack.Decoder(_BatchList)
_kind, _event_map = msgspec.msgpack.Decoder(_Kind), msgspec.msgpack.Decoder(_EventMap)
_stored_list, _removed_list = msgspec.msgpack.Decoder(_StoredList), msgspec.msgpack.Decoder(_RemovedList)


def decode_kv_batch(payload: bytes) -> list[Raw]:
    """The events of a message, each for `decode_kv_event`.

    Raises:
        EngineProtocolError: It is no such message.
    """
    try:
        return _batch_map.decode(payload).events if _is_map(payload) else _batch_list.decode(payload).events
    except (ValueError, RecursionError) as error:
        raise _refused(error) from None


def decode_kv_event(event: Raw) -> list[KvEvent]:
    """Decodes an event.

    The list is empty for blocks in another place than the GPU, of a part of the layers only, with pictures or a salt in their hash, that do
    not follow one another, or of less than `BLOCK_TOKENS_LEAST` tokens; and for a type of event that is not known.

    Raises:
        EngineProtocolError: It is no such event.
    """
    try:
        found: _EventMap | _RemovedList
        if _is_map(data := bytes(event)):
            found = _event_map.decode(data)
        else:
            found = (_removed_list if _kind.decode(data).type == "BlockRemoved" else _stored_list).decode(data)
        if found.type == "AllBlocksCleared":
            return [KvEvent(())]
        if found.type not in ("BlockStored", "BlockRemoved") or found.medium not in (None, "GPU"):
            return []
        group = -1 if found.group_idx is None else found.group_idx
        hashes = [_number(one) for one in found.block_hashes]
        if found.type == "BlockStored" and isinstance(found, _EventMap):
            return _stored(found, hashes, group)
        return [KvEvent(tuple(hashes[place : place + BLOCKS_AT_ONCE]), group) for place in range(0, len(hashes), BLOCKS_AT_ONCE)]
    except (ValueError, OverflowError, RecursionError) as error:
        raise _refused(error) from None


def _stored(found: _EventMap, hashes: Sequence[int], group: int) -> list[KvEvent]:
    """Raises: ValueError, OverflowError: Tokens and blocks do not fit, or a token id is no number of 32 bits."""
    size, ids = found.block_size, found.token_ids
    if len(ids) < size * len(hashes):
        raise ValueError(f"{len(ids)} tokens for {len(hashes)} blocks of {size}")
    tokens = array("I", [one if isinstance(one, int) else one[0] for one in ids]).tobytes()
    adapter = found.lora_name or ("" if found.lora_id is None else f"lora {found.lora_id}")
    plain = (*NOTHING, msgspec.msgpack.encode([adapter]))
    salted = any(bytes(keys) not in plain for keys in found.extra_keys or ())
    whole = (found.kv_cache_spec_kind or "") in WHOLE_PROMPT_KINDS
    if salted or not whole or size < BLOCK_TOKENS_LEAST or len(ids) > size * len(hashes):
        return []
    events: list[KvEvent] = []
    before = 0 if found.parent_block_hash is None else _number(found.parent_block_hash)
    for place in range(0, len(hashes), BLOCKS_AT_ONCE):
        some = tuple(hashes[place : place + BLOCKS_AT_ONCE])
        data = tokens[4 * size * place : 4 * size * (place + len(some))]
        events.append(KvEvent(some, group, data, size, before, adapter))
        before = some[-1]
    return events


def _number(engine_hash: Hash) -> int:
    return hash(("hmas kv hash", engine_hash)) & BITS or 1


def _is_map(data: bytes) -> bool:
    """Whether msgpack's first byte begins a map."""
    return data[:1] in (b"\xde", b"\xdf") or b"\x80" <= data[:1] <= b"\x8f"


def _refused(error: Exception) -> EngineProtocolError:
    return EngineProtocolError(f"no KV events: {type(error).__name__}: {str(error)[:200]}")
