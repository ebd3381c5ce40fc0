"""Which Host and Origin headers a port accepts, and what it answers to web pages of other origins (CORS). Pure."""

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

ANY = "*"
HOSTS_REMEMBERED = 256
"""Most accepted Host headers that are remembered; they come from clients."""
PREFLIGHT_S = 600
"""How long a browser may remember that a page is allowed."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1000}")


class SiteRefusal(NamedTuple):
    """Why a request is not served: the code of the error and a text."""

    code: str
    message: str


class AllowedSites:
    """The Host and Origin headers that one port accepts.

    A web page can make its reader's browser send requests to this port in two ways. It can send them across sites: the browser then names
    the page in Origin, in every request that can change something. Or the page's owner lets a name of his resolve to this machine (DNS
    rebinding): the browser then sends that name as Host. Programs other than browsers send no Origin, and they name the port as their
    user does.

    An address as Host is always accepted, because DNS rebinding needs a name, and so are the loopback names.

    Attributes:
        accepted: Host headers that were accepted and need no second check, `HOSTS_REMEMBERED` at most.
    """

    def __init__(self, hosts: Collection[str], origins: Collection[str], *, settings: str, refuse_others: bool) -> None:
        """Takes what is allowed.

        Args:
            hosts: Names without port; `*` allows every one.
            origins: Origins such as `https://chat.example.com`; `*` allows every one.
            settings: How the names of both settings begin, for messages: `gateway.` or `gateway.admin_`.
            refuse_others: Whether requests of pages with another origin are refused; else they are served, and the browser does not show
                the page the answer.
        """
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)
        self._settings = settings
        self._refuse_others = refuse_others
        self.accepted: set[str] = set()

    def accepts_host(self, host: str) -> bool:
        """Whether a request with this Host header is served; a request without one comes from no browser and is."""
        if not host or host in self.accepted:
            return True
        name = _name_of(host)
        accepted = ANY in self._hosts or name in self._hosts or _is_loopback_name(name) or _is_address(name)
        if accepted and len(self.accepted) < HOSTS_REMEMBERED:
            self.accepted.add(host)
        return accepted

    def refusal(self, headers: Mapping[str, str]) -> SiteRefusal | None:
        """Returns why a request with these headers (by lower-case name) is refused, None if it is served."""
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if not self.accepts_host(host):
            text = f"host is {host[:100]!r}; allowed: addresses, localhost and the names in {self._settings}allowed_hosts"
            return SiteRefusal("host_not_allowed", text)
        same = origin.partition("://")[2].lower() == host.lower()
        if origin and self._refuse_others and not same and not self._listed(origin):
            text = f"origin is {origin[:100]!r}, another site's; allowed: the origins in {self._settings}allowed_origins"
            return SiteRefusal("origin_not_allowed", text)
        return None

    def answer_headers(self, origin: str) -> dict[str, str]:
        """Headers that let a page of this origin read an answer; empty if it is not listed."""
        if not origin or not self._listed(origin):
            return {}
        allowed = ANY if ANY in self._origins else origin
        return {"access-control-allow-origin": allowed, "access-control-expose-headers": ANY, "vary": "origin"}

    def preflight(self, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
        """Headers of the answer to a browser's question whether a page may send a request; None if this is no such question."""
        if method != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        answer = self.answer_headers(headers.get("origin", ""))
        if not answer:
            return None
        asked = headers.get("access-control-request-headers", "")
        if _HEADER_NAMES.fullmatch(asked):
            answer["access-control-allow-headers"] = asked
        answer["access-control-allow-methods"] = "GET, POST, DELETE"
        answer["access-control-max-age"] = str(PREFLIGHT_S)
        return answer

    def _listed(self, origin: str) -> bool:
        return ANY in self._origins or origin.lower() in self._origins


def _name_of(host: str) -> str:
    """A Host header in lower case, without port, brackets and closing dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].removesuffix(".").lower()


def _is_loopback_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
