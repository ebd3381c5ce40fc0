"""The opaque name under which a conversation is known outside of the gateway."""

from hashlib import blake2b

DIGEST_BYTES = 8


def session_digest(session: str) -> str:
    """A conversation's name for agents: a digest, because what clients call their conversations may name people. Empty stays empty."""
    if not session:
        return ""
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
