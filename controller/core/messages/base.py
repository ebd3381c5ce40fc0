"""The base of all messages, and the version of their format."""

import msgspec

VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of all messages; `type` is the tag in the encoded form."""
