"""The operators' API over HTTP with JSON. Forcing a setting writes an override file; the directory is the only place of this state."""

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any

import orjson
from aiohttp import web

from hmas.controller.admin.changes import BadRequest, Changes, error_document, json_object, override_refused
from hmas.controller.admin.operations import Operations
from hmas.controller.config.override_format import document_of, valid_id
from hmas.controller.core.allowed_sites import AllowedSites
from hmas.controller.core.errors import AdminError, OverrideError
from hmas.controller.runtime.clock import Clock

MAX_BODY_BYTES = 64 * 1024
MAX_EVENTS = 2000
DEFAULT_EVENTS = 100
CHANGING = frozenset({"POST", "DELETE"})
"""Methods that change something here; what they send must be JSON by its content type, as no form of another site's page can send it."""
OPENAPI = Path(__file__).with_name("openapi.json")
log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminServer:
    """Serves the operators' API on its own port, to callers with the bearer token.

    A change must be sent as JSON, by its content type: a web page cannot make a browser send that to another site without asking first.
    """

    def __init__(
        self,
        operations: Operations,
        *,
        host: str,
        port: int,
        token_sha256: str,
        sites: AllowedSites,
        clock: Clock,
        sockets: Sequence[socket] = (),
    ) -> None:
        """Does not listen yet.

        Args:
            operations: What the API reads and changes.
            host: The address, unless there are `sockets`.
            port: The port of it.
            token_sha256: Hash of the token.
            sites: The Host and Origin headers that are accepted.
            clock: The clock.
            sockets: Bound sockets to listen on.
        """
        self._operations = operations
        self._changes = Changes(operations, clock)
        self._host = host
        self._port = port
        self._token_sha256 = token_sha256
        self._sites = sites
        self._sockets = sockets
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use."""
        assert self._runner is not None
        port: int = self._runner.addresses[0][1]
        return port

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            OSError: The address is not available.
        """
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        for sock in self._sockets:
            await web.SockSite(self._runner, sock).start()
        if not self._sockets:
            await web.TCPSite(self._runner, self._host, self._port).start()

    def routes(self) -> list[web.RouteDef]:
        """Every route of the API; `openapi.json` describes each of them."""
        shown, changes = self._operations, self._changes
        return [
            web.get("/admin/status", _shows(shown.status)),
            web.get("/admin/policy", _shows(shown.policy)),
            web.post("/admin/policy", _forces(changes.force_policy, shown.policy)),
            web.delete("/admin/policy", _releases(lambda _: changes.release_policy(), shown.policy)),
            web.get("/admin/routers", _shows(shown.routers)),
            web.post("/admin/routers", _forces(changes.force_router, shown.routers)),
            web.delete("/admin/routers", _releases(lambda sent: changes.release_router(sent.query.get("model", "*")), shown.routers)),
            web.get("/admin/knobs", _shows(shown.knobs)),
            web.post("/admin/knobs", _forces(changes.force_knobs, shown.knobs)),
            web.delete("/admin/knobs", _releases(lambda sent: changes.release_knobs(sent.query.get("instance", "*")), shown.knobs)),
            web.get("/admin/overrides", _shows(shown.overrides)),
            web.post("/admin/overrides", self._put_override),
            web.post("/admin/overrides/validate", self._validate_override),
            web.delete("/admin/overrides", self._clear_overrides),
            web.delete("/admin/overrides/{id}", self._remove_override),
            web.get("/admin/engines", _shows(self._engines)),
            web.post("/admin/engines/{name}/drain", self._drain),
            web.post("/admin/engines/{name}/undrain", _releases(lambda sent: changes.undrain(sent.match_info["name"]), self._engines)),
            web.get("/admin/views", self._views),
            web.get("/admin/events", self._events),
            web.get("/admin/decisions", self._decisions),
            web.get("/admin/decisions/{id}", _finds(shown.decision)),
            web.get("/admin/requests/{id}", _finds(shown.request)),
            web.get("/openapi.json", self._openapi),
        ]

    async def close(self) -> None:
        """Stops listening and ends all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks where a request comes from, its token and its form, and answers every error with an error document of the API."""
        if (preflight := self._sites.preflight(request.method, request.headers)) is not None:
            return web.Response(headers=preflight)
        answer = await self._answer(request, handler)
        answer.headers.update(self._sites.answer_headers(request.headers.get("origin", "")))
        return answer

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refusal = self._sites.refusal(request.headers)
            if refusal is not None:
                return _error(403, refusal.message, refusal.code)
            self._authenticate(request)
            if request.method in CHANGING and request.match_info.http_exception is None:
                _require_json(request)
            return await handler(request)
        except BadRequest as error:
            return _json({"error": error_document(error)}, error.status)
        except OverrideError as error:
            return _json({"error": error_document(override_refused(error))}, 400)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is larger than {MAX_BODY_BYTES} bytes", "request_too_large")
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            answer = _error(405, f"{request.method} is not allowed on {request.path}; allowed: {allowed}", "method_not_allowed")
            answer.headers["allow"] = allowed
            return answer
        except web.HTTPNotFound:
            return _error(404, f"there is no {request.path} here", "unknown_path")
        except Exception:
            log.exception("serving %s %s failed", request.method, request.path)
            return _error(500, "the operators' API failed on this request; the gateway's log has the reason", "internal_error")

    def _authenticate(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
        if scheme.lower() != "bearer" or not hmac.compare_digest(digest, self._token_sha256):
            text = "send `Authorization: Bearer TOKEN`; the gateway keeps its token in the file admin-token under state_dir"
            raise BadRequest(f"{text}, unless gateway.admin_token_sha256 is set", code="unauthorized", status=401)

    async def _put_override(self, request: web.Request) -> web.Response:
        await self._changes.put_override(*await self._read_override(request))
        return _json(self._operations.overrides())

    async def _validate_override(self, request: web.Request) -> web.Response:
        override = self._changes.validate(*await self._read_override(request))
        return _json({"valid": True, "id": override.id, "document": document_of(override)})

    async def _clear_overrides(self, _: web.Request) -> web.Response:
        removed, failures = [], []
        for override_id in _clearable(self._operations.overrides()):
            try:
                if await self._operations.remove_override(override_id):
                    removed.append(override_id)
            except OverrideError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return _json({"removed": removed, **self._operations.overrides()})

    async def _remove_override(self, request: web.Request) -> web.Response:
        override_id = request.match_info["id"]
        await self._changes.remove_override(override_id)
        return _json({"removed": [override_id], **self._operations.overrides()})

    def _engines(self) -> dict[str, Any]:
        return {"engines": self._operations.engines()}

    async def _drain(self, request: web.Request) -> web.Response:
        await self._changes.drain(request.match_info["name"], await _body(request))
        return _json(self._engines())

    async def _views(self, _: web.Request) -> web.Response:
        return _json(await self._operations.views())

    async def _events(self, request: web.Request) -> web.Response:
        return _json({"events": self._operations.events(_limit(request))})

    async def _decisions(self, request: web.Request) -> web.Response:
        changes = request.query.get("changes", "0")
        if changes not in {"0", "1"}:
            raise BadRequest(f"changes is {changes[:40]!r}; allowed: 0 or 1", path="changes")
        return _json({"decisions": self._operations.decisions(_limit(request), changes=changes == "1")})

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.Response(body=OPENAPI.read_bytes(), content_type="application/json")

    async def _read_override(self, request: web.Request) -> tuple[str, dict[str, Any]]:
        """The id (query parameter, or the document's own `id`) and the document."""
        document = await _read_json(request)
        override_id = request.query.get("id") or document.pop("id", None) or "admin"
        if not isinstance(override_id, str):
            raise BadRequest(f"id is {override_id!r}; allowed: a text", path="$.id")
        return override_id, document


def _shows(document: Callable[[], dict[str, Any]]) -> Handler:
    """Answers with a document of the gateway."""

    async def handle(_: web.Request) -> web.Response:
        return _json(document())

    return handle


def _finds(read: Callable[[str], dict[str, Any]]) -> Handler:
    """Answers with the document of the id in the path, and with 404 where `read` knows none."""

    async def handle(request: web.Request) -> web.Response:
        try:
            return _json(read(request.match_info["id"]))
        except AdminError as error:
            raise BadRequest(str(error), code="not_found", status=404) from None

    return handle


def _forces(force: Callable[[dict[str, Any]], Awaitable[None]], document: Callable[[], dict[str, Any]]) -> Handler:
    """Forces what the body says, and answers with the document as it is then."""

    async def handle(request: web.Request) -> web.Response:
        await force(await _body(request))
        return _json(document())

    return handle


def _releases(release: Callable[[web.Request], Awaitable[bool]], document: Callable[[], dict[str, Any]]) -> Handler:
    """Releases what the request names, and answers with the document as it is then and whether anything was forced."""

    async def handle(request: web.Request) -> web.Response:
        released = await release(request)
        return _json({"released": released, **document()})

    return handle


def _clearable(document: dict[str, Any]) -> list[str]:
    """The ids of all overrides. A refused file is among them: it would come into force later, when what it names is there."""
    ids = [item["id"] for item in document["overrides"]]
    for item in document["refused"]:
        name = item["file"].removesuffix(".json")
        if name not in ids:
            with suppress(OverrideError):
                ids.append(valid_id(name))
    return ids


def _require_json(request: web.Request) -> None:
    """Checks the content type of a request that changes something. A DELETE without a body needs none: no page can send it unasked.

    Raises:
        BadRequest: 415.
    """
    if request.method == "DELETE" and not request.can_read_body and "content-type" not in request.headers:
        return
    if request.content_type != "application/json":
        text = f"content-type is {request.headers.get('content-type', '')[:80]!r}; allowed: application/json"
        raise BadRequest(text, code="unsupported_media_type", status=415)


async def _read_json(request: web.Request) -> dict[str, Any]:
    return json_object(await request.read(), "the body")


def _limit(request: web.Request) -> int:
    """The requested number of newest entries."""
    text = request.query.get("limit", str(DEFAULT_EVENTS))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_EVENTS:
        raise BadRequest(f"limit is {text[:40]!r}; allowed: 1 to {MAX_EVENTS}", path="limit")
    return int(text)


async def _body(request: web.Request) -> dict[str, Any]:
    """Reads a small request document; an empty body counts as an empty object."""
    return await _read_json(request) if await request.read() else {}


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS), content_type="application/json")


def _error(status: int, message: str, code: str) -> web.Response:
    return _json({"error": error_document(BadRequest(message, code=code))}, status)
