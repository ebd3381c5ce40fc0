"""Refuses what web pages of others make a browser send to the public port, and lets listed pages read the answers (CORS)."""

from collections.abc import Awaitable, Callable, Mapping

from hmas.controller.core.allowed_sites import AllowedSites
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.http.transport import HttpRequest, Responder
from hmas.controller.gateway.requests.apis.registry import api_of
from hmas.controller.gateway.requests.request_headers import answer_id
from hmas.controller.observability.observer import Observers

Handler = Callable[[HttpRequest, Responder], Awaitable[None]]


class SiteGuard:
    """Stands between the server of the public port and its routes.

    A request without Origin, as all programs other than browsers send it, costs one look at a set.
    """

    def __init__(self, sites: AllowedSites, serve: Handler, observer: Observers) -> None:
        self._sites = sites
        self._serve = serve
        self._observer = observer

    def handle(self, http: HttpRequest, out: Responder) -> Awaitable[None]:
        """Serves one request, or refuses it."""
        headers = http.headers
        if "origin" not in headers and self._sites.accepts_host(headers.get("host", "")):
            return self._serve(http, out)
        return self._check(http, out)

    async def _check(self, http: HttpRequest, out: Responder) -> None:
        refusal = self._sites.refusal(http.headers)
        if refusal is not None:
            self._observer.refused(refusal.code)
            error = ApiError(403, refusal.code, refusal.message)
            _send(out, 403, {"x-request-id": answer_id(http.headers), **error.response_headers()}, api_of(http.path).error_body(error))
        elif (preflight := self._sites.preflight(http.method, http.headers)) is not None:
            _send(out, 200, preflight, b"")
        else:
            added = self._sites.answer_headers(http.headers.get("origin", ""))
            await self._serve(http, _WithHeaders(out, added) if added else out)


class _WithHeaders:
    """A responder that adds headers to the head of the answer. The pieces of a stream go straight to the one that it wraps."""

    def __init__(self, out: Responder, added: Mapping[str, str]) -> None:
        self._out = out
        self._added = added
        self.write, self.when_drained, self.drain = out.write, out.when_drained, out.drain
        self.finish, self.abandon, self.spent_s = out.finish, out.abandon, out.spent_s

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        self._out.start(status, {**headers, **self._added})

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._out.send(status, {**headers, **self._added}, body)


def _send(out: Responder, status: int, headers: Mapping[str, str], body: bytes) -> None:
    try:
        out.send(status, headers, body)
    except ConnectionError:
        return
