"""The public routes. Every error before a request is admitted becomes an error of its API here."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import orjson

from hmas.controller.core.bodies.responses import RESPONSES
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.http.transport import HttpRequest, Responder
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.gateway.requests.apis.registry import COMPLETED, PASSED, api_of
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.request_headers import answer_id
from hmas.controller.observability.observer import Observers

MODELS = "/v1/models"
JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
OPENAPI = Path(__file__).parent.with_name("openapi.json")
"""The description of the public port."""
log = logging.getLogger(__name__)

Endpoint = Callable[[HttpRequest, Responder], Awaitable[None]]


class PublicRoutes:
    """Serves every request of the public port.

    Args:
        complete: Serves scheduled requests; `embed` serves those that pass through, `kept` those about a response that an engine keeps.
        readiness: Reasons for not being ready, empty if ready.
        refusal: A reason to accept no new work at all (draining), None if there is none.
        exposition: The metrics page and its content type.
    """

    def __init__(
        self,
        *,
        complete: Endpoint,
        embed: Endpoint,
        kept: Endpoint,
        auth: Authenticator,
        fleet: Fleet,
        observer: Observers,
        readiness: Callable[[], list[str]],
        refusal: Callable[[], ApiError | None],
        exposition: Callable[[], tuple[bytes, str]],
    ) -> None:
        self._kept = kept
        self._auth = auth
        self._fleet = fleet
        self._observer = observer
        self._readiness = readiness
        self._refusal = refusal
        self._exposition = exposition
        self._posts: dict[str, Endpoint] = {**dict.fromkeys(COMPLETED, complete), **dict.fromkeys(PASSED, embed)}
        self._gets: dict[str, Endpoint] = {
            MODELS: self._models,
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics_page,
            "/openapi.json": self._openapi,
        }

    async def handle(self, http: HttpRequest, out: Responder) -> None:
        """Serves one request. Raises only if the client leaves (`asyncio.CancelledError`)."""
        # Some clients put a slash at the end of a path, which engines do not know.
        http.path = http.path.removesuffix("/") or "/"
        try:
            await self._endpoint(http.path, http.method)(http, out)
        except ApiError as error:
            self._observer.refused(error.code)
            self._answer_error(error, http, out)
        except ConnectionError:
            return
        except Exception:
            log.exception("serving %s %s failed", http.method, http.path)
            fault = ApiError(500, "internal_error", "the gateway failed on this request")
            self._observer.refused(fault.code)
            self._answer_error(fault, http, out)

    def _endpoint(self, path: str, method: str) -> Endpoint:
        """The endpoint that serves a request.

        Raises:
            ApiError: 404 or 405, or a reason to accept no new work.
        """
        endpoint = self._posts.get(path)
        if endpoint is not None:
            if method != "POST":
                raise _not_allowed(method, path, "POST")
            refusal = self._refusal()
            if refusal is not None:
                raise refusal
            return endpoint
        if path.startswith(RESPONSES + "/"):
            return self._kept
        endpoint = self._gets.get(path)
        if endpoint is None and path.startswith(MODELS + "/"):
            endpoint = self._model
        if endpoint is None:
            raise ApiError(404, "unknown_path", f"there is no {path[:200]} here; paths: {', '.join([*self._posts, *self._gets])}")
        if method not in ("GET", "HEAD"):
            raise _not_allowed(method, path, "GET")
        return endpoint

    def _answer_error(self, error: ApiError, http: HttpRequest, out: Responder) -> None:
        headers = {"x-request-id": answer_id(http.headers), **error.response_headers()}
        try:
            out.send(error.status, headers, api_of(http.path).error_body(error))
        except ConnectionError:
            return

    async def _models(self, http: HttpRequest, out: Responder) -> None:
        self._auth.identify(http.headers)
        out.send(200, JSON_HEADERS, orjson.dumps({"object": "list", "data": self._fleet.model_entries()}))

    async def _model(self, http: HttpRequest, out: Responder) -> None:
        self._auth.identify(http.headers)
        wanted = http.path.removeprefix(MODELS + "/")
        for entry in self._fleet.model_entries():
            if entry["id"] == wanted:
                out.send(200, JSON_HEADERS, orjson.dumps(entry))
                return
        raise ApiError(404, "model_not_found", f"model {wanted[:100]!r} is not served here; GET {MODELS} lists what is", param="model")

    async def _health(self, _: HttpRequest, out: Responder) -> None:
        out.send(200, JSON_HEADERS, b'{"status":"ok"}')

    async def _ready(self, _: HttpRequest, out: Responder) -> None:
        reasons = self._readiness()
        out.send(503 if reasons else 200, JSON_HEADERS, orjson.dumps({"ready": not reasons, "reasons": reasons}))

    async def _metrics_page(self, _: HttpRequest, out: Responder) -> None:
        body, content_type = self._exposition()
        out.send(200, {"content-type": content_type}, body)

    async def _openapi(self, _: HttpRequest, out: Responder) -> None:
        out.send(200, JSON_HEADERS, OPENAPI.read_bytes())


def _not_allowed(method: str, path: str, allowed: str) -> ApiError:
    return ApiError(405, "method_not_allowed", f"{method} is not allowed on {path}; allowed: {allowed}", headers={"allow": allowed})
