"""The scheduler's accounts: the snapshot that agents read, and the check that the sums balance."""

from collections.abc import Collection, Iterable, Sequence

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import SystemSnapshot
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.running import Running
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.results import Counts


def snapshot(
    room: WaitQueue, instances: Iterable[Instance], counts: Counts, *, now_s: float, gateway: str, forced: Sequence[str]
) -> SystemSnapshot:
    """The current state of the queue and the instances. O(running)."""
    oldest_s = room.oldest_s()
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
        dispatched_total=counts.dispatched,
        ended={kind.value: number for kind, number in counts.ended.items()},
        instances=[instance.view(now_s) for instance in instances],
        forced=list(forced),
    )


def check(room: WaitQueue, instances: Iterable[Instance], running: Collection[Running], counts: Counts) -> None:
    """Checks that no request was lost or counted twice. O(running).

    Raises:
        SchedulingError: A sum does not balance.
    """
    if counts.arrived != counts.queued + counts.running + sum(counts.ended.values()):
        raise SchedulingError(f"arrived {counts.arrived} is not queued {counts.queued} + running {counts.running} + {dict(counts.ended)}")
    if room.held() != counts.queued:
        raise SchedulingError(f"the queues hold {room.held()} entries, the register {counts.queued}")
    on = dict.fromkeys((instance.name for instance in instances), 0)
    for run in running:
        on[run.instance.name] += 1
    for instance in instances:
        if not instance.in_flight == len(instance.running) == on[instance.name]:
            raise SchedulingError(f"instance {instance.name!r} counts {instance.in_flight} in flight, books {len(instance.running)}")
