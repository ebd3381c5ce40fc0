"""The planning pass: looks down a queue for the first request that can be dispatched to an instance."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from hmas.controller.core.messages import LengthBound
from hmas.controller.core.placement import Choice
from hmas.controller.scheduling.admission.cache_wait import waits_for_cache
from hmas.controller.scheduling.admission.flood_reserve import FloodReserve
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.admission.tpot_guard import TpotGuard
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.instance_group import InstanceGroup, Least
from hmas.controller.scheduling.instances.kv_fence import upper_tokens
from hmas.controller.scheduling.instances.room import may_pass_fence
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.model_queue import GUARD, PROMPTS, STRICTER, WINDOW, ModelQueue, QueuedRequest
from hmas.controller.scheduling.queue.tenant_share import TenantShareLimiter
from hmas.controller.scheduling.routers import Routers
from hmas.controller.scheduling.settings import SchedulerSettings

LOOK_AHEAD = 8
"""Entries that one planning pass may pass because they are held back (by fence, guard, or because no free slot is allowed for them), and as
many that leave room for requests with stricter TPOT targets."""
BARRED_MOST = 256
"""Entries that it may pass besides because no instance with a free slot may take them: they say nothing of those behind them."""
KEPT_FREE, ALREADY_TRIED, LATE_SHARE = "instance reserved", "failed there before", "limit for overdue requests"
ROUTER, FENCE = "router", "KV cache full"
PINNED = "only one instance may serve it"
RESERVED, TOO_SMALL = "room kept for other tenants", "instance too small"
"""Why an entry could not be dispatched. If several instances refused it, the reason of the last one counts."""
PAST_FENCE = (
    "past the KV fence: full by forecast, not by the engine's report, and to wait would cost a preemption's time or the TTFT target"
)
LONGER_CONTEXT = "the context of others may end the answer"
"""Why an instance goes before others that the router ranks higher."""
PAUSED = "TPOT guard, which pauses"
"""What would hold a request that is dispatched all the same (`GuardPause`)."""
PATIENCE = 16
"""How often an entry may be passed before an instance is kept free for it."""


@dataclass(frozen=True)
class PlannedDispatch:
    """The result of a planning pass: the entry, already out of its queue, its KV tokens at the upper length, its instance, and `late`.

    `owed`: it is overdue, and goes before requests in time of tenants that got more of the service. `relieved`: as in `Dispatch`.
    """

    entry: QueueEntry
    tokens: int
    choice: Choice
    late: bool
    owed: bool = False
    relieved: str = ""


class DispatchPlanner:
    """Takes the policy's next request that fence and guard admit and the router finds an instance for.

    A request takes a slot for each of its sequences; one with more sequences than a window has slots goes to an instance that is empty.

    Entries that are held back are passed, up to a bounded number. An entry that was passed too often gets an instance kept free: the one
    with the most free KV cache, of those that can hold it at all, takes no other request until it has room for that entry. Its free KV
    cache only grows meanwhile, so the entry is dispatched in the end. A request whose tenant floods does not pass one of another tenant
    that waits for room: each small request that it sends ahead takes the room that a larger one waits for. Where room is kept from it, it
    does not pass a full fence either.

    Demoted requests are considered only if no other request that may be dispatched waits in their group, and then fill an instance only up
    to a share (see `Instance.late_window`); or if their tenant has got less of the service than its weight gives it, and has no request in
    time. Requests of a tenant at its share of the windows are considered only if no request of another
    tenant waits before them, in order or demoted.

    Attributes:
        bounds: The active conformal bounds, in the order of their buckets.
        guard: The TPOT guard.
        fenced: Whether the KV fence holds. `fence_in_bypass`: whether it does in the emergency bypass.
        routers: The routers of the models.
        avoided: Instances that get a request only if no other one can take it: they lately refused some for reasons of their own.
    """

    __slots__ = (
        "_flood_reserve",
        "_late_share",
        "_overcommits",
        "_serves_late",
        "_tenancy",
        "avoided",
        "bounds",
        "fence_in_bypass",
        "fenced",
        "guard",
        "routers",
    )

    def __init__(self, settings: SchedulerSettings, routers: Routers, tenancy: Tenancy) -> None:
        self.routers = routers
        self._flood_reserve = FloodReserve()
        self._tenancy = tenancy
        self._late_share = settings.late_share
        self._overcommits = settings.fence_overcommit
        self._serves_late = settings.overdue == "demote"
        self.guard = TpotGuard(settings.tpot_guard)
        self.bounds: tuple[LengthBound, ...] = ()
        self.avoided: frozenset[str] = frozenset()
        self.fence_in_bypass = settings.fence_in_bypass
        self.fenced = True

    def forget(self, instance: str) -> None:
        """Forgets an instance that has left."""
        self.guard.forget(instance)
        self._flood_reserve.forget(instance)
        self.routers.left(instance)
        self.avoided -= {instance}

    def find(self, group: ModelQueue, now_s: float) -> PlannedDispatch | None:
        """The next dispatch of a group, None if no request can go. O(1) in the waiting requests if no instance has a free slot."""
        waiting = len(group.ready.policy) or (self._serves_late and len(group.late.policy))
        if not waiting:
            group.blocked = ""
        if not waiting or not group.offers():
            return None
        if self._tenancy.bounded:
            self._tenancy.look()
        if self._serves_late and group.owes_late():
            _, found = self._search(group.late, group, now_s, late=True, owed=True)
            if found is not None:
                return found
        looked, found = self._search(group.ready, group, now_s, late=False)
        if not looked and self._serves_late:
            _, found = self._search(group.late, group, now_s, late=True)
        return found

    def _search(
        self, source: TenantShareLimiter, group: ModelQueue, now_s: float, *, late: bool, owed: bool = False
    ) -> tuple[bool, PlannedDispatch | None]:
        """Whether there was any entry to consider, and the dispatch that was found. `owed`: only the first entry is considered."""
        kept_out = self._kept_out(group)
        for tenant in kept_out:
            source.policy.close_tenant(tenant, now_s)
        looked, found = self._walk(source, group, now_s, late=late, owed=owed)
        for tenant in kept_out:
            source.open_tenant(tenant, now_s)
        if kept_out and not looked:
            group.blocked = RESERVED
        return looked, found

    def _walk(
        self, source: TenantShareLimiter, group: ModelQueue, now_s: float, *, late: bool, owed: bool
    ) -> tuple[bool, PlannedDispatch | None]:
        passed: list[QueueEntry] = []
        barred = leave_room = 0
        kept_free: set[str] = set()
        held_floods: list[str] = []
        found: PlannedDispatch | None = None
        take: Callable[[float], QueueEntry | None] = source.pop
        entry = take(now_s)
        if entry is None and not owed:
            take = source.pop_limited
            entry = take(now_s)
        awaits_room = False
        while entry is not None:
            floods = entry.request.tenant in group.watch.flooding
            if floods and awaits_room:
                passed.append(entry)
                break
            tokens = upper_tokens(entry, self.bounds)
            found = self._place(entry, tokens, group, kept_free, now_s, late=late, owed=owed)
            if found is not None:
                break
            passed.append(entry)
            is_barred = _is_barred(entry)
            barred += is_barred
            awaits_room |= not floods and entry.blocked in (FENCE, GUARD, PROMPTS)
            if floods:
                # What holds one request of a flood holds most of them, and behind them wait those of the others.
                held_floods.append(entry.request.tenant)
                source.policy.close_tenant(entry.request.tenant, now_s)
            elif entry.blocked == STRICTER:
                leave_room += 1
            elif entry.skipped >= PATIENCE and entry.blocked != PROMPTS and not (is_barred and entry.request.sequences == 1):
                kept_free |= _roomiest(entry, group.instances, kept_free)
            looked = len(passed) - barred - min(leave_room, LOOK_AHEAD)
            entry = take(now_s) if looked <= LOOK_AHEAD and barred < BARRED_MOST and not owed else None
        group.blocked = passed[0].blocked if passed and found is None else ""
        for held_back in reversed(passed):
            held_back.skipped += found is not None
            source.policy.undo_pop(held_back, now_s)
        for tenant in held_floods:
            source.open_tenant(tenant, now_s)
        return bool(passed) or found is not None, found

    def _kept_out(self, group: ModelQueue) -> Sequence[str]:
        """Tenants that flood, if no instance has room for more of them."""
        if not group.watch.reserve.share or any(self._takes_flood(instance, group) for instance in group.instances.open):
            return ()
        return sorted(group.watch.flooding)

    def _takes_flood(self, instance: Instance, group: ModelQueue) -> bool:
        return self._flood_reserve.spares(instance, group.watch.flooding, group.watch.reserve)

    def _place(
        self, entry: QueueEntry, tokens: int, group: ModelQueue, kept_free: set[str], now_s: float, *, late: bool, owed: bool
    ) -> PlannedDispatch | None:
        """The dispatch to the first instance of the router's ranking that fence and guard admit the request to.

        The router ranks first because fence and guard have to look at all requests in flight on an instance. Where the guard refuses it
        beside its cached prompt, it may wait (`waits_for_cache`). An instance whose KV cache or context can never hold the request is
        passed while another one's can (`InstanceGroup.least_to_hold`): its engine would refuse it for good.
        """
        request = entry.request
        watch = group.watch
        floods = watch.reserve.share > 0.0 and request.tenant in watch.flooding
        least = group.instances.least_to_hold(entry) if entry.blocked == TOO_SMALL else None
        barred = PINNED if entry.only else ALREADY_TRIED if entry.tried else TOO_SMALL if least else ""
        reason = RESERVED if floods else KEPT_FREE if kept_free else barred or (LATE_SHARE if late else WINDOW)
        spares_work = group.given_up.spares_work
        cached_ms: float | None = None
        kept_ms = _kept_ms(entry, group, now_s)
        for pool in filter(None, self._pools(entry, group, kept_free, now_s, late=late, owed=owed, floods=floods, least=least)):
            ranked = False
            for chosen, choice in self._ranking(entry, tokens, pool, now_s):
                ranked = True
                if not chosen.can_hold(request.model, tokens, request.context_needed):
                    least = least or group.instances.least_to_hold(entry)
                    if not chosen.can_hold(request.model, *least):
                        reason = reason if reason in (FENCE, GUARD, PROMPTS) else TOO_SMALL
                        continue
                if chosen.fence.capacity_tokens:
                    chosen.refresh(now_s)
                reason = FENCE
                fits = not self.fenced or chosen.fence.admits(tokens)
                if fits or (not floods and self._passes_fence(entry, tokens, chosen, now_s, spares_work=spares_work)):
                    cached = choice.cached_tokens
                    if cached_ms is not None and waits_for_cache(entry, cached_ms, chosen, cached, now_s):
                        reason = GUARD
                        continue
                    behind = not late and self.guard.is_late_behind(entry, chosen, None if floods else cached, now_s)
                    admits = not behind and self.guard.admits(
                        entry,
                        chosen,
                        now_s,
                        late=late,
                        flooding=watch.flooding,
                        kept_ms=kept_ms,
                        is_easy=group.kept_pace.is_easy,
                        cached_tokens=cached,
                    )
                    if admits or (not floods and group.guard_pause.lets_go(chosen, late=late)):
                        placed = choice if fits else replace(choice, reason=f"{choice.reason}; {PAST_FENCE}")
                        return PlannedDispatch(entry, tokens, placed, late, owed, "" if admits else PAUSED)
                    if not late and not behind:
                        chosen.wanted(now_s)
                    reason = PROMPTS if behind else GUARD
                    if cached_ms is None and cached:
                        cached_ms = chosen.prefill_ms(entry, cached)
            if not ranked:
                reason = ROUTER
                break
        entry.hold(_told(reason, entry, group, leaves_room=kept_ms < inf, late=late))
        return None

    def relieves(self, waiting: QueuedRequest, instance: Instance, now_s: float) -> bool:
        """Whether a held request may go to an instance that shows room: the TPOT guard has to admit it, as it goes by measurements.

        Room that is kept from a flood stays free. O(in flight).
        """
        entry, group, flooding, late = waiting.entry, waiting.group, waiting.group.watch.flooding, waiting.overdue
        floods = group.watch.reserve.share > 0.0 and entry.request.tenant in flooding
        if (floods and not self._takes_flood(instance, group)) or (not late and self.guard.is_late_behind(entry, instance, None, now_s)):
            return False
        kept_ms, is_easy = _kept_ms(entry, group, now_s), group.kept_pace.is_easy
        admits = self.guard.admits(entry, instance, now_s, late=late, flooding=flooding, kept_ms=kept_ms, is_easy=is_easy)
        return admits or (not floods and group.guard_pause.lets_go(instance, late=late))

    def _ranking(self, entry: QueueEntry, tokens: int, pool: Sequence[Instance], now_s: float) -> Iterator[tuple[Instance, Choice]]:
        """The router's ranking; instances whose context is likely to end the answer come last.

        The answer's length is the upper one (`tokens`), or the median as long as forecasts have not proven right.
        """
        request, estimates = entry.request, entry.estimates
        output = tokens - request.prompt_tokens if estimates.proven else int(min(estimates.output_tokens, request.output_limit))
        context = request.prompt_tokens // request.prompts + output // request.sequences
        later: list[tuple[Instance, Choice]] = []
        for chosen, choice in self.routers.ranking(entry, pool, now_s):
            if chosen.context.get(request.model, context) < context:
                later.append((chosen, choice))
            else:
                yield chosen, replace(choice, reason=f"{choice.reason}; {LONGER_CONTEXT}") if later else choice
        yield from later

    def _passes_fence(self, entry: QueueEntry, tokens: int, instance: Instance, now_s: float, *, spares_work: bool) -> bool:
        """Whether a request joins beyond the fence: its forecast may be wrong, but not where the engine misses targets already.

        There a preempted request is late for certain, and one sequence more costs the others. In `lab/benchmarks/guard_study.py --steep` up
        to 9 points more of all requests are good past capacity by this rule.
        """
        return (
            self._overcommits
            and may_pass_fence(entry, tokens, instance, now_s, spares_work=spares_work)
            and self.guard.suits_all(entry, instance)
        )

    def _pools(
        self,
        entry: QueueEntry,
        group: ModelQueue,
        kept_free: set[str],
        now_s: float,
        *,
        late: bool,
        owed: bool,
        floods: bool,
        least: Least | None,
    ) -> list[Sequence[Instance]]:
        """The instances that the router may rank; those that are avoided stand apart, for when no other one takes the request.

        `least`: what an instance has to hold for it (`InstanceGroup.least_to_hold`), if a pass before found that some do not.
        """
        # Usually no instance is excluded, and with hundreds of instances the check of each is the cost of a dispatch.
        candidates: Sequence[Instance] = group.instances.open
        sequences, only, paused = entry.request.sequences, entry.only, group.guard_pause.sequences + 1.0
        if late or entry.tried or only or kept_free or sequences > 1 or floods or least:
            candidates = [
                instance
                for instance in candidates
                if instance.holds(sequences, instance.n_run)
                and (not late or owed or instance.sequences < max(paused, instance.late_window(self._late_share, now_s)))
                and instance.name not in entry.tried
                and (not only or instance.name == only)
                and instance.name not in kept_free
                and (not floods or self._takes_flood(instance, group))
                and (least is None or instance.can_hold(entry.request.model, *least))
            ]
        if not self.avoided:
            return [candidates]
        return [
            [instance for instance in candidates if instance.name not in self.avoided],
            [instance for instance in candidates if instance.name in self.avoided],
        ]


def _kept_ms(entry: QueueEntry, group: ModelQueue, now_s: float) -> float:
    """The TPOT target of others that the request has to suit, infinite for none (`TpotGuard.admits`)."""
    watch = group.watch
    return watch.reserve.tpot_ms if entry.request.tenant in watch.flooding else group.kept_pace.target_ms(entry, now_s)


def _told(reason: str, entry: QueueEntry, group: ModelQueue, *, leaves_room: bool, late: bool) -> str:
    """Why an entry waits, as it is shown. Others may have to leave room for one that the guard holds back."""
    if reason != GUARD or entry.request.tenant in group.watch.flooding:
        return reason
    if not late:
        group.kept_pace.refused(entry, leaves_room=leaves_room)
    return STRICTER if leaves_room else reason


def _is_barred(entry: QueueEntry) -> bool:
    """Whether an entry was held back because it may not go where a slot is free. Once one is free where it may go, it has its turn."""
    return entry.blocked == TOO_SMALL or (bool(entry.only or entry.tried) and entry.blocked in (PINNED, ALREADY_TRIED, KEPT_FREE))


def _roomiest(entry: QueueEntry, instances: InstanceGroup, kept_free: set[str]) -> set[str]:
    least = instances.least_to_hold(entry)
    able = [i for i in instances.all if i.may_take(entry) and i.name not in kept_free and i.can_hold(entry.request.model, *least)]
    return {max(able, key=lambda instance: instance.fence.free_bytes).name} if able else set()
