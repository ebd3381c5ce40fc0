"""The opaque name of a conversation outside of the gateway."""

from hashlib import blake2b

DIGEST_BYTES = 8


def session_digest(session: str) -> str:
    """A digest of a conversation's name for agents, because the names that clients choose may identify people. Empty stays empty."""
    if not session:
        return ""
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
