"""The scheduler's accounts: the snapshot that agents read, and the check that the sums balance."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import InstanceView, SystemSnapshot
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.room import tpot_pressure
from hmas.controller.scheduling.instances.running import Running
from hmas.controller.scheduling.queue.model_queue import QueuedRequest
from hmas.controller.scheduling.queue.model_queues import ModelQueues
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.results import Counts, TenantLoad

MODELS_CHARS = 2_048
"""Most characters of the models' names of one instance in a snapshot, which is sent several times a second."""


def snapshot(
    room: WaitQueue,
    instances: Iterable[Instance],
    counts: Counts,
    *,
    now_s: float,
    gateway: str,
    weights: Mapping[str, float],
    alone: bool,
) -> SystemSnapshot:
    """The current state of the queue and the instances; `alone`: `SystemSnapshot.wants_times_alone`. O(running + weights)."""
    oldest_s, shares = room.oldest_s(), queued_for(room.queues)
    return SystemSnapshot(
        sent_s=now_s,
        gateway=gateway,
        policy=room.queues.policy_name,
        cost_threshold=room.queues.cost_threshold,
        queued=counts.queued,
        queued_tokens=room.tokens,
        queued_long=room.long,
        overdue=room.overdue,
        oldest_wait_ms=0.0 if oldest_s is None else max(0.0, 1000.0 * (now_s - oldest_s)),
        arrived_total=counts.arrived,
        arrived_prompt_tokens_total=counts.arrived_prompt_tokens,
        dispatched_total=counts.dispatched,
        ended={kind.value: number for kind, number in counts.ended.items()},
        instances=[view(instance, room.queues.bound_to(instance.name), shares.get(instance.name, 0.0), now_s) for instance in instances],
        wants_times_alone=alone,
        tenant_weights={tenant: weight for tenant, weight in weights.items() if weight != 1.0},
    )


def queued_for(queues: ModelQueues) -> dict[str, float]:
    """See `InstanceView.queued_for`; by instance, without those for which none wait. O(groups x instances)."""
    shares: dict[str, float] = {}
    for group in queues.groups:
        waiting, instances = group.waiting, group.instances.all
        if waiting and instances:
            able = [instance for instance in instances if instance.available] or instances
            for instance in able:
                shares[instance.name] = shares.get(instance.name, 0.0) + waiting / len(able)
    return shares


def view(instance: Instance, queued: int, queued_for: float, now_s: float) -> InstanceView:
    """An instance's account as it is sent to the agents; `queued` requests wait for it alone. O(in flight)."""
    instance.refresh(now_s)
    return InstanceView(
        name=instance.name,
        in_flight=instance.in_flight,
        sequences=instance.sequences,
        in_flight_tokens=sum(run.entry.request.prompt_tokens + run.tokens for run in instance.running.values()),
        n_run=instance.n_run,
        token_budget=instance.token_budget or 0,
        guard=0.0 if instance.guard_overridden else instance.guard,
        guard_enabled=instance.guard_enabled,
        kv_committed=instance.fence.share,
        tpot_pressure=tpot_pressure(instance, now_s),
        first_token_overhead_ms=0.0 if instance.lead is None else instance.lead.ms or 0.0,
        capacity_n_run=instance.capacity_n_run,
        max_token_budget=instance.max_token_budget,
        draining=instance.draining,
        engine=instance.engine,
        profile=instance.spec.profile,
        queued=queued,
        queued_for=queued_for,
        models=_models(instance),
    )


def _models(instance: Instance) -> list[str]:
    models = instance.models or ()
    return sorted(models) if sum(map(len, models)) <= MODELS_CHARS else []


def by_tenant(room: WaitQueue, running: Iterable[Running], now_s: float) -> dict[str, TenantLoad]:
    """What each tenant has waiting and in flight. O(waiting + running)."""
    in_flight = Counter(run.entry.request.tenant for run in running)
    oldest: dict[str, QueuedRequest] = {}
    waiting: Counter[str] = Counter()
    overdue: Counter[str] = Counter()
    flooding: set[str] = set()
    for group in room.queues.groups:
        flooding.update(group.watch.flooding)
        for one in group.members.values():
            request = one.entry.request
            waiting[request.tenant] += 1
            overdue[request.tenant] += one.overdue
            if request.tenant not in oldest or request.arrival_s < oldest[request.tenant].entry.request.arrival_s:
                oldest[request.tenant] = one
    loads = {tenant: TenantLoad(running=number, floods=tenant in flooding) for tenant, number in in_flight.items()}
    for tenant, first in oldest.items():
        loads[tenant] = TenantLoad(
            waiting=waiting[tenant],
            running=in_flight[tenant],
            overdue=overdue[tenant],
            oldest_wait_ms=1000.0 * max(0.0, now_s - first.entry.request.arrival_s),
            waits_for=first.entry.blocked or first.group.blocked,
            floods=tenant in flooding,
        )
    return loads


def check(room: WaitQueue, instances: Iterable[Instance], running: Collection[Running], counts: Counts) -> None:
    """Checks that no request was lost or counted twice. O(running).

    Raises:
        SchedulingError: A sum does not balance.
    """
    if counts.arrived != counts.queued + counts.running + sum(counts.ended.values()):
        raise SchedulingError(f"arrived {counts.arrived} is not queued {counts.queued} + running {counts.running} + {dict(counts.ended)}")
    if room.held() != counts.queued:
        raise SchedulingError(f"the queues hold {room.held()} entries, the register {counts.queued}")
    names = [instance.name for instance in instances]
    requests, sequences = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for run in running:
        requests[run.instance.name] += 1
        sequences[run.instance.name] += run.entry.request.sequences
    for instance in instances:
        name = instance.name
        if not instance.in_flight == len(instance.running) == requests[name]:
            raise SchedulingError(f"instance {name!r} counts {instance.in_flight} in flight, books {len(instance.running)}")
        if instance.sequences != sequences[name]:
            raise SchedulingError(f"instance {name!r} counts {instance.sequences} sequences, its requests have {sequences[name]}")
