"""Serves one completion request, from its bytes to its ending. Independent of the transport and the kind of engine.

It moves bytes and decides nothing; see `active_request` for the seam.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from hmas.controller.control.estimates import Declared
from hmas.controller.core.request_body import Call
from hmas.controller.core.slo import TargetTable
from hmas.controller.core.types import DEFAULT_IMPORTANCE, OutcomeKind, Request, Slo, TaskType
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.http.transport import HttpRequest, Responder
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.gateway.requests.active_request import ActiveRequest, Ending
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.manager import RequestManager
from hmas.controller.gateway.requests.parse import parse_call, with_priority
from hmas.controller.gateway.requests.relay import STREAM_HEADERS, Answer, EngineFault, relay
from hmas.controller.gateway.requests.request_headers import Claims, Ids, clamp_priority, read_claims
from hmas.controller.observability.observer import Observers
from hmas.controller.runtime.clock import Clock
from hmas.engines.errors import EngineError, EngineUnavailable

ERROR_WRITE_S = 2.0
"""How long a slow client is waited for if only an error is left to send."""
CLIENT_LEFT = 499
"""Status in logs and telemetry for a request that its client abandoned, as in nginx; it is never sent."""
log = logging.getLogger(__name__)


class CompletionHandler:
    """Serves completion requests: reads, admits, waits, sends, relays, retries once, and records the ending."""

    def __init__(
        self,
        *,
        manager: RequestManager,
        fleet: Fleet,
        auth: Authenticator,
        observer: Observers,
        clock: Clock,
        targets: TargetTable,
        request_timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
    ) -> None:
        self._manager = manager
        self._fleet = fleet
        self._auth = auth
        self._observer = observer
        self._clock = clock
        self._default_slo = targets.target(TaskType.UNKNOWN, DEFAULT_IMPORTANCE)
        self._request_timeout_s = request_timeout_s
        self._spawn = spawn
        self._ids = Ids()

    async def serve(self, http: HttpRequest, out: Responder) -> None:
        """Serves one request to its end.

        Raises:
            ApiError: The request was refused before it was queued; nothing has been sent yet.
            asyncio.CancelledError: The client left.
        """
        identity = self._auth.identify(http.headers)
        claims = read_claims(http.headers, identity.limits)
        body = await http.body()
        arrival_s = self._clock.now_s()
        call = parse_call(http.path, body)
        self._fleet.require_model(call.model)
        priority = 0
        if call.priority is not None:
            priority = clamp_priority(call.priority, identity.limits)
            if priority != call.priority:
                body = with_priority(call, priority)
        live = self._new_request(call, claims, body, tenant=identity.tenant, priority=priority, arrival_s=arrival_s)
        try:
            self._admit(live)
            await self._serve_admitted(live, out)
        finally:
            # Whatever failed before, no request is left without an outcome.
            self._manager.end(live, OutcomeKind.FAILED, 500, "the gateway failed on this request")

    def _admit(self, live: ActiveRequest) -> None:
        try:
            self._manager.admit(live)
        except ApiError as error:
            error.headers.update(self._headers(live))
            raise

    def _new_request(self, call: Call, claims: Claims, body: bytes, *, tenant: str, priority: int, arrival_s: float) -> ActiveRequest:
        request_id = self._ids.new()
        declared = Declared(claims.ttft_ms, claims.tpot_ms)
        slo: Slo | None = None
        if claims.ttft_ms is not None or claims.tpot_ms is not None:
            slo = declared.over(self._default_slo)
        task = asyncio.current_task()
        assert task is not None
        return ActiveRequest(
            request=Request(
                id=request_id,
                tenant=tenant,
                model=call.model,
                arrival_s=arrival_s,
                prompt_tokens=call.prompt_tokens,
                max_output_tokens=call.max_output_tokens,
                min_output_tokens=call.min_output_tokens,
                declared_slo=slo,
                priority=priority,
                deadline_s=arrival_s + self._request_timeout_s,
                session=claims.session or call.cache_key,
                stream=call.stream,
                context_tokens=self._fleet.context_tokens(call.model),
                sequences=call.choices,
            ),
            call=call,
            client_request_id=claims.request_id or request_id,
            declared=declared,
            body=body,
            trace_headers=claims.trace_headers,
            task=task,
            dispatch_future=asyncio.get_running_loop().create_future(),
        )

    async def _serve_admitted(self, live: ActiveRequest, out: Responder) -> None:
        answer = Answer()
        try:
            while True:
                await live.dispatch_future
                answer = Answer()
                failure = await self._send(live, answer, out)
                if failure is None:
                    return
                self._engine_failed(live, failure)
                if answer.started or not self._manager.requeue(live, str(failure)):
                    await self._give_up(live, answer, failure, out)
                    return
        except Ending as ending:
            # The future keeps the error, and the error's stack would keep the request.
            await self._send_error(live, ending.with_traceback(None), answer, out)
        except asyncio.CancelledError:
            if live.aborted is None:
                self._client_left(live)
                raise
            # The gateway itself cancelled the task: the client is still connected and receives the ending.
            live.task.uncancel()
            self._stop_engine(live)
            await self._send_error(live, live.aborted, answer, out)
        except ConnectionError:
            self._client_left(live)
        except Exception:
            log.exception("serving a request failed", extra={"request_id": live.request.id})
            self._stop_engine(live)
            await self._send_error(
                live, Ending(OutcomeKind.FAILED, 500, "internal_error", "the gateway failed on this request"), answer, out
            )

    async def _send(self, live: ActiveRequest, answer: Answer, out: Responder) -> EngineError | None:
        """Sends the request to one engine. None if the ending is recorded and the client served, otherwise how the engine failed."""
        clock, request = self._clock, live.request
        sent_s = clock.now_s()
        report, now_s, request_id = self._manager.progress, clock.now_s, request.id
        try:
            engine = self._fleet.instances[live.instance].engine
            response = await engine.send(live.call.path, live.body, live.trace_headers, request_id=request_id, priority=request.priority)
            try:
                await relay(
                    response,
                    out,
                    answer,
                    head=lambda: {**STREAM_HEADERS, **self._answer_begins(live, sent_s)},
                    progress=lambda tokens: report(request_id, tokens, now_s()),
                )
            finally:
                await response.close()
        except EngineError as error:
            return error
        self._deliver(live, answer, out, sent_s)
        return None

    def _deliver(self, live: ActiveRequest, answer: Answer, out: Responder, sent_s: float) -> None:
        """Records an answer that the engine has completed, frees the slot, and sends the rest of it to the client."""
        manager = self._manager
        tokens, cached = answer.output_tokens, answer.cached_tokens
        if answer.engine_error:
            manager.end(live, OutcomeKind.FAILED, 200, f"engine error in the stream: {answer.engine_error}", output_tokens=tokens)
        elif answer.status >= 400:
            manager.end(live, OutcomeKind.REJECTED, answer.status, f"the engine refused it: {answer.refusal}")
        else:
            manager.end(live, OutcomeKind.COMPLETED, answer.status, output_tokens=tokens, cached_tokens=cached)
        if answer.engine_well:
            self._fleet.request_succeeded(live.instance, sent_s)
        else:
            self._fleet.request_failed(live.instance, sent_s, answer.engine_error, live.body)
        if answer.streamed:
            out.finish(answer.tail)
        else:
            headers = {"content-type": answer.content_type, **self._answer_begins(live, sent_s)}
            out.send(answer.status, headers, answer.body)

    def _engine_failed(self, live: ActiveRequest, error: EngineError) -> None:
        self._observer.engine_failed(live.request, live.instance, str(error), self._clock.now_s())
        self._stop_engine(live)
        log.warning("engine %s failed: %s", live.instance, error, extra={"request_id": live.request.id})
        self._fleet.request_failed(live.instance, live.dispatched_s, str(error), live.body)
        if isinstance(error, EngineUnavailable):
            self._fleet.mark_down(live.instance, str(error))

    async def _give_up(self, live: ActiveRequest, answer: Answer, error: EngineError, out: Responder) -> None:
        """Ends the request without a second try: the client gets the engine's own error document if it sent one, otherwise ours."""
        if isinstance(error, EngineFault) and error.body and not answer.started:
            self._manager.end(live, OutcomeKind.FAILED, error.status, str(error))
            out.send(error.status, {"content-type": "application/json", **self._headers(live)}, error.body)
            return
        code = "engine_unavailable" if isinstance(error, EngineUnavailable) else "engine_protocol_error"
        if isinstance(error, EngineFault):
            code = "engine_error"
        ending = Ending(OutcomeKind.FAILED, 502, code, f"engine {live.instance}: {error}", retry_after_s=1)
        await self._send_error(live, ending, answer, out)

    async def _send_error(self, live: ActiveRequest, ending: Ending, answer: Answer, out: Responder) -> None:
        """Records an early end and sends it to the client, inside the stream if one has started. A client that does not read is dropped."""
        self._manager.end(live, ending.kind, ending.status, ending.message, output_tokens=answer.output_tokens)
        try:
            async with asyncio.timeout(ERROR_WRITE_S):
                if answer.started:
                    out.finish(answer.tail + ending.event())
                    await out.drain()
                else:
                    out.send(ending.status, {**ending.response_headers(), **self._headers(live)}, ending.body())
        except TimeoutError:
            out.abandon()
        except ConnectionError:
            return

    def _client_left(self, live: ActiveRequest) -> None:
        self._stop_engine(live)
        self._manager.end(live, OutcomeKind.CANCELLED, CLIENT_LEFT, "the client left")

    def _stop_engine(self, live: ActiveRequest) -> None:
        """Aborts the request in the engine: closing the connection alone can take seconds to be noticed."""
        if live.instance:
            self._spawn(self._fleet.instances[live.instance].engine.abort(live.request.id))

    def _answer_begins(self, live: ActiveRequest, sent_s: float) -> dict[str, str]:
        """Reports that the first bytes of the answer go out; returns the response headers."""
        now_s = self._clock.now_s()
        waited_s, in_engine_s = live.dispatched_s - live.queued_s, now_s - sent_s
        overhead_s = max(0.0, now_s - live.request.arrival_s - waited_s - in_engine_s)
        self._observer.first_token(live.request, live.instance, overhead_s, now_s)
        return self._manager.headers(live, now_s, overhead_s)

    def _headers(self, live: ActiveRequest) -> dict[str, str]:
        return self._manager.headers(live, self._clock.now_s())
