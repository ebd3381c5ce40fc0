"""Who may use the route. Pure."""

import hmac
import ipaddress


def refusal(*, token: str, authorization: str | None, client: str | None, origin: str | None) -> tuple[int, str] | None:
    """Why this request is turned away, as HTTP status and words; None lets it in.

    Args:
        token: What `HMAS_CONTROL_TOKEN` holds, empty where it is not set: then only this machine's own processes may ask.
        authorization: The request's `Authorization`.
        client: The peer's address, None where it has none (a Unix socket).
        origin: The request's `Origin`: a browser sends it, and a page open on this machine is no process that may ask.
    """
    if token:
        given = (authorization or "").encode()
        if hmac.compare_digest(given, b"Bearer " + token.encode()):
            return None
        return 401, "the route needs `Authorization: Bearer` with the token that HMAS_CONTROL_TOKEN holds for this engine"
    if origin is not None:
        return 403, "without HMAS_CONTROL_TOKEN no browser may use this route"
    if is_loopback(client):
        return None
    return 403, "without HMAS_CONTROL_TOKEN only clients on this machine may use this route"


def is_loopback(client: str | None) -> bool:
    """Whether an address is this machine's own."""
    try:
        address = ipaddress.ip_address((client or "").split("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
