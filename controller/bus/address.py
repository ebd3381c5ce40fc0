"""Addresses of bus servers as logs, errors and operators may see them."""

from urllib.parse import unquote_plus

_SECRET = ("username", "password")


def without_secrets(url: str) -> str:
    """The address without its user and password, which may stand before the `@` or in the query, as `unix://` addresses have them."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    head, mark, query = rest.partition("?")
    authority, slash, path = head.partition("/")
    # A password with an unescaped slash: what looks like the authority is a part of it.
    split = "@" not in authority and authority
    head = head.rpartition("@")[2] if split else authority.rpartition("@")[2] + slash + path
    kept = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]).lower() not in _SECRET]
    return scheme + separator + head + (mark + "&".join(kept) if any(kept) else "")
