"""Serves one completion request, from its bytes to its ending. Independent of the transport and the kind of engine.

It moves bytes and decides nothing; see `active_request` for the seam.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from hmas.controller.control.estimates import Declared
from hmas.controller.core.request_body import Call
from hmas.controller.core.slo import TargetTable
from hmas.controller.core.types import DEFAULT_IMPORTANCE, EngineCached, OutcomeKind, Request, Slo, TaskType
from hmas.controller.gateway.errors import CLIENT_LEFT, ApiError, without_addresses
from hmas.controller.gateway.http.transport import HttpRequest, Responder
from hmas.controller.gateway.instances.failover import Failover
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.gateway.requests.active_request import ActiveRequest, Ending
from hmas.controller.gateway.requests.apis.kept_responses import Kept, KeptResponses
from hmas.controller.gateway.requests.apis.registry import api_of
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.event_relay import sent_retry_after
from hmas.controller.gateway.requests.manager import RequestManager
from hmas.controller.gateway.requests.parse import BYTE_ORDER_MARK, BodyParser, with_cap
from hmas.controller.gateway.requests.relay import STREAM_HEADERS, Answer, EngineFault, OnlyOpened, relay
from hmas.controller.gateway.requests.request_headers import Claims, Ids, clamp_priority, forwarded, read_claims, require_json
from hmas.controller.observability.observer import Observers
from hmas.controller.runtime.clock import Clock
from hmas.engines.errors import AnswerBroken, AnswerTooLarge, EngineError, EngineUnavailable, StaleConnection

ERROR_WRITE_S = 2.0
"""How long a slow client is waited for if only an error is left to send."""
Failure = tuple[EngineError, str, float]
"""How an instance failed a request, its name, and when it got the request."""
log = logging.getLogger(__name__)


class CompletionHandler:
    """Serves completion requests: reads, admits, waits, sends, relays, retries once, and records the ending."""

    def __init__(
        self,
        *,
        manager: RequestManager,
        fleet: Fleet,
        failover: Failover,
        auth: Authenticator,
        kept: KeptResponses,
        bodies: BodyParser,
        observer: Observers,
        clock: Clock,
        targets: TargetTable,
        request_timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
        cached_of: Callable[[Call, bytes], EngineCached | None] | None = None,
    ) -> None:
        self._manager = manager
        self._fleet = fleet
        self._failover = failover
        self._auth = auth
        self._kept = kept
        self._bodies = bodies
        self._observer = observer
        self._clock = clock
        self._default_slo = targets.target(TaskType.UNKNOWN, DEFAULT_IMPORTANCE)
        self._request_timeout_s = request_timeout_s
        self._spawn = spawn
        self._cached_of = cached_of
        self._ids = Ids()

    async def serve(self, http: HttpRequest, out: Responder) -> None:
        """Serves one request to its end.

        Raises:
            ApiError: The request was refused before it was queued; nothing has been sent yet.
            asyncio.CancelledError: The client left.
        """
        identity = self._auth.identify(http.headers)
        claims = read_claims(http.headers, identity.limits)
        require_json(http.headers)
        body = (await http.body()).removeprefix(BYTE_ORDER_MARK)
        arrival_s = self._clock.now_s()
        salt = self._manager.block_salt(identity.tenant)
        call = await self._bodies.call(http.path, body, self._fleet.only_model, salt)
        # What continues a response has to reach the instance that keeps it.
        only_on, history_tokens = self._kept.holder_of_previous(call, identity.tenant)
        serving = self._failover
        model = serving.model_on(call.model, only_on) if call.previous_response else serving.model_for(call.model)
        fields: dict[str, object] = {} if call.names_model and model == call.model else {"model": model}
        served_instead = "" if model == call.model else model
        if served_instead or history_tokens:
            # Instructions and tools, which clients send again with each request, are in the history's tokens already.
            call = replace(call, model=model, prompt_tokens=max(call.prompt_tokens, history_tokens + call.question_tokens))
        if served_instead:
            # They are hashed with the name of the model that was asked for, whose tokens may be others.
            call = replace(call, blocks=())
        call = with_cap(call, self._fleet.completion_cap)
        # One that claims none has 0, which may be better than its tenant's best.
        priority = clamp_priority(call.priority or 0, identity.limits)
        if call.priority is not None and priority != call.priority:
            fields["priority"] = priority
        if fields:
            body = await self._bodies.with_fields(body, fields)
        claims.trace_headers.update(forwarded(http.headers, api_of(http.path).forwarded))
        live = self._new_request(call, claims, body, tenant=identity.tenant, priority=priority, arrival_s=arrival_s)
        live.only_on, live.served_instead = only_on, served_instead
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
                counted=call.counted,
                max_output_tokens=call.max_output_tokens,
                min_output_tokens=call.min_output_tokens,
                has_tools=call.has_tools,
                declared_slo=slo,
                half_declared=declared.half,
                priority=priority,
                deadline_s=arrival_s + self._request_timeout_s,
                session=claims.session or call.cache_key,
                stream=call.stream,
                context_tokens=self._fleet.context_tokens(call.model),
                prompts=call.prompts,
                sequences=call.sequences,
                body_bytes=len(body),
                blocks=call.blocks,
                cached=None if self._cached_of is None else self._cached_of(call, body),
            ),
            call=call,
            client_request_id=claims.request_id or request_id,
            declared=declared,
            raised=claims.raised,
            body=body,
            trace_headers=claims.trace_headers,
            task=task,
            dispatch_future=asyncio.get_running_loop().create_future(),
        )

    async def _serve_admitted(self, live: ActiveRequest, out: Responder) -> None:
        answer = Answer()
        failures: list[Failure] = []
        try:
            while True:
                await live.dispatch_future
                answer = Answer()
                failure = await self._send(live, answer, out)
                if failure is None:
                    if failures:
                        self._accuse(live, failures)
                    return
                failures.append((failure, live.instance, live.dispatched_s))
                self._engine_failed(live, failure)
                if isinstance(failure, AnswerBroken):
                    # It keeps its slot until a poll shows whether the engine has died: others would lose their first try there.
                    live.stage = "waiting"
                    await self._fleet.instances[live.instance].read_now()
                unread = isinstance(failure, StaleConnection)
                if answer.started or not self._manager.requeue(live, str(failure), unread=unread):
                    await self._give_up(live, answer, failures, out)
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
            live.stage = "sent"
            response = await engine.send(live.call.path, live.body, live.trace_headers, request_id=request_id, priority=request.priority)
            live.stage = "head"
            try:
                await relay(
                    response,
                    out,
                    answer,
                    api=api_of(live.call.path),
                    head=lambda: {**STREAM_HEADERS, **self._answer_begins(live, answer, out, response.took_s())},
                    progress=lambda tokens: report(request_id, tokens, now_s()),
                )
            finally:
                await response.close()
        except AnswerTooLarge as error:
            # Not the engine's fault, and no other one can answer in less.
            self._stop_engine(live)
            text = without_addresses(f"engine {live.instance}: {error}")
            raise Ending(OutcomeKind.FAILED, 502, "answer_too_large", text) from None
        except EngineError as error:
            return error
        except asyncio.CancelledError:
            recalled = live.recalled
            if recalled is None or live.task.uncancel() > 0:
                raise
            return recalled
        self._deliver(live, answer, out, sent_s)
        return None

    def _deliver(self, live: ActiveRequest, answer: Answer, out: Responder, sent_s: float) -> None:
        """Records an answer that the engine has completed, frees the slot, and sends the rest of it to the client."""
        manager = self._manager
        tokens, cached = answer.output_tokens, answer.cached_tokens
        if answer.engine_error:
            self._observer.engine_failed(live.request, live.instance, answer.engine_error, self._clock.now_s())
            log.warning("engine %s failed: %s", live.instance, answer.engine_error, extra={"request_id": live.request.id})
            manager.end(live, OutcomeKind.FAILED, 200, f"engine error in the stream: {answer.engine_error}", output_tokens=tokens)
        elif answer.status >= 400:
            manager.end(live, OutcomeKind.REJECTED, answer.status, f"the engine refused it: {answer.refusal}")
        else:
            manager.end(live, OutcomeKind.COMPLETED, answer.status, output_tokens=tokens, cached_tokens=cached)
        if answer.engine_well:
            # A client's mistake is found by the engine's API server, and shows nothing about the engine behind it.
            if answer.status < 400:
                self._fleet.request_succeeded(live.instance, sent_s)
        else:
            self._fleet.request_failed(live.instance, sent_s, answer.engine_error, live.body)
        if answer.streamed:
            self._note_kept(live, answer)
            out.finish(answer.tail)
        else:
            headers = self._answer_begins(live, answer, out, answer.in_engine_s)
            out.send(answer.status, {"content-type": answer.content_type, **headers, **(answer.headers or {})}, answer.body)

    def _engine_failed(self, live: ActiveRequest, error: EngineError) -> None:
        if isinstance(error, EngineFault) and error.lacks_api:
            return
        self._observer.engine_failed(live.request, live.instance, str(error), self._clock.now_s())
        log.warning("engine %s failed: %s", live.instance, error, extra={"request_id": live.request.id})
        if isinstance(error, EngineFault) and error.refuses:
            self._fleet.avoid(live.instance, str(error), error.retry_after)
            return
        if not isinstance(error, StaleConnection):
            # The engine has not read it there, and an abort could meet the next try, which has the same id.
            self._stop_engine(live)
        if not isinstance(error, OnlyOpened):
            self._fleet.request_failed(live.instance, live.dispatched_s, str(error), live.body)
        self._fleet.connection_failed(live.instance, error)

    def _accuse(self, live: ActiveRequest, failures: list[Failure]) -> None:
        """Counts a refusal as a failure of the instance that gave it, once another instance has taken the same request.

        If all refuse alike, the request is at fault, or no instance can be preferred: no circuit opens for it.
        """
        for error, instance, sent_s in failures:
            if isinstance(error, EngineFault) and error.refuses and not error.lacks_api:
                self._fleet.request_failed(instance, sent_s, str(error), live.body)

    async def _give_up(self, live: ActiveRequest, answer: Answer, failures: list[Failure], out: Responder) -> None:
        """Ends the request without another try: the client gets the engine's own error document if it sent one, otherwise ours.

        A refusal (4xx, or 503 with a time) is passed on only if every try ended with the same one.
        """
        error = failures[-1][0]
        alike = len({one.status if isinstance(one, EngineFault) else 0 for one, _, _ in failures}) == 1
        text = without_addresses(str(error))
        if not text.startswith(f"engine {live.instance}"):
            text = f"engine {live.instance}: {text}"
        if isinstance(error, EngineFault) and not answer.started and (alike if error.refuses else error.body):
            kind = OutcomeKind.REJECTED if error.refuses else OutcomeKind.FAILED
            headers = {"content-type": "application/json", **(error.headers or {})}
            if error.status in {429, 503}:
                headers["retry-after"] = sent_retry_after(error.retry_after) or str(math.ceil(self._manager.retry_after_s(live)))
            self._manager.end(live, kind, error.status, str(error))
            body = error.body or api_of(live.call.path).error_body(ApiError(error.status, "engine_refused", text))
            out.send(error.status, {**headers, **self._headers(live)}, body)
            return
        code = "engine_unavailable" if isinstance(error, EngineUnavailable) else "engine_protocol_error"
        if isinstance(error, EngineFault):
            code = "engine_error"
        await self._send_error(live, Ending(OutcomeKind.FAILED, 502, code, text, retry_after_s=1), answer, out)

    async def _send_error(self, live: ActiveRequest, ending: Ending, answer: Answer, out: Responder) -> None:
        """Records an early end and sends it to the client, inside the stream if one has started. A client that does not read is dropped."""
        self._manager.end(live, ending.kind, ending.status, ending.message, output_tokens=answer.output_tokens)
        api = api_of(live.call.path)
        try:
            async with asyncio.timeout(ERROR_WRITE_S):
                if answer.started:
                    out.finish(answer.tail + api.error_event(ending, answer.events))
                    await out.drain()
                else:
                    out.send(ending.status, {**ending.response_headers(), **self._headers(live)}, api.error_body(ending))
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

    def _answer_begins(self, live: ActiveRequest, answer: Answer, out: Responder, in_engine_s: float) -> dict[str, str]:
        """Reports that the first bytes of the answer go out; returns the response headers.

        Raises:
            EngineSilent: The request has just been taken back from its engine, so that another one answers it from the start.
        """
        if answer.streamed:
            if live.recalled is not None:
                raise live.recalled
            self._fleet.answer_began(live.instance, live.dispatched_s)
        live.stage = "answering"
        now_s = self._clock.now_s()
        overhead_s = max(0.0, out.spent_s() - (live.dispatched_s - live.queued_s) - in_engine_s)
        self._note_kept(live, answer)
        self._observer.first_token(live.request, live.instance, overhead_s, now_s)
        return self._manager.headers(live, now_s, overhead_s)

    def _note_kept(self, live: ActiveRequest, answer: Answer) -> None:
        """Notes who keeps the answer. Of a stream its tokens are known at its end only."""
        if answer.response_id:
            charged = live.paid_tokens if answer.output_tokens is None else None
            self._kept.note(answer.response_id, Kept(live.request.tenant, live.instance, answer.total_tokens, charged))

    def _headers(self, live: ActiveRequest) -> dict[str, str]:
        return self._manager.headers(live, self._clock.now_s())
