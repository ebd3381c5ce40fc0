"""The scheduler, driven by the gateway and the simulation alike: it decides which request runs next, and where."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import SystemSnapshot
from hmas.controller.core.placement import Choice, Router
from hmas.controller.core.types import Estimates, OutcomeKind, Request
from hmas.controller.scheduling import accounts
from hmas.controller.scheduling import refusals as endings
from hmas.controller.scheduling.admission.assumed_targets import attainable
from hmas.controller.scheduling.admission.quotas import Tenancy, TenantLimits
from hmas.controller.scheduling.dispatch import DispatchPlanner, PlannedDispatch
from hmas.controller.scheduling.idle_holds import IdleHolds
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.kv_fence import upper_tokens
from hmas.controller.scheduling.instances.likeness import pool_windows
from hmas.controller.scheduling.intake import QueueAdmission, told_s
from hmas.controller.scheduling.policies.registry import check_parameters, own_parameters
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_control import make_instance
from hmas.controller.scheduling.queue.model_queue import QueuedRequest
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.reports import SchedulerReports
from hmas.controller.scheduling.results import Counts, Dispatch, Dropped, Ended, Refusal
from hmas.controller.scheduling.retry import may_resend
from hmas.controller.scheduling.routers import Routers
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

__all__ = ["Counts", "Dispatch", "Dropped", "Ended", "InstanceSpec", "Refusal", "Scheduler", "SchedulerSettings"]

POOL_EVERY_S = 1.0
DROPPED_AT_ONCE = 32
"""Most requests that one call ends: to notify the client of each costs more than to find it."""


class Scheduler(SchedulerReports):
    """Takes requests in and returns dispatches. Pure: the caller passes the time, which never goes back.

    At any time a request is either waiting, running or ended, and it ends exactly once (`check_conservation`). Every call is O(log n) in
    the waiting requests unless stated otherwise; `dispatch` with every window full is O(1).
    """

    def __init__(
        self,
        *,
        settings: SchedulerSettings,
        instances: Sequence[InstanceSpec],
        router: Router,
        policy: str,
        parameters: Mapping[str, float] | None = None,
        tenants: Mapping[str, TenantLimits] | None = None,
    ) -> None:
        """Starts empty. `tenants`: the limits of tenants that have any.

        Raises:
            PolicyError: The policy or a parameter is not allowed.
            SchedulingError: Two instances share a name, or a window is below 1.
        """
        if len({spec.name for spec in instances}) != len(instances):
            raise SchedulingError(f"instance names must be unique, not {', '.join(spec.name for spec in instances)}")
        made = {spec.name: make_instance(spec, settings) for spec in instances}
        tenancy = Tenancy(tenants or {}, tuple(made.values()))
        weights: dict[str, float] = {}
        complete = check_parameters(policy, parameters)
        room = WaitQueue(
            tuple(made.values()),
            policy=policy,
            parameters=own_parameters(complete),
            demoting=settings.overdue != "keep",
            service_share=settings.late_service_share,
            shown=settings.late_confidence > 0.0,
            overdue_wait_s=settings.overdue_wait_s,
            tenancy=tenancy,
            weights=weights,
            binds=settings.binding == "arrival",
        )
        super().__init__(settings, made, DispatchPlanner(settings, Routers(router), tenancy), room, weights=weights, tenancy=tenancy)
        self._hint_guard(complete)
        self._admission = QueueAdmission(settings, room, tenancy)
        self._binds = settings.binding == "arrival"
        self._idle_holds = IdleHolds()
        self._given_up: list[Dropped] = []
        self._seq = 0
        self._turn = 0
        self._pool_s = float("-inf")
        self._arrived = self._arrived_prompt_tokens = 0
        self._dispatched = 0
        self._ended: dict[OutcomeKind, int] = dict.fromkeys(OutcomeKind, 0)

    # -- the path of one request ------------------------------------------------------------------------------------------------

    def submit(self, request: Request, estimates: Estimates, now_s: float, weight: float = 1.0, *, only: str = "") -> QueueEntry | Refusal:
        """Admits a request to the queue. `only`: the one instance that may take it, empty for any.

        Returns:
            Its entry; or a refusal, and then the request has ended as rejected: 429 if the queue is full or its tenant's quota is used up,
            400 if its prompt alone exceeds the KV fence of every instance that serves its model. If no instance serves the model, or none
            is healthy, the request is not refused but waits.

        Raises:
            SchedulingError: A live request has the same id.
        """
        if request.id in self._running or self._wait_queue.get(request.id) is not None:
            raise SchedulingError(f"request id {request.id!r} is already live; ids must be unique among live requests")
        self._arrived += 1
        self._arrived_prompt_tokens += request.prompt_tokens
        self._wait_queue.settle(now_s)
        is_full = self._admission.is_full(request)
        refusal = self._admission.refusal(request, estimates, now_s, is_full=is_full)
        if refusal is not None:
            self._ended[refusal.kind] += 1
            return refusal
        entry = QueueEntry(request=request, estimates=estimates, seq=self._seq, weight=self._weights.get(request.tenant, weight), only=only)
        self._seq += 1
        entry.estimates = self._attainable(entry, estimates, arrives=True)
        if self._binds:
            self._binding.bind(entry, self._planner.avoided, now_s)
        self._wait_queue.add(entry, now_s)
        if is_full and (worst := self._wait_queue.backlog.worst()) is not None:
            loser = self._wait_queue.remove(worst[1])
            assert loser is not None, "the backlog lists those that wait"
            self._given_up.append(self._dropped(loser, OutcomeKind.SHED, now_s, endings.outranked))
        return entry

    def outranked(self) -> list[Dropped]:
        """Requests that had to make way for a newly admitted one; each is reported once, here or by `drop_due`."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def revise(self, request_id: str, estimates: Estimates, now_s: float) -> bool:
        """Gives a request new estimates; a waiting one is re-keyed (True). False if it is running, gone or unknown.

        A running request keeps the new estimates for its fence booking and for the residuals in `Ended.entry`.
        """
        waiting = self._wait_queue.get(request_id)
        if waiting is not None:
            return self._wait_queue.revise(request_id, self._attainable(waiting.entry, estimates), now_s)
        run = self._running.get(request_id)
        if run is not None:
            run.believe(self._attainable(run.entry, estimates))
            run.instance.rebook(run, self._planner.bounds)
        return False

    def _attainable(self, entry: QueueEntry, estimates: Estimates, *, arrives: bool = False) -> Estimates:
        # Prediction's answer has the targets of the estimates before, which were raised then.
        was_raised, request = not arrives and estimates.slo is entry.estimates.slo, entry.request
        if self.settings.headroom <= 0.0 or was_raised or (request.declared_slo is not None and not request.half_declared):
            return estimates
        return attainable(request, estimates, self._wait_queue.queues.of(request.model).instances.fastest(entry), self.settings)

    def dispatch(self, now_s: float) -> list[Dispatch]:
        """All requests that can be dispatched now, in order; each counts as in flight from now on."""
        self._wait_queue.sweep(now_s)
        if self._binds:
            self._binding.rebind(self._planner.avoided, now_s)
        sent: list[Dispatch] = []
        groups = self._wait_queue.queues.to_look_at()
        idle = 0
        while idle < len(groups):
            group = groups[self._turn % len(groups)]
            found = self._planner.find(group, now_s)
            self._turn = (self._turn + 1) % len(groups)
            if found is None:
                idle += 1
            else:
                idle = 0
                sent.append(self._start(found, now_s))
        if self.settings.idle_relief:
            sent += [self._relieve(*held, now_s) for held in self._idle_holds.take(self.tenancy, self._planner.relieves, now_s)]
        return sent

    def expire(self, now_s: float) -> list[Dropped]:
        """Performs the gateway's tick and returns the requests that it ends.

        The tick samples the instances' speed, pools the windows of those that are alike (`pool_windows`), begins and ends pauses of the
        TPOT guard, chooses the pace that it keeps (`KeptPace`), and ends expired waiting requests (`drop_due`).
        """
        for instance in self.instances.values():
            instance.sample(now_s)
        if now_s >= self._pool_s:
            self._pool_s = now_s + POOL_EVERY_S
            pool_windows(self.instances.values())
        self._admission.sample(now_s)
        for group in self._wait_queue.queues.groups:
            group.guard_pause.look(group.instances.all, now_s)
            group.kept_pace.look(group.instances.all, now_s)
        self._idle_holds.look(self._wait_queue.queues.groups, now_s)
        return self.drop_due(now_s)

    def drop_due(self, now_s: float) -> list[Dropped]:
        """Ends expired waiting requests, at most `DROPPED_AT_ONCE`: if it returns any, there may be more.

        Expired are requests past their deadline (timed out), demoted ones that have waited for `overdue_wait_s` beyond their target, and
        all overdue ones if `overdue` is `shed`. Running requests are not touched: the code that streams them watches their deadline and
        calls `end`.
        """
        self._wait_queue.sweep(now_s)
        dropped = self.outranked()
        expired = self._wait_queue.take_expired(DROPPED_AT_ONCE)
        dropped += [
            self._dropped(entry, OutcomeKind.TIMED_OUT, now_s, endings.timed_out)
            if entry.request.deadline_s <= now_s
            else self._dropped(entry, OutcomeKind.SHED, now_s, endings.waited_out)
            for entry in expired
        ]
        if self.settings.overdue == "shed":
            late = self._wait_queue.take_late(DROPPED_AT_ONCE - len(dropped), now_s)
            dropped += [self._dropped(entry, OutcomeKind.SHED, now_s, endings.shed) for entry in late]
        return dropped

    def progress(self, request_id: str, tokens: int, now_s: float) -> None:
        """Records that a running request has produced `tokens` output tokens; the first call marks its first token. Else no effect.

        They are counted as events of its stream. Where an engine puts several tokens into an event, they are corrected (`DecodeTally`).
        """
        run = self._running.get(request_id)
        if run is not None:
            run.instance.progress(run, tokens, now_s)

    def retry(self, request_id: str, now_s: float, *, unread: bool = False) -> bool:
        """Returns a running request that its instance failed to its old place in the queue; it goes there again only after an outage.

        Returns False, and changes nothing, if it does not run, has produced tokens, was sent twice, or no other instance can take it.

        Args:
            request_id: Its id.
            now_s: The time.
            unread: The instance has probably not read it: if no other instance can take it, it may go to the same one again. That is the
                only second try of a request which no other instance may take.
        """
        run = self._running.get(request_id)
        if run is None:
            return False
        elsewhere = self.may_retry(request_id)
        if not elsewhere and not (unread and may_resend(run)):
            return False
        del self._running[request_id]
        self.tenancy.stopped(run.entry.request)
        run.instance.finish(run, now_s)
        self._planner.routers.ended(run.entry.request, run.instance.name, None)
        run.entry.resent = True
        if elsewhere:
            run.entry.tried = frozenset({run.instance.name})
        if self._binds:
            self._wait_queue.queues.holding(run.entry).give_back(run.entry, now_s)
            self._binding.bind(run.entry, self._planner.avoided, now_s)
        self._wait_queue.add(run.entry, now_s, returned=True)
        return True

    def end(
        self, request_id: str, kind: OutcomeKind, now_s: float, output_tokens: int | None = None, cached_tokens: int | None = None
    ) -> Ended:
        """Ends a waiting or running request.

        Args:
            request_id: Its id.
            kind: How it ended.
            now_s: The time.
            output_tokens: The engine's own count, None to take the last one given to `progress`, corrected as there.
            cached_tokens: Prompt tokens that the engine found cached, None if it does not report them.

        Raises:
            SchedulingError: No live request has this id, or a waiting one is reported as completed.
        """
        run = self._running.pop(request_id, None)
        if run is not None:
            if kind is not OutcomeKind.COMPLETED:
                run.instance.refresh(now_s)
            elif run.first_s is None:
                run.instance.answered()
                run.instance.tally.answered(run.entry.request, output_tokens or 0)
            elif output_tokens is not None:
                run.instance.tally.told(run, output_tokens)
            run.instance.finish(run, now_s)
            self._planner.routers.ended(run.entry.request, run.instance.name, cached_tokens)
            self._ended[kind] += 1
            ended = endings.ended_running(run, kind, now_s, output_tokens)
            request = run.entry.request
            if ended.kind is OutcomeKind.COMPLETED and run.expectation is not None and request.sequences == 1:
                run.instance.pace.foresight.ended(run.expectation, ended.tpot_ms, ended.output_tokens)
            self.tenancy.stopped(request)
            self.tenancy.settle(request, endings.charged_tokens(ended), now_s)
            self._wait_queue.queues.holding(run.entry).finished(run.entry, ended.paid_tokens, now_s)
            return ended
        entry = None if kind is OutcomeKind.COMPLETED else self._wait_queue.remove(request_id)
        if entry is None:
            raise SchedulingError(f"request id {request_id!r} cannot end as {kind}: it is not live, or waits and so cannot have completed")
        return self._end_waiting(entry, kind, now_s)

    # -- accounts ---------------------------------------------------------------------------------------------------------

    def snapshot(self, now_s: float, gateway: str) -> SystemSnapshot:
        """Queue and instances. O(running)."""
        self._wait_queue.sweep(now_s)
        return accounts.snapshot(
            self._wait_queue,
            self.instances.values(),
            self.counts(),
            now_s=now_s,
            gateway=gateway,
            weights=self._weights,
            alone=self.wants_times_alone,
        )

    @property
    def held_while_idle_s(self) -> Mapping[str, float]:
        """Seconds for which requests waited beside an instance with spare capacity, by reason, since the start."""
        return self._idle_holds.seconds

    def glance(self, model: str) -> tuple[int, int, int, int]:
        """Waiting requests, dispatches, and how often, for `model`, all windows were full or no engine was available. O(1).

        Where requests are bound at arrival, how often any instance filled up while requests waited for it.
        """
        passes = self._wait_queue.queues.passes(model)
        return len(self._wait_queue), self._dispatched, passes.full, passes.down

    def counts(self) -> Counts:
        """The parts of the conservation sum."""
        return Counts(
            arrived=self._arrived,
            arrived_prompt_tokens=self._arrived_prompt_tokens,
            queued=len(self._wait_queue),
            running=len(self._running),
            dispatched=self._dispatched,
            ended=dict(self._ended),
        )

    def check_conservation(self) -> None:
        """Checks that no request was lost or counted twice. O(running).

        Raises:
            SchedulingError: A sum does not balance.
        """
        accounts.check(self._wait_queue, self.instances.values(), self._running.values(), self.counts())

    def retry_after_s(self, model: str, now_s: float) -> float:
        """When the client of a refused request for this model may retry, 1 to 60 s (see `QueueAdmission`)."""
        return self._admission.retry_after_s(model, now_s)

    def models(self, now_s: float) -> dict[str, tuple[int, float]]:
        """By model that any instance names: how many requests wait for the same instances, and `retry_after_s`. O(models x instances)."""
        queues = self._wait_queue.queues
        return {
            model: (sum(group.held for group in queues.serving(model)), self._admission.retry_after_s(model, now_s))
            for model in sorted(queues.models())
        }

    def _start(self, found: PlannedDispatch, now_s: float) -> Dispatch:
        self._wait_queue.remove(found.entry.request.id, popped=True)
        choice = found.choice
        bound = self._book(
            found.entry, found.tokens, self.instances[choice.instance], now_s, late=found.late, cached_tokens=choice.cached_tokens
        )
        if bound is not None:
            choice = replace(bound, reason=f"bound to it at arrival: {bound.reason}")
        order = self.policy
        if found.late:
            order = "overdue, by the share of its tenant" if found.owed else "overdue, after all that are on time"
        reason = f"{order}; {choice.reason}"
        return Dispatch(entry=found.entry, instance=choice.instance, reason=reason, relieved=found.relieved, scores=choice.scores)

    def _relieve(self, waiting: QueuedRequest, instance: Instance, now_s: float) -> Dispatch:
        """Dispatches a request that was held back for too long beside an instance that is less than half full (`IdleHolds`)."""
        entry, why, overdue = waiting.entry, waiting.group.blocked, waiting.overdue
        self._wait_queue.serve(waiting, now_s)
        self._book(entry, upper_tokens(entry, self._planner.bounds), instance, now_s, late=overdue)
        reason = f"held by {why} for {now_s - entry.request.arrival_s:.1f} s beside this instance, which is less than half full"
        return Dispatch(entry=entry, instance=instance.name, reason=reason, relieved=why)

    def _book(
        self, entry: QueueEntry, tokens: int, instance: Instance, now_s: float, *, late: bool, cached_tokens: int | None = None
    ) -> Choice | None:
        """Counts a request as in flight; returns why it was bound to the instance, None if it was not."""
        entry.skipped = 0
        self._running[entry.request.id] = instance.start(entry, tokens, self.policy, now_s, late=late, cached_tokens=cached_tokens)
        self._planner.guard.dispatched(instance)
        bound = self._binding.leaves(entry)
        if bound is None:
            self._planner.routers.sent(entry, instance.name, now_s)
        self.tenancy.started(entry.request)
        self._dispatched += 1
        group = self._wait_queue.queues.holding(entry)
        group.watch.sent(entry, now_s)
        group.work.sample(now_s)
        if late:
            group.given_up.ended(dropped=False)
        return bound

    def _dropped(self, entry: QueueEntry, kind: OutcomeKind, now_s: float, tell: Callable[[QueueEntry, float, float], Refusal]) -> Dropped:
        refusal = tell(entry, now_s, told_s(self._wait_queue.queues.holding(entry).work.wait_s(now_s)))
        return Dropped(entry=entry, refusal=refusal, ended=self._end_waiting(entry, kind, now_s))

    def _end_waiting(self, entry: QueueEntry, kind: OutcomeKind, now_s: float) -> Ended:
        self._ended[kind] += 1
        self._binding.gives_up(entry)
        self.tenancy.settle(entry.request, 0, now_s)
        return endings.ended_waiting(entry, kind, self.policy, now_s)
