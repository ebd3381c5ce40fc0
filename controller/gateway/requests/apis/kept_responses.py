"""Answers of the Responses API that engines keep: each belongs to one tenant, and only the instance that gave it knows it."""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from hmas.controller.core.bodies.responses import RESPONSES
from hmas.controller.core.request_body import Call
from hmas.controller.gateway.errors import ApiError, bad_field
from hmas.controller.gateway.http.transport import HttpRequest, Responder
from hmas.controller.gateway.instances.monitor import Fleet, Instance
from hmas.controller.gateway.instances.served_models import ACCEPT_GRACE_S
from hmas.controller.gateway.requests.apis.api import complaint_of
from hmas.controller.gateway.requests.apis.registry import api_of
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.engine_errors import read_document
from hmas.controller.gateway.requests.request_headers import answer_id
from hmas.controller.gateway.requests.sse import usage_figures, usage_total
from hmas.controller.observability.observer import Observers
from hmas.engines.errors import EngineError

MAX_KEPT = 65_536
"""Ids that are remembered; beyond it the one that was used least recently is forgotten."""
UNFINISHED = ("queued", "in_progress")
ID = r"[A-Za-z0-9_-]{1,128}"
PATHS = {
    re.compile(rf"{RESPONSES}/({ID})"): ("GET", "DELETE"),
    re.compile(rf"{RESPONSES}/({ID})/cancel"): ("POST",),
    re.compile(rf"{RESPONSES}/({ID})/input_items"): ("GET",),
}


class Kept(NamedTuple):
    """A response that an engine keeps.

    Attributes:
        tenant, instance: Whose it is, and who keeps it.
        tokens: Prompt and output by the engine's `usage`, 0 while unknown.
        charged: Output tokens that its tenant was charged without a `usage`, as for one made in the background; None once that is settled.
    """

    tenant: str
    instance: str
    tokens: int
    charged: int | None


class KeptResponses:
    """Remembers which instance answered which response, in how many tokens, and serves the requests about one.

    The ids do not outlive the gateway.

    The query of such a request goes to the engine as it is, but for `stream`: an answer is read whole.
    """

    def __init__(self, *, fleet: Fleet, auth: Authenticator, observer: Observers, correct: Callable[[str, float, float], None]) -> None:
        """Starts empty. `correct`: takes a tenant, the tokens that it has used beyond what it was charged, and the time."""
        self._fleet = fleet
        self._auth = auth
        self._observer = observer
        self._correct = correct
        self._holders: OrderedDict[str, Kept] = OrderedDict()

    def note(self, response_id: str, kept: Kept) -> None:
        """Records who keeps the response with this id. An id of another tenant stays with that tenant."""
        if not re.fullmatch(ID, response_id) or self._holders.get(response_id, kept).tenant != kept.tenant:
            return
        self._holders[response_id] = kept
        self._holders.move_to_end(response_id)
        if len(self._holders) > MAX_KEPT:
            self._holders.popitem(last=False)

    def holder_of_previous(self, call: Call, tenant: str) -> tuple[str, int]:
        """The instance that has to serve a request, because it keeps the response which the request continues; empty for any instance.

        And the tokens of that response, with all that came before it: the engine puts them before the request's own prompt.

        Raises:
            ApiError: 404 if no instance that is there keeps that response for this tenant.
        """
        previous = call.previous_response
        if not previous:
            return "", 0
        return self._holder(previous, tenant, "previous_response_id").name, self._holders[previous].tokens

    async def serve(self, http: HttpRequest, out: Responder) -> None:
        """Serves a request about one response: to read, delete or cancel it. The answer is the engine's own.

        Raises:
            ApiError: The request was refused, or the engine could not answer; nothing has been sent.
        """
        response_id, methods = _target(http.path)
        if http.method not in methods:
            allowed = ", ".join(methods)
            raise ApiError(405, "method_not_allowed", f"{http.method} is not allowed here; allowed: {allowed}", headers={"allow": allowed})
        identity = self._auth.identify(http.headers)
        await http.body()
        streams = dict(parse_qsl(http.query, keep_blank_values=True)).get("stream", "false")
        if streams.lower() not in ("false", "0"):
            raise bad_field("stream", streams, "false: a kept response is read whole")
        begun_s = self._fleet.now_s()
        instance = self._holder(response_id, identity.tenant, "response_id")
        try:
            status, body = await instance.engine.call(http.method, f"{http.path}?{http.query}" if http.query else http.path)
        except EngineError as error:
            self._observer.passed_failed(instance.name)
            raise ApiError(502, "engine_error", str(error), retry_after_s=1) from error
        self._observer.passed_through(status, self._fleet.now_s() - begun_s)
        document = read_document(status, body)
        api = api_of(RESPONSES)
        if api.lacks_path(status, document):
            raise api.unsupported(status, "" if document is None else complaint_of(document).message)
        if status >= 500 or document is None:
            self._observer.passed_failed(instance.name)
        if document is None:
            raise ApiError(502, "engine_error", f"the engine answered {status} with a body that is no JSON object", retry_after_s=1)
        if status == 200:
            self._settle(response_id, document)
            if http.method == "DELETE":
                self._holders.pop(response_id, None)
        headers = {"content-type": "application/json", "x-request-id": answer_id(http.headers), "x-hmas-instance": instance.name}
        out.send(status, headers, api.engine_document(status, document, body) if status >= 400 else body)

    def _settle(self, response_id: str, document: dict[str, Any]) -> None:
        """Corrects the charge for a response, once, if the document tells what it has used in the end."""
        kept, usage = self._holders.get(response_id), document.get("usage")
        if kept is None or kept.charged is None or not isinstance(usage, dict) or document.get("status") in UNFINISHED:
            return
        output_tokens = usage_figures(usage)[0]
        if output_tokens is not None:
            self._holders[response_id] = kept._replace(tokens=usage_total(usage), charged=None)
            self._correct(kept.tenant, output_tokens - kept.charged, self._fleet.now_s())

    def _holder(self, response_id: str, tenant: str, param: str) -> Instance:
        """The instance that keeps a response of a tenant.

        Raises:
            ApiError: 404 if none is known, or it is gone.
        """
        code = "previous_response_not_found" if param.startswith("previous") else "response_not_found"
        kept = self._holders.get(response_id)
        if kept is None or kept.tenant != tenant:
            raise ApiError(404, code, f"Response with id {response_id[:140]!r} not found.", param=param)
        self._holders.move_to_end(response_id)
        instance = self._fleet.instances.get(kept.instance)
        if instance is None or instance.draining or instance.down_for_s(self._fleet.now_s()) > ACCEPT_GRACE_S:
            why = "is gone" if instance is None else "is being drained" if instance.draining else "does not answer"
            text = f"Response with id {response_id[:140]!r} not found: the engine that keeps it, {kept.instance}, {why}."
            raise ApiError(404, code, text, param=param)
        return instance


def _target(path: str) -> tuple[str, tuple[str, ...]]:
    """The id in a path, and the methods that the path takes.

    Raises:
        ApiError: 404 if it is no path of a response.
    """
    for pattern, methods in PATHS.items():
        found = pattern.fullmatch(path)
        if found is not None:
            return found[1], methods
    raise ApiError(404, "unknown_path", f"there is no {path[:200]} here; paths of a response: {RESPONSES}/ID, ID/cancel, ID/input_items")
