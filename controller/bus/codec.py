"""Encodes and decodes messages: JSON with a version envelope, `{"v": 1, "m": {"type": "completion", ...}}`.

The message is a tagged union, and every field is validated when it is decoded. Unknown fields are ignored, so an old receiver can read
messages of a newer sender of the same version. A number that JSON cannot represent (NaN, infinity) is sent as null and refused by the
reader: such a value is an error of the sender and must not reach a control law.
"""

from functools import reduce
from operator import or_

import msgspec

from hmas.controller.core.errors import MessageError
from hmas.controller.core.messages import STREAM_OF, VERSION, Message

_HEAD = b'{"v":%d,"m":' % VERSION
_EXCERPT = 80


class _Envelope(msgspec.Struct, frozen=True):
    """Decoded first, so that another version is recognized before the message is decoded."""

    v: int
    m: msgspec.Raw


_encoder = msgspec.json.Encoder()
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_message_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(reduce(or_, STREAM_OF))


def encode(message: Message) -> bytes:
    """Encodes a message.

    Raises:
        MessageError: A field holds a value that JSON cannot represent (such as half a surrogate pair in a text).
    """
    try:
        return _HEAD + _encoder.encode(message) + b"}"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"{type(message).__name__} cannot be encoded: {error}") from error


def decode(payload: bytes) -> Message:
    """Decodes the message in `payload`.

    Raises:
        MessageError: Not JSON, no envelope, another version, an unknown type, or a field of the wrong type; the error names which.
    """
    try:
        envelope = _envelope_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"bus payload is not a message envelope: {error}; it begins {payload[:_EXCERPT]!r}") from error
    if envelope.v != VERSION:
        raise MessageError(f"bus payload has version {envelope.v}; this process reads version {VERSION}")
    try:
        return _message_decoder.decode(envelope.m)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"bus message cannot be read: {error}; it begins {bytes(envelope.m)[:_EXCERPT]!r}") from error
