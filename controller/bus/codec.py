"""Bytes of a message and back: JSON with a version envelope, `{"v": 1, "m": {"type": "completion", ...}}`.

The message is a tagged union, validated field by field as it is read. Unknown fields are ignored, so an old receiver reads a newer sender
as long as the version is the same. A number that JSON cannot carry (NaN, infinity) travels as null and is refused by the reader: such a
value is a fault of the sender and must not reach a control law.
"""

import msgspec

from hmas.controller.core.errors import MessageError
from hmas.controller.core.messages import VERSION, AnyMessage, Message

_HEAD = b'{"v":%d,"m":' % VERSION
_EXCERPT = 80


class _Envelope(msgspec.Struct, frozen=True):
    """Opened first: a payload of another version is told apart before its message is looked at."""

    v: int
    m: msgspec.Raw


_encoder = msgspec.json.Encoder()
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_message_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """The bytes of a message.

    Raises:
        MessageError: A field holds what JSON cannot carry (such as an object in `Event.data`, or half a surrogate pair in a text).
    """
    try:
        return _HEAD + _encoder.encode(message) + b"}"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"{type(message).__name__} cannot be encoded: {error}") from error


def decode(payload: bytes) -> Message:
    """The message in `payload`.

    Raises:
        MessageError: Not JSON, no envelope, another version, an unknown type, or a field of the wrong type; names which.
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
