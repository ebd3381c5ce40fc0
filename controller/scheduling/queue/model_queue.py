"""The queue of the requests that the same instances can serve, under one policy."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from operator import attrgetter
from typing import Literal

from hmas.controller.core.errors import SchedulingError
from hmas.controller.scheduling.admission.guard_pause import GuardPause
from hmas.controller.scheduling.admission.kept_pace import KeptPace
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.instance_group import InstanceGroup
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.queue.drain_rate import GivenUp, QueuedWork
from hmas.controller.scheduling.queue.flood_watch import service_of
from hmas.controller.scheduling.queue.tenant_accounts import TenantAccounts
from hmas.controller.scheduling.queue.tenant_queues import TenantQueues
from hmas.controller.scheduling.queue.tenant_share import TenantShareLimiter, sharing

Place = Literal["ready", "late", "expired"]

WINDOW, GUARD, STRICTER, PROMPTS = "window", "TPOT guard", "stricter TPOT targets", "prompts ahead"
"""Why a request waits: every instance has as many requests in flight as its window allows, it would cost a TPOT target, it leaves room for
requests with stricter ones, or prompts ahead of it would make its first token late."""

_LOOKED_AT = 1000
"""Waiting requests that are looked at to tell whether all wait for their own tenants' limits."""


class QueuedRequest:
    """One waiting request: `place` is the structure that holds it; `overdue` and `long` are how it is counted."""

    __slots__ = ("entry", "group", "long", "overdue", "place")

    def __init__(self, entry: QueueEntry, group: "ModelQueue") -> None:
        self.entry = entry
        self.group = group
        self.place: Place = "ready"
        self.overdue = False
        self.long = False


class Passes:
    """How often planning passes over some queues found every window `full`, and no instance that takes requests at all (`down`)."""

    __slots__ = ("down", "full")

    def __init__(self) -> None:
        self.full = 0
        self.down = 0


class ModelQueue:
    """One queue: a policy over the requests that wait in order, a queue of the demoted ones, and a register of all.

    Requests of different groups never block each other: if the instances of one model are full or gone, no other model is held up.

    Attributes:
        instances: The instances that serve these requests.
        ready: The requests that wait in order, under the active policy.
        late: The demoted requests, first come first served.
        members: All its waiting requests by id, in order of joining; those that came back from an instance are in front.
        work: The work of its requests, and how fast it leaves.
        given_up: What becomes of its overdue requests.
        blocked: Why its first request could not be dispatched at the last check, empty if none was held back.
        passes: How often a planning pass found no free slot here; the queues of instances have one count together.
        guard_pause: Whether the TPOT guard pauses for its requests.
        kept_pace: The TPOT target that its requests with looser ones leave room for.
        watch: Which of its tenants flood, and what they leave free for the others.
    """

    __slots__ = (
        "_accounts",
        "_counted",
        "_given",
        "_tenancy",
        "_uncounted",
        "blocked",
        "given_up",
        "guard_pause",
        "instances",
        "kept_pace",
        "late",
        "members",
        "passes",
        "ready",
        "watch",
        "work",
    )

    def __init__(self, instances: InstanceGroup, policy: QueuePolicy, late: QueuePolicy, tenancy: Tenancy, passes: Passes) -> None:
        """Starts empty, with empty policies. `tenancy`: the limits of tenants."""
        self.instances = instances
        self._accounts = TenantAccounts(tenancy.waiting)
        self.watch = self._accounts.watch
        self.ready = TenantShareLimiter(sharing(policy, self._accounts), tenancy)
        self.late = TenantShareLimiter(sharing(late, self._accounts), tenancy)
        self.members: OrderedDict[str, QueuedRequest] = OrderedDict()
        self.work = QueuedWork()
        self.given_up = GivenUp()
        self.guard_pause = GuardPause()
        self.kept_pace = KeptPace()
        self.blocked = ""
        self.passes = passes
        self._tenancy = tenancy
        self._counted: InstanceGroup | None = None
        self._given = self._uncounted = 0.0

    def offers(self) -> bool:
        """Whether any of its instances has a free slot; if not, counts why."""
        if self.instances.open:
            return True
        if any(instance.available for instance in self.instances.all):
            self.passes.full += 1
            self.blocked = WINDOW
        else:
            self.passes.down += 1
            self.blocked = ""
        return False

    @property
    def first(self) -> QueuedRequest | None:
        """The oldest of its requests, None if none waits."""
        return next(iter(self.members.values()), None)

    @property
    def waiting(self) -> int:
        """How many requests wait for its instances: 0 if each waits for another one of its own tenant to end (`max_running`).

        Of the oldest ones alone, so that this is O(1).
        """
        requests = (one.entry.request for one in islice(self.members.values(), _LOOKED_AT))
        return 0 if all(self._tenancy.capped(one.tenant, one.sequences) for one in requests) else len(self.members)

    @property
    def held(self) -> int:
        """How many entries its structures hold; entries past their deadline are not counted here."""
        return len(self.ready.policy) + len(self.late.policy)

    def put(self, waiting: QueuedRequest, now_s: float) -> None:
        """Adds the entry to the structure that its place names, if that belongs to this group."""
        if waiting.place == "ready":
            self.ready.push(waiting.entry, now_s)
        elif waiting.place == "late":
            self.late.push(waiting.entry, now_s)

    def take(self, waiting: QueuedRequest) -> None:
        """Takes the entry out of the structure that its place names, if that belongs to this group."""
        if waiting.place == "ready":
            self.ready.policy.discard(waiting.entry.request.id)
        elif waiting.place == "late":
            self.late.policy.discard(waiting.entry.request.id)

    def rank(self, waiting: QueuedRequest) -> int | None:
        """How many requests would go before it now. O(n)."""
        request_id = waiting.entry.request.id
        if waiting.place == "ready":
            return self.ready.policy.rank(request_id)
        behind = self.late.policy.rank(request_id) if waiting.place == "late" else None
        return None if behind is None else len(self.ready.policy) + behind

    def owes_late(self) -> bool:
        """Whether tenants that go next by their share have only overdue requests waiting, while others have some in time."""
        ready, late = self.ready.policy, self.late.policy
        if not len(late) or not isinstance(ready, TenantQueues) or not isinstance(late, TenantQueues):
            return False
        return late.owed_tag() < ready.lowest_tag() < math.inf

    def asks(self, entry: QueueEntry, now_s: float) -> None:
        """Records that a request comes, before it is pushed."""
        self._accounts.asks(entry, now_s)
        self.guard_pause.asked(entry, now_s)
        if entry.request.tenant not in self.watch.flooding:
            self.kept_pace.asked(entry, now_s)
        self._accounts.look(len(self.members), now_s, self.produced)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """See `TenantAccounts.reweigh`."""
        self._accounts.reweigh(weights)

    def became_late(self, now_s: float) -> None:
        """Records that one of its requests becomes overdue."""
        if self.blocked in {GUARD, STRICTER}:
            self.guard_pause.became_late(now_s)

    def produced(self, now_s: float) -> float:
        """The service that its instances have given to requests of any model since they serve it. O(instances)."""
        made = [instance.produced(now_s) for instance in self.instances.all]
        total = service_of(sum(prompts for prompts, _ in made), sum(outputs for _, outputs in made))
        if self._counted is not self.instances:
            self._counted, self._uncounted = self.instances, total - self._given
        self._given = total - self._uncounted
        return self._given

    def finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Corrects the accounts for a request that has ended with `output_tokens` output tokens, whichever queue it came from."""
        self.watch.ended(now_s)
        self._accounts.look(len(self.members), now_s, self.produced)
        self.ready.policy.on_finished(entry, output_tokens, now_s)
        if not isinstance(self.ready.policy, TenantQueues):  # else both have the same accounts
            self.late.policy.on_finished(entry, output_tokens, now_s)

    def give_back(self, entry: QueueEntry, now_s: float) -> None:
        """Takes back what its queues have counted for a request that went from here, came back, and is to wait in another group."""
        for queue in (self.ready, self.late):
            queue.push(entry, now_s)
            queue.policy.discard(entry.request.id)

    def filled(self, policy: QueuePolicy, now_s: float) -> QueuePolicy:
        """Fills an empty policy with the requests that wait in order, oldest first, and returns it, made to share among tenants.

        Raises:
            SchedulingError: It holds fewer or more requests than wait in order: the policy loses some. Or it raised an error: a policy may
                be a plugin, and may raise anything.
        """
        made = sharing(policy, self._accounts)
        ready = sorted((waiting.entry for waiting in self.members.values() if waiting.place == "ready"), key=attrgetter("seq"))
        fault = ""
        try:
            made.load(ready, now_s)
        except Exception as error:  # noqa: BLE001 - a plugin's
            fault = f"failed to load the requests ({error!r})"
        if not fault and len(made) != len(ready):
            fault = f"holds {len(made)} requests where {len(ready)} wait"
        if fault:
            self.drop(made)
            raise SchedulingError(f"policy {policy.name!r} {fault}; the former one stays active")
        return made

    def adopt(self, made: QueuePolicy) -> None:
        """Makes a policy from `filled` the active one."""
        self.drop(self.ready.policy)
        self.ready = TenantShareLimiter(made, self._tenancy)

    def drop(self, made: QueuePolicy) -> None:
        """Gives up a policy with all that it holds: another one holds the same requests."""
        if isinstance(made, TenantQueues):
            made.leave()
