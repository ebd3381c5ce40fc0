"""Requests that bypass the queue: embeddings go straight to the least busy engine that serves their model."""

import asyncio
import os
from contextlib import suppress

from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.http.transport import HttpRequest, Responder
from hmas.controller.gateway.instances.monitor import Fleet, Instance
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.parse import BodyParser
from hmas.controller.gateway.requests.relay import Answer, EngineFault, relay
from hmas.controller.gateway.requests.request_headers import answer_id, read_claims
from hmas.controller.observability.observer import Observers
from hmas.engines.errors import EngineError, EngineUnavailable

MAX_PASSING = 1024


class PassThrough:
    """Forwards a request unchanged to the instance with the fewest such requests in progress; retries once on another one.

    Authentication, the model check and the time limit are those of scheduled requests; the number in progress is bounded.
    """

    def __init__(self, *, fleet: Fleet, auth: Authenticator, bodies: BodyParser, observer: Observers, timeout_s: float) -> None:
        self._fleet = fleet
        self._observer = observer
        self._auth = auth
        self._bodies = bodies
        self._timeout_s = timeout_s
        self._passing = 0

    async def serve(self, http: HttpRequest, out: Responder) -> None:
        """Serves one request to its end.

        Raises:
            ApiError: The request was refused or no engine could answer; nothing has been sent.
        """
        identity = self._auth.identify(http.headers)
        claims = read_claims(http.headers, identity.limits)
        body = await http.body()
        model = await self._bodies.model(body)
        arrival_s = self._fleet.now_s()
        try:
            instance, answer = await self._answered(model, http.path, body, claims.trace_headers, out)
        except ApiError as error:
            self._observer.passed_through(error.status, self._fleet.now_s() - arrival_s)
            raise
        self._observer.passed_through(answer.status, self._fleet.now_s() - arrival_s)
        headers = {"content-type": answer.content_type, "x-request-id": answer_id(http.headers), "x-hmas-instance": instance.name}
        out.send(answer.status, headers, answer.body)

    async def _answered(self, model: str, path: str, body: bytes, trace_headers: dict[str, str], out: Responder) -> tuple[Instance, Answer]:
        """Gets an engine's answer.

        Raises:
            ApiError: No engine could answer.
        """
        self._fleet.require_model(model)
        if self._passing >= MAX_PASSING:
            raise ApiError(429, "too_many_requests", f"{MAX_PASSING} pass-through requests are in progress already", retry_after_s=1)
        self._passing += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._send_to_any(model, path, body, trace_headers, out)
        except TimeoutError:
            raise ApiError(504, "deadline_exceeded", f"no answer within {self._timeout_s:g} s", retry_after_s=1) from None
        finally:
            self._passing -= 1

    async def _send_to_any(
        self, model: str, path: str, body: bytes, trace_headers: dict[str, str], out: Responder
    ) -> tuple[Instance, Answer]:
        tried: set[str] = set()
        failure: EngineError | None = None
        while len(tried) < 2:
            candidates = self._fleet.candidates(model, tried)
            if not candidates:
                break
            instance = min(candidates, key=lambda candidate: candidate.passing)
            tried.add(instance.name)
            sent_s = self._fleet.now_s()
            try:
                answer = await self._send(instance, path, body, trace_headers, out)
            except EngineError as error:
                failure = error
                self._fleet.request_failed(instance.name, sent_s, str(error), body)
                if isinstance(error, EngineUnavailable):
                    self._fleet.mark_down(instance.name, str(error))
            else:
                if answer.status >= 500:
                    self._fleet.request_failed(instance.name, sent_s, f"status {answer.status}", body)
                else:
                    self._fleet.request_succeeded(instance.name, sent_s)
                return instance, answer
        if failure is None:
            raise ApiError(503, "no_healthy_engine", "no engine that serves this model answers", retry_after_s=5)
        raise ApiError(502, "engine_error", str(failure), retry_after_s=1)

    async def _send(self, instance: Instance, path: str, body: bytes, trace_headers: dict[str, str], out: Responder) -> Answer:
        answer = Answer()
        request_id = os.urandom(16).hex()
        instance.passing += 1
        try:
            response = await instance.engine.send(path, body, trace_headers, request_id=request_id)
            try:
                await relay(response, out, answer, head=dict, progress=lambda _: None)
            finally:
                await response.close()
        except EngineFault as fault:
            if not fault.body:
                raise
            answer.status, answer.body = fault.status, fault.body
        except asyncio.CancelledError:
            with suppress(EngineError):
                await instance.engine.abort(request_id)
            raise
        finally:
            instance.passing -= 1
        if answer.streamed:
            raise EngineFault(502, "the engine answered with a stream where none was asked for")
        return answer
