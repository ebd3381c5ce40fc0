"""The request manager, the only user of the scheduler: it admits requests, wakes dispatched ones, and records one ending for each."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hmas.controller.bus.base import Bus
from hmas.controller.control.agent_scores import shape_of
from hmas.controller.control.estimates import Declared, fault_of_cost, fault_of_features
from hmas.controller.core.fairness import Fairness
from hmas.controller.core.messages import RequestCost, RequestFeatures, RequestNotice
from hmas.controller.core.notices import notice_of, session_digest
from hmas.controller.core.request_body import Call
from hmas.controller.core.types import Estimates, OutcomeKind, Request
from hmas.controller.gateway.control_loop.agent_watch import AgentWatch, Answers
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.gateway.requests.response_headers import ratelimit_headers
from hmas.controller.observability.completions import CompletionRecorder, Recent
from hmas.controller.observability.metrics import Metrics
from hmas.controller.observability.request_trace import RequestTraces
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Dispatch, Dropped, Refusal, Scheduler

STRANDED_AFTER_S = 30.0
"""How long a waiting request outlives the last engine that could serve it: this gives an engine time to restart."""
STRANDED_AT_ONCE = 32
CUT_AT_ONCE = 32
"""Most endings that one call makes; to notify a client of its ending takes longer than to find it."""


class Ending(ApiError):
    """An early end of an admitted request: the error that the client gets, and how it is counted."""

    def __init__(self, kind: OutcomeKind, status: int, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(status, code, message, retry_after_s=retry_after_s)
        self.kind = kind


@dataclass(slots=True)
class ActiveRequest:
    """One admitted request until its ending is recorded.

    Attributes:
        client_request_id: The id that the client sees: its own, or the internal one.
        declared: The targets that the client declared.
        body: The body that is sent to the engine.
        forward: Trace headers for the engine.
        turn: Resolves to the dispatch, or raises the `Ending` that removes the request from the queue.
        task: The task that serves the client.
        cut: Set before the task is cancelled by the gateway itself; a cancellation without it means that the client left.
        queued_s: When the scheduler admitted it.
        answers: The answers of the agents and of the gateway's history about it; None before it is admitted.
    """

    request: Request
    call: Call
    client_request_id: str
    declared: Declared
    body: bytes
    forward: dict[str, str]
    turn: asyncio.Future[Dispatch]
    task: asyncio.Task[object]
    entry: QueueEntry | None = None
    cut: Ending | None = None
    queued_s: float = 0.0
    dispatched_s: float = 0.0
    instance: str = ""
    answers: Answers | None = None


class RequestManager:
    """Admits, wakes, revises and ends requests. All calls are synchronous, so the accounts always balance between two awaits."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        fleet: Fleet,
        history: History,
        bus: Bus,
        metrics: Metrics,
        clock: Clock,
        share_prompts: bool,
        weight_of: Callable[[str], float],
        traces: RequestTraces,
        agents: AgentWatch,
    ) -> None:
        self.scheduler = scheduler
        self._fleet = fleet
        self.lives: dict[str, ActiveRequest] = {}
        self._history = history
        self._bus = bus
        self._metrics = metrics
        self._clock = clock
        self._share_prompts = share_prompts
        self._weight_of = weight_of
        self._idle = asyncio.Event()
        self._idle.set()
        self._traces = traces
        self._agents = agents
        self._recorder = CompletionRecorder(bus=bus, history=history, metrics=metrics, clock=clock, weight_of=weight_of)
        self._pumping = False
        self._ending = False
        self._deadlines: LazyHeap[ActiveRequest] = LazyHeap()
        self._retried: dict[str, ActiveRequest] = {}

    def admit(self, live: ActiveRequest) -> None:
        """Queues a request; it may be dispatched before this returns.

        Raises:
            ApiError: The scheduler refuses it. Its ending is already recorded.
        """
        request = live.request
        estimates = self._history.estimate(request)
        now_s = self._clock.now_s()
        entry = self.scheduler.submit(request, estimates, now_s, self._weight_of(request.tenant))
        if isinstance(entry, Refusal):
            self._traces.opened(request, live.client_request_id, live.declared, estimates, None)
            self._traces.closed(self._recorder.refused(request, estimates, entry, self.scheduler.policy, now_s))
            headers = ratelimit_headers(self.scheduler.rates(request.tenant, now_s))
            raise ApiError(entry.status, entry.code, entry.message, retry_after_s=entry.retry_after_s or None, headers=headers)
        self._traces.opened(request, live.client_request_id, live.declared, estimates, entry)
        live.entry = entry
        live.queued_s = now_s
        live.answers = Answers(shape_of(turns=live.call.turns, has_tools=live.call.has_tools), estimates)
        self.lives[request.id] = live
        self._idle.clear()
        self._bus.post(self._notice(live, now_s))
        self._refuse(self.scheduler.outranked())
        self.pump(now_s)

    def pump(self, now_s: float | None = None) -> None:
        """Wakes every request that can be dispatched now. Called, here or by `pump_soon`, after every change."""
        if not self.scheduler.queued:
            return
        for place, dispatch in enumerate(self.scheduler.dispatch(self._clock.now_s() if now_s is None else now_s)):
            live = self.lives[dispatch.entry.request.id]
            live.instance = dispatch.instance
            live.dispatched_s = self._clock.now_s()
            self._traces.sent(dispatch, live.dispatched_s)
            self._agents.dispatched(dispatch, self.scheduler, live.dispatched_s)
            if self._retried:
                self._retried.pop(live.request.id, None)
            if live.request.deadline_s != float("inf"):
                self._deadlines.push(live.request.id, live.request.deadline_s, dispatch.entry.seq, live)
            if place == 0:
                _wake(live.turn, dispatch)
            else:
                # The request that is being admitted continues without a pause and would reach the engine before those dispatched earlier.
                asyncio.get_running_loop().call_soon(_wake, live.turn, dispatch)

    def pump_soon(self) -> None:
        """Schedules one `pump` after all events that have come in so far are recorded.

        The tokens and endings of one engine step arrive together; a slot that is filled in between would be filled on mixed figures of two
        steps.
        """
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pumping = False
        self.pump()

    def expire(self) -> None:
        """Performs the tick: ends requests that waited or ran too long, a batch in each turn of the event loop."""
        self._refuse(self.scheduler.expire(self._clock.now_s()))
        if not self._ending:
            self._end_batches()

    def _end_batches(self) -> None:
        """Ends one batch, and continues after other callbacks while there may be more."""
        self._ending = False
        if self._end_due():
            self._ending = True
            asyncio.get_running_loop().call_soon(self._end_batches)
            self.pump()

    def _end_due(self) -> bool:
        """Ends some of the expired requests; True while there may be more."""
        now_s = self._clock.now_s()
        dropped = self.scheduler.drop_due(now_s)
        self._refuse(dropped)
        for _ in range(CUT_AT_ONCE):
            due = self._deadlines.peek()
            if due is None or due[0] > now_s:
                return bool(dropped) or self.scheduler.behind
            live = due[1]
            self._deadlines.discard(live.request.id)
            if live.request.deadline_s > now_s:
                continue
            took_s = now_s - live.request.arrival_s
            text = f"the deadline passed after {took_s:.1f} s, while the engine was answering"
            self.cut(live, Ending(OutcomeKind.TIMED_OUT, 504, "deadline_exceeded", text, retry_after_s=self.retry_after_s(live)))
        return True

    def _refuse(self, dropped: list[Dropped]) -> None:
        """Notifies the clients of the requests that the scheduler has given up."""
        now_s = self._clock.now_s()
        for one in dropped:
            live = self.lives[one.entry.request.id]
            del self.lives[live.request.id]
            self._retried.pop(live.request.id, None)
            self._settle()
            refusal = one.refusal
            self._traces.closed(self._recorder.ended(live.request, _cost(live), one.ended, refusal.status, refusal.message, now_s=now_s))
            ending = Ending(refusal.kind, refusal.status, refusal.code, refusal.message, retry_after_s=refusal.retry_after_s or None)
            if not live.turn.done():
                live.turn.set_exception(ending)

    def give_up_stranded(self) -> bool:
        """Ends a bounded number of waiting requests that no instance can take any more; True while there are more.

        These are retried requests that have lost their only other instances, and requests without any running instance for longer than the
        grace period.
        """
        stranded: list[ActiveRequest] = []
        for live in list(self._retried.values())[:STRANDED_AT_ONCE]:
            entry = live.entry
            if entry is not None and self._fleet.down_for_s(live.request.model, entry.tried) > 0.0:
                stranded.append(live)
        for head in self.scheduler.heads():
            room = STRANDED_AT_ONCE - len(stranded)
            if room > 0 and self._fleet.down_for_s(head.request.model) > STRANDED_AFTER_S:
                stranded += [self.lives[entry.request.id] for entry in self.scheduler.oldest(head.request.model, room)]
        for live in stranded:
            first = ", and the first one tried failed" if live.request.id in self._retried else ""
            text = f"no engine that serves this model answers any more{first}"
            self.drop(live, Ending(OutcomeKind.FAILED, 503, "no_healthy_engine", text, retry_after_s=self.retry_after_s(live)))
        return len(stranded) >= STRANDED_AT_ONCE

    def drop(self, live: ActiveRequest, ending: Ending) -> None:
        """Removes a waiting request from the queue; its task notifies the client."""
        self.end(live, ending.kind, ending.status, ending.message)
        if not live.turn.done():
            live.turn.set_exception(ending)

    def cut(self, live: ActiveRequest, ending: Ending) -> None:
        """Ends a request by the gateway's own decision; its task notifies the client."""
        if live.cut is None:
            live.cut = ending
            live.task.cancel()

    def requeue(self, live: ActiveRequest, reason: str) -> bool:
        """Returns a request to its place in the queue after its instance failed. False if it has already been retried."""
        if not self.scheduler.retry(live.request.id, self._clock.now_s()):
            return False
        self._metrics.retries.inc()
        self._traces.failed(live.request.id, reason)
        self._deadlines.discard(live.request.id)
        self._retried[live.request.id] = live
        live.turn = asyncio.get_running_loop().create_future()
        live.instance = ""
        live.dispatched_s = 0.0
        self.pump()
        return True

    def progress(self, live: ActiveRequest, tokens: int, now_s: float) -> None:
        """Records the output tokens so far; the first call marks the first token."""
        self.scheduler.progress(live.request.id, tokens, now_s)

    def end(
        self,
        live: ActiveRequest,
        kind: OutcomeKind,
        status: int,
        reason: str = "",
        *,
        output_tokens: int | None = None,
        cached_tokens: int = 0,
    ) -> None:
        """Records the ending of a request. The first ending counts; later calls do nothing."""
        if self.lives.pop(live.request.id, None) is None:
            return
        self._deadlines.discard(live.request.id)
        self._retried.pop(live.request.id, None)
        self._settle()
        now_s = self._clock.now_s()
        ended = self.scheduler.end(live.request.id, kind, now_s, output_tokens, cached_tokens)
        if live.answers is not None:
            self._agents.ended(live.answers, ended, capped=ended.output_tokens >= live.request.output_limit)
        completion = self._recorder.ended(live.request, _cost(live), ended, status, reason, now_s=now_s, cached_tokens=cached_tokens)
        self._traces.closed(completion)
        self.pump_soon()

    async def wait_idle(self) -> None:
        """Returns when no request is in progress."""
        await self._idle.wait()

    def _settle(self) -> None:
        if not self.lives:
            self._idle.set()

    def retry_after_s(self, live: ActiveRequest) -> float:
        """When the client of a refused request may retry."""
        return self.scheduler.retry_after_s(live.request.model, self._clock.now_s())

    def on_features(self, features: RequestFeatures) -> None:
        """Applies perception's answer about a request; a malformed one is counted and changes nothing."""
        fault = fault_of_features(features)
        if fault:
            self._metrics.agent_faults.labels("perception").inc()
            return
        live = self.lives.get(features.request_id)
        if live is None or live.entry is None or live.answers is None:
            return
        self._believe(live, self._agents.with_features(live.entry.estimates, features, live.answers, live.request, live.declared))

    def on_cost(self, cost: RequestCost) -> None:
        """Applies prediction's answer about a request."""
        fault = fault_of_cost(cost)
        if fault:
            self._metrics.agent_faults.labels("prediction").inc()
            return
        live = self.lives.get(cost.request_id)
        if live is None or live.entry is None or live.answers is None:
            return
        self._believe(live, self._agents.with_cost(live.entry.estimates, cost, live.answers))

    def _believe(self, live: ActiveRequest, estimates: Estimates) -> None:
        now_s = self._clock.now_s()
        self.scheduler.revise(live.request.id, estimates, now_s)
        self._traces.believed(live.request.id, estimates, now_s)

    def recent(self) -> Recent:
        """The figures of the last minute."""
        return self._recorder.recent()

    def fairness(self) -> Fairness:
        """How evenly tenants were served over the last minute while they competed."""
        return self._recorder.fairness()

    def _notice(self, live: ActiveRequest, now_s: float) -> RequestNotice:
        return notice_of(
            live.call,
            request_id=live.request.id,
            sent_s=now_s,
            tenant=live.request.tenant,
            session=session_digest(live.request.session),
            ttft_slo_ms=live.declared.ttft_ms or 0.0,
            tpot_slo_ms=live.declared.tpot_ms or 0.0,
            context_tokens=live.request.context_tokens,
            share_prompts=self._share_prompts,
        )


def _cost(live: ActiveRequest) -> RequestCost | None:
    return None if live.answers is None else live.answers.cost


def _wake(turn: "asyncio.Future[Dispatch]", dispatch: Dispatch) -> None:
    # A task that was cancelled at this moment has a cancelled future; it records its own ending when it wakes.
    if not turn.done():
        turn.set_result(dispatch)
