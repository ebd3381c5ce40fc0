"""Requests that bypass the queue: embeddings, scores, counts of tokens go straight to the least busy engine that serves their model."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hmas.controller.gateway.errors import CLIENT_LEFT, ApiError, without_addresses
from hmas.controller.gateway.http.transport import HttpRequest, Responder
from hmas.controller.gateway.instances.monitor import Fleet, Instance
from hmas.controller.gateway.instances.stall import patience_s
from hmas.controller.gateway.requests.apis.registry import FRONT_END, api_of
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.event_relay import is_refusal, sent_retry_after
from hmas.controller.gateway.requests.parse import BYTE_ORDER_MARK, BodyParser
from hmas.controller.gateway.requests.relay import LACKS_API, Answer, EngineFault, relay
from hmas.controller.gateway.requests.request_headers import answer_id, clamp_priority, forwarded, read_claims, require_json
from hmas.controller.observability.observer import Observers
from hmas.engines.base import EngineResponse
from hmas.engines.errors import AnswerTooLarge, EngineError, EngineSilent, StaleConnection

MAX_PASSING, MAX_PASSING_EACH = 1024, 768
"""Most requests in progress, of all tenants and of one."""
BYTES_PER_TOKEN = 4
"""About this many bytes of a body are a token: long inputs get more time."""
Refused = tuple[Instance, Answer, float]
"""An instance that refused a request, its answer, and when the request was sent."""


class PassThrough:
    """Forwards a request unchanged to the instance with the fewest such requests in progress; retries once on another one.

    A model that it does not name is written into it, and a priority that its tenant may not claim is replaced.

    Authentication, the model check, the requests per minute (but of counts of tokens) and the time limit are those of scheduled requests;
    the number in progress is bounded, that of a tenant too. Such answers take little time, so an engine that does not begin one within
    `head_timeout_s` hangs, and the request has failed there.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        charge: Callable[[str], None],
        auth: Authenticator,
        bodies: BodyParser,
        observer: Observers,
        timeout_s: float,
        head_timeout_s: float,
    ) -> None:
        self._fleet = fleet
        self._charge = charge
        self._observer = observer
        self._auth = auth
        self._bodies = bodies
        self._timeout_s = timeout_s
        self._head_timeout_s = head_timeout_s
        self._passing: Counter[str] = Counter()

    async def serve(self, http: HttpRequest, out: Responder) -> None:
        """Serves one request to its end.

        Raises:
            ApiError: The request was refused or no engine could answer; nothing has been sent.
        """
        identity = self._auth.identify(http.headers)
        claims = read_claims(http.headers, identity.limits)
        require_json(http.headers)
        body = (await http.body()).removeprefix(BYTE_ORDER_MARK)
        model, named, claimed = await self._bodies.model(body, self._fleet.only_model)
        fields: dict[str, object] = {} if named else {"model": model}
        if claimed is not None and (priority := clamp_priority(claimed, identity.limits)) != claimed:
            fields["priority"] = priority
        if fields:
            body = await self._bodies.with_fields(body, fields)
        to_engine = {**claims.trace_headers, **forwarded(http.headers, api_of(http.path).forwarded)}
        arrival_s = self._fleet.now_s()
        try:
            self._fleet.require_model(model)
            with self._admitted(identity.tenant, http.path):
                instance, answer = await self._answered(model, http.path, body, to_engine, out)
        except ApiError as error:
            self._observer.passed_through(error.status, self._fleet.now_s() - arrival_s)
            raise
        except asyncio.CancelledError:
            self._observer.passed_through(CLIENT_LEFT, self._fleet.now_s() - arrival_s)
            raise
        self._observer.passed_through(answer.status, self._fleet.now_s() - arrival_s)
        headers = {"content-type": answer.content_type, "x-request-id": answer_id(http.headers), "x-hmas-instance": instance.name}
        if answer.status in {429, 503}:
            headers["retry-after"] = sent_retry_after(answer.retry_after) or "1"
        out.send(answer.status, {**headers, **(answer.headers or {})}, answer.body)

    @contextmanager
    def _admitted(self, tenant: str, path: str) -> Iterator[None]:
        """Counts a request while it is in progress.

        Raises:
            ApiError: 429 if too many are, of the tenant or of all, or if the tenant has used up its requests per minute.
        """
        for count, most, whose in (
            (self._passing.total(), MAX_PASSING, ""),
            (self._passing[tenant], MAX_PASSING_EACH, f" of tenant {tenant!r}"),
        ):
            if count >= most:
                raise ApiError(429, "too_many_requests", f"{most} pass-through requests{whose} are in progress already", retry_after_s=1)
        if path not in FRONT_END:
            self._charge(tenant)
        self._passing[tenant] += 1
        try:
            yield
        finally:
            self._passing[tenant] -= 1
            if not self._passing[tenant]:
                del self._passing[tenant]

    async def _answered(self, model: str, path: str, body: bytes, headers: dict[str, str], out: Responder) -> tuple[Instance, Answer]:
        """Gets an engine's answer.

        Raises:
            ApiError: No engine could answer.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._send_to_any(model, path, body, headers, out)
        except TimeoutError:
            raise ApiError(504, "deadline_exceeded", f"no answer within {self._timeout_s:g} s", retry_after_s=1) from None

    async def _send_to_any(self, model: str, path: str, body: bytes, headers: dict[str, str], out: Responder) -> tuple[Instance, Answer]:
        tried: set[str] = set()
        failure: EngineError | None = None
        failed: tuple[Instance, Answer] | None = None
        refusals: list[Refused] = []
        for _ in range(2):
            candidates = self._fleet.candidates(model, tried)
            if not candidates and isinstance(failure, StaleConnection):
                # The instance has probably not read the request.
                candidates = self._fleet.candidates(model)
            if not candidates:
                break
            instance = candidates[0]
            if tried:
                self._observer.passed_again()
            tried.add(instance.name)
            sent_s = self._fleet.now_s()
            try:
                answer = await self._send(instance, path, body, headers, out)
            except EngineError as error:
                failure, failed = error, None
                self._failed(instance, sent_s, str(error), body)
                self._fleet.connection_failed(instance.name, error)
                continue
            if not answer.engine_well and is_refusal(answer.status, answer.retry_after):
                refusals.append((instance, answer, sent_s))
                continue
            if answer.status >= 500:
                self._failed(instance, sent_s, f"status {answer.status}", body)
                failed = instance, answer
                continue
            if answer.status < 400 and path not in FRONT_END:
                self._fleet.request_succeeded(instance.name, sent_s)
            self._accuse(refusals, body)
            return instance, answer
        if failed is not None:
            return failed
        if refusals and failure is None and all(answer.status == refusals[0][1].status for _, answer, _ in refusals):
            return refusals[-1][:2]
        if failure is None and not refusals:
            raise ApiError(503, "no_healthy_engine", "no engine that serves this model answers", retry_after_s=5)
        text = str(failure) if failure is not None else f"engine {refusals[-1][0].name}: {refusals[-1][1].refusal}"
        raise ApiError(502, "engine_error", without_addresses(text), retry_after_s=1)

    def _failed(self, instance: Instance, sent_s: float, reason: str, body: bytes) -> None:
        self._observer.passed_failed(instance.name)
        self._fleet.request_failed(instance.name, sent_s, reason, body)

    def _accuse(self, refusals: list[Refused], body: bytes) -> None:
        """Counts refusals as failures of the instances that gave them, because another instance has taken the same request."""
        for instance, answer, sent_s in refusals:
            if answer.status != LACKS_API:
                self._fleet.request_failed(instance.name, sent_s, answer.refusal, body)

    async def _send(self, instance: Instance, path: str, body: bytes, headers: dict[str, str], out: Responder) -> Answer:
        answer = Answer()
        request_id = os.urandom(16).hex()
        instance.passing += 1
        try:
            response = await self._begun(instance, path, body, headers, request_id)
            try:
                await relay(response, out, answer, api=api_of(path), head=_no_stream, progress=lambda _: None, binary=True)
            finally:
                await response.close()
        except EngineFault as fault:
            if not (fault.body or fault.refuses):
                raise
            if fault.refuses and not fault.lacks_api:
                self._observer.passed_failed(instance.name)
                self._fleet.avoid(instance.name, str(fault), fault.retry_after)
            answer.status, answer.engine_well, answer.refusal, answer.retry_after = fault.status, False, str(fault), fault.retry_after
            answer.headers = fault.headers
            text = without_addresses(f"engine {instance.name}: {fault}")
            answer.body = fault.body or api_of(path).error_body(ApiError(fault.status, "engine_refused", text))
        except AnswerTooLarge as error:
            # Not the engine's fault, and no other one can answer in less.
            raise ApiError(502, "answer_too_large", without_addresses(f"engine {instance.name}: {error}")) from None
        except asyncio.CancelledError:
            with suppress(EngineError):
                await instance.engine.abort(request_id)
            raise
        finally:
            instance.passing -= 1
        return answer

    async def _begun(self, instance: Instance, path: str, body: bytes, headers: dict[str, str], request_id: str) -> EngineResponse:
        """Sends the request and waits for the head of the answer.

        Raises:
            EngineSilent: None came in time.
            EngineError: The engine failed.
        """
        limit_s = patience_s(self._head_timeout_s, len(body) // BYTES_PER_TOKEN)
        try:
            async with asyncio.timeout(limit_s):
                return await instance.engine.send(path, body, headers, request_id=request_id)
        except TimeoutError:
            with suppress(EngineError):
                await instance.engine.abort(request_id)
            raise EngineSilent(f"engine {instance.name}: no response head within {limit_s:.3g} s") from None


def _no_stream() -> dict[str, str]:
    """Refuses a stream before its first event reaches the client. Error events are read before this is called."""
    raise EngineFault(502, "the engine answered with a stream where none was asked for")
