"""Access control of the route. Pure."""

import hmac
import ipaddress


def refusal(*, token: str, authorization: str | None, client: str | None, origin: str | None) -> tuple[int, str] | None:
    """Why this request is refused, as HTTP status and message; None if it is allowed.

    Args:
        token: The value of `HMAS_CONTROL_TOKEN`, empty if it is not set: then only processes on this machine have access.
        authorization: The request's `Authorization`.
        client: The peer's address, None if it has none (a Unix socket).
        origin: The request's `Origin`. Only a browser sends it, and a web page open on this machine must not have access.
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
    """Whether an address is a loopback address of this machine."""
    try:
        address = ipaddress.ip_address((client or "").split("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
