"""The queue of those requests that the same instances can serve, and how it changes its discipline while it is in use."""

from collections.abc import Iterator, Sequence
from typing import Literal

from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.slots import Slots
from hmas.controller.scheduling.policies.registry import rebuild
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.queue.backlog import QueuedWork
from hmas.controller.scheduling.queue.given_up import GivenUp
from hmas.controller.scheduling.queue.tenant_share import TenantShareLimiter, gated

Place = Literal["ready", "late", "expired"]

WINDOW = "window"
"""Why a request waits where every instance has as many in flight as its window allows."""
_FEW = 8
_LOAD = 512
"""Entries with which an empty structure may be begun in one call: a policy that learns from the traffic then has a picture of it."""
_HEAD = 32
"""Entries that stand in arrival order at least, where there are so many, before a walk begins; more than any walk looks at."""
_HEAD_STEP = 256


class QueuedRequest:
    """One waiting request: `place` is the structure that holds it, `overdue` and `long` are what it is counted as.

    Attributes:
        passed: Number of the last change of discipline that has come past it.
        before, after: Its neighbours in the register of its group.
    """

    __slots__ = ("after", "before", "entry", "group", "long", "overdue", "passed", "place")

    def __init__(self, entry: QueueEntry, group: "ModelQueue") -> None:
        self.entry = entry
        self.group = group
        self.place: Place = "ready"
        self.overdue = False
        self.long = False
        self.passed = 0
        self.before: QueuedRequest | None = None
        self.after: QueuedRequest | None = None


class ModelQueue:
    """One queue: a discipline over those that wait in order, those that were demoted, and the register of all in order of arrival.

    Requests of different groups never stand in each other's way: a model whose instances are full or gone holds up no other.

    A change of discipline goes down the register, a few entries with each call of `copy`. What it has come past is in the new
    structure, what it has not is in the old one alone, and every push, removal and re-key in between goes where the entry
    stands. There are two ways:

    - `begin(policy)`: the old structure stays the authority and keeps all. The new one is built beside it and takes over, in one
      assignment, when it holds the same. A request that is dispatched meanwhile is taken out of the new one as if its client
      had left: it is no service that the new discipline gave.
    - `begin_at_once(policy)`: for arrival order, which the register has already. The new structure is the authority from this
      moment on, and entries move to it from the old one, oldest first, ahead of what dispatches need. All that it has not got
      yet came later than all that it has, but for those that came back from an instance, which count as old.

    Attributes:
        instances: Those that serve these requests, in the order of the configuration.
        policy: The discipline in force over those that wait in order.
        late: Those that were demoted, first come first served.
        successor: What `begin` builds, None when nothing is being built.
        rest: What `begin_at_once` has not moved yet, None when it has nothing to do.
        first, last: Ends of the register: order of joining; those that came back from an instance stand in front.
        work: What its requests come to, and how fast it leaves.
        given_up: What becomes of its overdue requests.
        blocked: Why its first request could not go at the last look, empty where nothing was held back.
        full, down: How often a look for a place found every window full, and no instance that takes requests at all.
    """

    __slots__ = (
        "_asked",
        "_changes",
        "_cursor",
        "_fastest",
        "_review",
        "_slots",
        "blocked",
        "down",
        "first",
        "full",
        "given_up",
        "instances",
        "last",
        "late",
        "policy",
        "rest",
        "successor",
        "work",
    )

    def __init__(self, instances: Sequence[Instance], policy: QueuePolicy, late: QueuePolicy) -> None:
        self.policy = policy
        self.late = late
        self.work = QueuedWork()
        self.given_up = GivenUp()
        self.blocked = ""
        self.full = 0
        self.down = 0
        self.successor: QueuePolicy | None = None
        self.rest: QueuePolicy | None = None
        self.first: QueuedRequest | None = None
        self.last: QueuedRequest | None = None
        self._cursor: QueuedRequest | None = None
        self._review: QueuedRequest | None = None
        self._changes = 0
        self.serve_by(instances)

    def serve_by(self, instances: Sequence[Instance]) -> None:
        """Its requests are served by these from now on."""
        self.instances = tuple(instances)
        self._slots = Slots(self.instances)
        self._fastest: Instance | None = None
        self._asked = 0

    def watch(self) -> None:
        """Asks its instances to tell it when they open or close."""
        self._slots = Slots(self.instances)
        for instance in self.instances:
            instance.slots.append(self._slots)

    @property
    def open(self) -> Sequence[Instance]:
        """Its instances with a slot, in the order of the configuration."""
        return self._slots.open

    def prefill_ms(self, entry: QueueEntry) -> float:
        """The shortest time in which any of its instances has shown to prefill such a prompt; the prediction where none has shown any.

        With many instances the fastest is looked for anew after every so many calls as there are instances, so that a call costs O(1).
        """
        if len(self.instances) <= _FEW:
            return min((instance.prefill_ms(entry) for instance in self.instances), default=entry.estimates.ttft_ms)
        return self._sampled(entry).prefill_ms(entry)

    def first_token_ms(self, entry: QueueEntry) -> float | None:
        """Within what time such a request's first token mostly comes where it comes soonest, None where no instance has shown it.

        With many instances it is that of the one which reads prompts fastest, as above.
        """
        if len(self.instances) > _FEW:
            return self._sampled(entry).first_token_ms(entry)
        shown = [took_ms for instance in self.instances if (took_ms := instance.first_token_ms(entry)) is not None]
        return min(shown, default=None)

    def fastest(self, entry: QueueEntry) -> Sequence[Instance]:
        """Its instances where they are few, of many the one that reads prompts fastest."""
        return self.instances if len(self.instances) <= _FEW else (self._sampled(entry),)

    def _sampled(self, entry: QueueEntry) -> Instance:
        """The fastest of many, as of a while ago."""
        self._asked -= 1
        if self._fastest is None or self._asked <= 0:
            self._asked = len(self.instances)
            self._fastest = min(self.instances, key=lambda instance: instance.prefill_ms(entry))
        return self._fastest

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All in the register, which may not change meanwhile."""
        waiting = self.first
        while waiting is not None:
            yield waiting
            waiting = waiting.after

    def backwards(self) -> Iterator[QueuedRequest]:
        """The same from the newest on."""
        waiting = self.last
        while waiting is not None:
            yield waiting
            waiting = waiting.before

    @property
    def held(self) -> int:
        """How many its structures hold; those whose deadline has passed are held by nobody here."""
        return len(self.policy) + len(self.late) + (len(self.rest) if self.rest is not None else 0)

    def offers(self) -> bool:
        """Whether any of its instances has a slot; counts what was found where none has."""
        if self._slots.open:
            return True
        if any(instance.available for instance in self.instances):
            self.full += 1
            self.blocked = WINDOW
        else:
            self.down += 1
            self.blocked = ""
        return False

    # -- one request ------------------------------------------------------------------------------------------------------

    def join(self, waiting: QueuedRequest, *, front: bool = False) -> None:
        """Puts it in the register, as the newest or in front of all. It is in no structure by that."""
        waiting.group = self
        # In front, or behind where a change has come to its end, is behind it; all else it will come to.
        waiting.passed = self._changes if front or self._cursor is None else 0
        neighbour = self.first if front else self.last
        if neighbour is None:
            self.first = self.last = waiting
        elif front:
            waiting.after, neighbour.before, self.first = neighbour, waiting, waiting
        else:
            waiting.before, neighbour.after, self.last = neighbour, waiting, waiting

    def leave(self, waiting: QueuedRequest) -> None:
        """Takes it out of the register."""
        before, after = waiting.before, waiting.after
        if self._cursor is waiting:
            self._cursor = after
        if self._review is waiting:
            self._review = after
        if before is None:
            self.first = after
        else:
            before.after = after
        if after is None:
            self.last = before
        else:
            after.before = before
        waiting.before = waiting.after = None

    def put(self, waiting: QueuedRequest, now_s: float) -> None:
        """Puts it into the order, from nowhere or from among the demoted."""
        if self.successor is None and self.rest is None:
            self.policy.push(waiting.entry, now_s)
            return
        for structure in self._homes(waiting):
            structure.push(waiting.entry, now_s)

    def rekey(self, waiting: QueuedRequest, now_s: float) -> None:
        """Its estimates have changed and it stands in order."""
        for structure in self._homes(waiting):
            structure.rekey(waiting.entry, now_s)

    def on_overdue(self, waiting: QueuedRequest, now_s: float) -> None:
        """It stands in order and has become too late for its target."""
        for structure in self._homes(waiting):
            structure.on_overdue(waiting.entry, now_s)

    def take(self, waiting: QueuedRequest) -> None:
        """Takes it out of the structure that its place names, if that is one of ours."""
        request_id = waiting.entry.request.id
        if waiting.place == "late":
            self.late.discard(request_id)
        elif waiting.place == "ready":
            for structure in self._homes(waiting):
                structure.discard(request_id)

    def popped(self, waiting: QueuedRequest) -> None:
        """The policy in force, or the queue of the demoted, has handed it out for good."""
        if self.successor is not None and waiting.place == "ready" and waiting.passed == self._changes:
            self.successor.discard(waiting.entry.request.id)

    def rank(self, waiting: QueuedRequest) -> int | None:
        """How many would go before it as things stand. O(n)."""
        request_id = waiting.entry.request.id
        if waiting.place == "expired":
            return None
        if waiting.place == "ready" and (rank := self.policy.rank(request_id)) is not None:
            return rank
        structure, others = (self.late, self.rest) if waiting.place == "late" else (self.rest, None)
        behind = None if structure is None else structure.rank(request_id)
        return None if behind is None else len(self.policy) + (0 if others is None else len(others)) + behind

    # -- tenants' limits --------------------------------------------------------------------------------------------------

    def gate(self, tenancy: Tenancy) -> None:
        """Puts a gate in front of every structure that has none; what it holds already goes straight through until `sort` comes past it."""
        self.policy, self.late = _behind_gate(self.policy, tenancy), _behind_gate(self.late, tenancy)
        if self.successor is not None:
            self.successor = _behind_gate(self.successor, tenancy)
        if self.rest is not None:
            self.rest = _behind_gate(self.rest, tenancy)

    def sort(self, waiting: QueuedRequest, now_s: float) -> None:
        """Puts it where its tenant's limits in force want it."""
        if waiting.place == "expired":
            return
        for structure in (self.late,) if waiting.place == "late" else self._homes(waiting):
            if isinstance(structure, TenantShareLimiter):
                structure.sort(waiting.entry, now_s)

    # -- changes of discipline --------------------------------------------------------------------------------------------

    def replace(self, policy: QueuePolicy, now_s: float) -> None:
        """Changes the discipline in one go, in linear time; nothing may be under way."""
        self.policy = rebuild(self.policy, policy, now_s)

    def begin(self, policy: QueuePolicy) -> None:
        """Begins to build an empty structure beside the one in force; see the class."""
        self._changes += 1
        self.successor, self._cursor = policy, self.first

    def begin_at_once(self, policy: QueuePolicy) -> None:
        """Puts an empty structure of arrival order in force and begins to fill it; see the class."""
        self._changes += 1
        self.rest, self.policy, self._cursor = self.policy, policy, self.first

    def copy(self, limit: int, now_s: float) -> int:
        """Goes on with what was begun, past `limit` entries at most; returns past how many."""
        source, target = self.rest, self.policy if self.successor is None else self.successor
        waiting, done, batch = self._cursor, 0, not len(target)
        entries: list[QueueEntry] = []
        while waiting is not None and done < limit and (not batch or done < _LOAD):
            waiting.passed = self._changes
            done += 1
            if waiting.place == "ready":
                entries.append(waiting.entry)
            waiting = waiting.after
        self._cursor = waiting
        if source is not None:
            for entry in entries:
                source.discard(entry.request.id)
        if batch:
            target.load(entries, now_s)
        else:
            for entry in entries:
                target.push(entry, now_s)
        return done

    @property
    def copied(self) -> bool:
        """Whether what was begun has come to the end of the register."""
        return self._cursor is None

    def fill(self, now_s: float) -> bool:
        """Moves on ahead of a walk where arrival order was put in force at once. False where the head of the order is not there yet."""
        if self.rest is None:
            return True
        if len(self.policy) < _HEAD and self._cursor is not None:
            self.copy(_HEAD_STEP, now_s)
        return bool(len(self.policy)) or not len(self.rest)

    @property
    def complete(self) -> bool:
        """Whether what `begin` has built holds as much as the structure in force. A policy that loses entries never takes over."""
        return self.successor is None or len(self.successor) == len(self.policy)

    def fault(self) -> str:
        """What is wrong where it is not complete."""
        new = self.policy if self.successor is None else self.successor
        return f"policy {new.name!r} holds {len(new)} requests where {len(self.policy)} wait; {self.policy.name!r} stays in force"

    def take_over(self) -> QueuePolicy | None:
        """Ends what was begun and has come to its end; returns the structure that has served its time."""
        if self.successor is not None:
            old, self.policy, self.successor = self.policy, self.successor, None
            return old
        rest, self.rest = self.rest, None
        return rest

    def give_up(self) -> QueuePolicy | None:
        """Gives up what `begin` builds and returns it."""
        given_up, self.successor, self._cursor = self.successor, None, None
        return given_up

    # -- one look at each -------------------------------------------------------------------------------------------------

    def begin_review(self) -> None:
        """All in the register now will come by in `review`, once, unless they leave before."""
        self._review = self.first

    def review(self, limit: int) -> Iterator[QueuedRequest]:
        """The next of them, `limit` at most."""
        for _ in range(limit):
            waiting = self._review
            if waiting is None:
                return
            self._review = waiting.after
            yield waiting

    @property
    def reviewed(self) -> bool:
        """Whether all have come by."""
        return self._review is None

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _homes(self, waiting: QueuedRequest) -> tuple[QueuePolicy, ...]:
        """The structures that an entry which stands in order belongs to."""
        if self.successor is not None and waiting.passed == self._changes:
            return (self.policy, self.successor)
        if self.rest is not None and waiting.passed != self._changes:
            return (self.rest,)
        return (self.policy,)


def _behind_gate(structure: QueuePolicy, tenancy: Tenancy) -> QueuePolicy:
    return structure if isinstance(structure, TenantShareLimiter) else gated(structure, tenancy)
