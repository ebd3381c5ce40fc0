"""The request manager, the only user of the scheduler: it admits requests, wakes dispatched ones, and records one ending for each.

It decides and moves no bytes; see `active_request` for the seam.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from hmas.controller.bus.base import Bus
from hmas.controller.control.agent_liveness import AgentLiveness
from hmas.controller.control.agent_scores import shape_of
from hmas.controller.control.asking import Asking
from hmas.controller.control.estimates import fault_of_cost, fault_of_features
from hmas.controller.core.messages import RequestCost, RequestFeatures, RequestNotice
from hmas.controller.core.notices import notice_of, session_digest
from hmas.controller.core.types import Estimates, OutcomeKind
from hmas.controller.gateway.control_loop.agent_watch import AgentWatch, Answers
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.gateway.instances.served_models import ACCEPT_GRACE_S
from hmas.controller.gateway.instances.stall import patience_s
from hmas.controller.gateway.requests.active_request import ActiveRequest, Ending
from hmas.controller.gateway.requests.response_headers import ratelimit_headers, response_headers
from hmas.controller.observability.completions import completion_for
from hmas.controller.observability.observer import Completion, Observers
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.refusals import ended_refused
from hmas.controller.scheduling.scheduler import Dropped, Refusal, Scheduler
from hmas.engines.errors import EngineSilent

STRANDED_AFTER_S = 30.0
"""How long a waiting request outlives the last engine that could serve it: this gives an engine time to restart."""
STRANDED_AT_ONCE = 32
STRANDED_LOOKED = 1024
ABORTS_AT_ONCE = 32
"""Most endings that one call makes; to notify a client of its ending takes longer than to find it."""


class RequestManager:
    """Admits, wakes, revises and ends requests. All calls are synchronous, so the accounts always balance between two awaits.

    Attributes:
        active: The requests in progress, by id.
        progress: Takes id, output tokens so far and time of a request whose answer has grown; the first call marks the first token.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        fleet: Fleet,
        history: History,
        bus: Bus,
        observer: Observers,
        clock: Clock,
        share_prompts: bool,
        weight_of: Callable[[str], float],
        agents: AgentWatch,
        liveness: AgentLiveness,
        asking: Asking,
    ) -> None:
        self._scheduler = scheduler
        self.progress: Callable[[str, int, float], None] = scheduler.progress
        self._fleet = fleet
        self.active: dict[str, ActiveRequest] = {}
        self._history = history
        self._bus = bus
        self._observer = observer
        self._clock = clock
        self._share_prompts = share_prompts
        self._weight_of = weight_of
        self._idle = asyncio.Event()
        self._idle.set()
        self._agents = agents
        self._liveness = liveness
        self._asking = asking
        self._pumping = False
        self._ending = False
        # Ids, not the requests: a heap keeps a value for a while after it is discarded, and a request holds its body.
        self._deadlines: LazyHeap[str] = LazyHeap()
        self._retried: dict[str, ActiveRequest] = {}

    def block_salt(self, tenant: str) -> str | None:
        """What the hashes of a prompt's blocks begin with, so that tenants share none; None where no router reads them."""
        return tenant if self._scheduler.wants_blocks else None

    def charge_passing(self, tenant: str) -> None:
        """Counts a request that passes the queue by.

        Raises:
            ApiError: 429 if its tenant has used up its requests per minute.
        """
        now_s = self._clock.now_s()
        if (refusal := self._scheduler.take_request(tenant, now_s)) is not None:
            raise self._refused(refusal, tenant, now_s)

    def _refused(self, refusal: Refusal, tenant: str, now_s: float) -> ApiError:
        headers = ratelimit_headers(self._scheduler.rates(tenant, now_s))
        return ApiError(refusal.status, refusal.code, refusal.message, retry_after_s=refusal.retry_after_s or None, headers=headers)

    def admit(self, live: ActiveRequest) -> None:
        """Queues a request; it may be dispatched before this returns.

        Raises:
            ApiError: The scheduler refuses it. Its ending is already recorded.
        """
        request = live.request
        estimates = self._history.estimate(request)
        now_s = self._clock.now_s()
        entry = self._scheduler.submit(request, estimates, now_s, self._weight_of(request.tenant), only=live.only_on)
        self._observer.received(request, live.client_request_id, live.declared, live.trace_headers, estimates)
        if isinstance(entry, Refusal):
            ended = ended_refused(request, estimates, entry, self._scheduler.policy, now_s)
            self._record(completion_for(None, ended, entry.status, entry.message, now_s=now_s))
            raise self._refused(entry, request.tenant, now_s)
        self._observer.queued(entry)
        live.entry = entry
        live.queued_s = now_s
        if live.only_on:
            # As after a failed try: it does not outlive the only instance that may still serve it.
            self._retried[request.id] = live
        answers = Answers(shape_of(turns=live.call.turns, has_tools=live.call.has_tools), estimates, asked=self._asking.all_requests)
        live.answers = answers
        self.active[request.id] = live
        self._idle.clear()
        self._refuse(self._scheduler.outranked())
        self.pump(now_s)
        if self._asking.wants(estimates, live.declared, now_s, waits=not live.instance):
            answers.asked = True
            self._bus.post(self._notice(live, now_s))
            self._liveness.asked(now_s)

    def pump(self, now_s: float | None = None) -> None:
        """Wakes every request that can be dispatched now. Called, here or by `pump_soon`, after every change."""
        if not self._scheduler.queued:
            return
        for place, dispatch in enumerate(self._scheduler.dispatch(self._clock.now_s() if now_s is None else now_s)):
            live = self.active[dispatch.entry.request.id]
            live.instance = dispatch.instance
            live.dispatched_s = self._clock.now_s()
            self._observer.dispatched(dispatch, live.dispatched_s)
            self._agents.dispatched(dispatch, self._scheduler, live.answers, live.dispatched_s)
            if self._retried:
                self._retried.pop(live.request.id, None)
            if live.request.deadline_s != float("inf"):
                self._deadlines.push(live.request.id, live.request.deadline_s, dispatch.entry.seq, live.request.id)
            if place == 0:
                live.wake(dispatch)
            else:
                # The request that is being admitted continues without a pause and would reach the engine before those dispatched earlier.
                asyncio.get_running_loop().call_soon(live.wake, dispatch)

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
        self._refuse(self._scheduler.expire(self._clock.now_s()))
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
        dropped = self._scheduler.drop_due(now_s)
        self._refuse(dropped)
        for _ in range(ABORTS_AT_ONCE):
            due = self._deadlines.peek()
            if due is None or due[0] > now_s:
                return bool(dropped) or self._scheduler.behind
            self._deadlines.discard(due[1])
            live = self.active.get(due[1])
            if live is None or live.request.deadline_s > now_s:
                continue
            took_s = now_s - live.request.arrival_s
            text = f"the deadline passed after {took_s:.1f} s, while the engine was answering"
            live.abort(Ending(OutcomeKind.TIMED_OUT, 504, "deadline_exceeded", text, retry_after_s=self.retry_after_s(live)))
        return True

    def _refuse(self, dropped: list[Dropped]) -> None:
        """Notifies the clients of the requests that the scheduler has given up."""
        now_s = self._clock.now_s()
        for one in dropped:
            live = self.active[one.entry.request.id]
            del self.active[live.request.id]
            self._retried.pop(live.request.id, None)
            self._settle()
            refusal = one.refusal
            self._observer.refused(refusal.code)
            self._record(completion_for(_cost(live), one.ended, refusal.status, refusal.message, now_s=now_s))
            live.drop(Ending(refusal.kind, refusal.status, refusal.code, refusal.message, retry_after_s=refusal.retry_after_s or None))

    def give_up_stranded(self) -> bool:
        """Ends a bounded number of waiting requests that no instance can take any more; True while there are more.

        These are requests that have lost the only instances which may still serve them (after a failed try, or because one instance keeps
        the response that they continue) for longer than `ACCEPT_GRACE_S`, and requests without any running instance for longer than
        `STRANDED_AFTER_S`.
        """
        stranded: list[ActiveRequest] = []
        down_s: dict[tuple[str, frozenset[str], str], float] = {}
        for live in list(islice(self._retried.values(), STRANDED_LOOKED)):
            if len(self._retried) > STRANDED_LOOKED:
                # The others are looked at next time.
                self._retried[live.request.id] = self._retried.pop(live.request.id)
            entry = live.entry
            if len(stranded) >= STRANDED_AT_ONCE or entry is None:
                continue
            able = live.request.model, entry.tried, entry.only
            if able not in down_s:
                # It looks at all instances, and most requests ask for the same ones.
                down_s[able] = self._fleet.down_for_s(live.request.model, entry.tried, only=entry.only)
            if down_s[able] > ACCEPT_GRACE_S:
                stranded.append(live)
        for head in self._scheduler.heads():
            room = STRANDED_AT_ONCE - len(stranded)
            if room > 0 and self._fleet.down_for_s(head.request.model) > STRANDED_AFTER_S:
                stranded += [self.active[entry.request.id] for entry in self._scheduler.oldest(head.request.model, room)]
        for live in stranded:
            first = ", and the first one tried failed" if live.request.id in self._retried else ""
            text = f"no engine that serves this model answers any more{first}"
            if live.only_on:
                text = f"engine {live.only_on}, which keeps the previous response, does not answer any more"
            self.drop(live, Ending(OutcomeKind.FAILED, 503, "no_healthy_engine", text, retry_after_s=self.retry_after_s(live)))
        return len(stranded) >= STRANDED_AT_ONCE

    def drop(self, live: ActiveRequest, ending: Ending) -> None:
        """Removes a waiting request from the queue; its task notifies the client."""
        self.end(live, ending.kind, ending.status, ending.message)
        live.drop(ending)

    def requeue(self, live: ActiveRequest, reason: str, *, unread: bool = False) -> bool:
        """Returns a request to its place in the queue after its instance failed. False if it may not be sent again.

        `unread`: the instance has probably not read it (see `Scheduler.retry`).
        """
        now_s = self._clock.now_s()
        if not self._scheduler.retry(live.request.id, now_s, unread=unread):
            return False
        self._observer.retried(live.request, reason, now_s)
        self._deadlines.discard(live.request.id)
        self._retried[live.request.id] = live
        live.wait_again(now_s)
        self.pump()
        return True

    def recall(self, instance: str, reason: str) -> None:
        """Takes the requests that an instance has not begun to answer back from it, as far as another instance can take them."""
        for request_id in self._scheduler.running_ids():
            live = self.active[request_id]
            if live.instance == instance and self._scheduler.may_retry(request_id):
                live.recall(EngineSilent(f"engine {instance} is given up: {reason}"))

    def recall_silent(self, limit_s: float) -> None:
        """Takes streamed requests back from engines that have not begun their answer within `limit_s`, and longer for long prompts.

        Only as far as another instance can take them: an engine that is slow, or has a queue of its own, is better than none.

        A response head alone is no beginning: vLLM sends it at once. An answer that is not streamed begins only when it is complete, so
        those requests are left alone.
        """
        now_s = self._clock.now_s()
        for request_id in self._scheduler.running_ids():
            live = self.active[request_id]
            waited_s = now_s - live.dispatched_s
            silent = live.request.stream and live.stage in ("sent", "head") and waited_s > limit_s
            if silent and waited_s > patience_s(limit_s, live.request.prompt_tokens) and self._scheduler.may_retry(request_id):
                live.recall(EngineSilent(f"engine {live.instance}: no answer begun within {waited_s:.0f} s"))

    def end(
        self,
        live: ActiveRequest,
        kind: OutcomeKind,
        status: int,
        reason: str = "",
        *,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """Records the ending of a request. The first ending counts; later calls do nothing."""
        if self.active.pop(live.request.id, None) is None:
            return
        self._deadlines.discard(live.request.id)
        self._retried.pop(live.request.id, None)
        self._settle()
        now_s = self._clock.now_s()
        ended = self._scheduler.end(live.request.id, kind, now_s, output_tokens, cached_tokens)
        if kind is OutcomeKind.COMPLETED:
            live.paid_tokens = ended.paid_tokens
        if live.answers is not None:
            self._agents.ended(live.answers, ended, capped=ended.output_tokens >= live.request.output_limit)
        cached, asked = cached_tokens or 0, live.answers is None or live.answers.asked
        self._record(completion_for(_cost(live), ended, status, reason, now_s=now_s, cached_tokens=cached, asked=asked))
        self.pump_soon()

    def _record(self, completion: Completion) -> None:
        """Hands on the one record of an ending. The history makes the first estimates of later requests from it."""
        self._history.learn(completion)
        self._observer.ended(completion)

    async def wait_idle(self) -> None:
        """Returns when no request is in progress."""
        await self._idle.wait()

    def _settle(self) -> None:
        if not self.active:
            self._idle.set()

    def retry_after_s(self, live: ActiveRequest) -> float:
        """When the client of a refused request may retry."""
        return self._scheduler.retry_after_s(live.request.model, self._clock.now_s())

    def headers(self, live: ActiveRequest, now_s: float, overhead_s: float | None = None) -> dict[str, str]:
        """The response headers of a request; `overhead_s` as in `response_headers`."""
        return response_headers(live, self._scheduler, now_s, overhead_s)

    def on_features(self, features: RequestFeatures) -> None:
        """Applies perception's answer about a request; a malformed one is counted and changes nothing."""
        fault = fault_of_features(features)
        if fault:
            self._observer.agent_rejected("perception", fault)
            return
        live = self.active.get(features.request_id)
        if live is None or live.entry is None or live.answers is None:
            return
        self._revise(live, self._agents.with_features(live.entry.estimates, features, live.answers, live.request, live.declared))

    def on_cost(self, cost: RequestCost) -> None:
        """Applies prediction's answer about a request."""
        fault = fault_of_cost(cost)
        if fault:
            self._observer.agent_rejected("prediction", fault)
            return
        live = self.active.get(cost.request_id)
        if live is None or live.entry is None or live.answers is None:
            return
        self._revise(live, self._agents.with_cost(live.entry.estimates, cost, live.answers))

    def _revise(self, live: ActiveRequest, estimates: Estimates) -> None:
        now_s = self._clock.now_s()
        self._scheduler.revise(live.request.id, estimates, now_s)
        self._observer.estimated(live.request, estimates, now_s)

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
