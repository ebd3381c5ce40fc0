"""The base of all messages and the version of what travels."""

import msgspec

VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all messages; `type` is the tag on the wire."""
