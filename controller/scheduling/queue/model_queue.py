"""The queue of the requests that the same instances can serve, and the change of its policy while it is in use."""

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
"""Why a request waits: every instance has as many requests in flight as its window allows."""
_FEW = 8
_LOAD = 512
"""Entries that one call may load into an empty structure, so that a policy that learns from the traffic has enough to learn from."""
_HEAD = 32
"""Least number of entries (if there are as many) that must be in arrival order before a planning pass; more than any pass looks at."""
_HEAD_STEP = 256


class QueuedRequest:
    """One waiting request: `place` is the structure that holds it; `overdue` and `long` are how it is counted.

    Attributes:
        passed: Number of the last change of policy that has reached it.
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
    """One queue: a policy over the requests that wait in order, a queue of the demoted ones, and a register of all in order of arrival.

    Requests of different groups never block each other: if the instances of one model are full or gone, no other model is held up.

    A change of policy goes down the register, a few entries with each call of `copy`. Entries that it has passed are in the new structure,
    the others are in the old one alone; every push, removal and re-key in between goes to the structure that holds the entry. There are two
    ways:

    - `begin(policy)`: the old structure stays active and keeps all entries. The new one is built beside it and replaces it, in one
      assignment, once it holds the same entries. A request that is dispatched meanwhile is removed from the new structure as if its client
      had left: the new policy did not serve it.
    - `begin_at_once(policy)`: for arrival order, which the register has already. The new structure is active from this moment on, and
      entries move to it from the old one, oldest first, ahead of the dispatches. All entries not yet moved came later than those moved,
      except requests that came back from an instance, which count as old.

    Attributes:
        instances: The instances that serve these requests, in the order of the configuration.
        policy: The active policy over the requests that wait in order.
        late: The demoted requests, first come first served.
        successor: The structure that `begin` builds, None if none is being built.
        rest: The structure that `begin_at_once` still moves entries from, None if there is none.
        first, last: Ends of the register: order of joining; requests that came back from an instance are in front.
        work: The work of its requests, and how fast it leaves.
        given_up: What becomes of its overdue requests.
        blocked: Why its first request could not be dispatched at the last check, empty if none was held back.
        full, down: How often a planning pass found every window full, and how often it found no instance that takes requests at all.
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
        """Sets the instances that serve its requests from now on."""
        self.instances = tuple(instances)
        self._slots = Slots(self.instances)
        self._fastest: Instance | None = None
        self._asked = 0

    def watch(self) -> None:
        """Subscribes to its instances, so that they report when they open or close."""
        self._slots = Slots(self.instances)
        for instance in self.instances:
            instance.slots.append(self._slots)

    @property
    def open(self) -> Sequence[Instance]:
        """Its instances with a free slot, in the order of the configuration."""
        return self._slots.open

    def prefill_ms(self, entry: QueueEntry) -> float:
        """The shortest measured prefill time of such a prompt on any of its instances; the prediction if none has measured any.

        With many instances the fastest is determined again only after as many calls as there are instances, so that a call costs O(1).
        """
        if len(self.instances) <= _FEW:
            return min((instance.prefill_ms(entry) for instance in self.instances), default=entry.estimates.ttft_ms)
        return self._sampled(entry).prefill_ms(entry)

    def first_token_ms(self, entry: QueueEntry) -> float | None:
        """Time within which such a request's first token usually comes on the best instance, None if no instance has measured it.

        With many instances the one with the fastest prefill counts, as above.
        """
        if len(self.instances) > _FEW:
            return self._sampled(entry).first_token_ms(entry)
        shown = [took_ms for instance in self.instances if (took_ms := instance.first_token_ms(entry)) is not None]
        return min(shown, default=None)

    def fastest(self, entry: QueueEntry) -> Sequence[Instance]:
        """All its instances if they are few; if they are many, the one with the fastest prefill."""
        return self.instances if len(self.instances) <= _FEW else (self._sampled(entry),)

    def _sampled(self, entry: QueueEntry) -> Instance:
        """The fastest of many instances, as determined some calls ago."""
        self._asked -= 1
        if self._fastest is None or self._asked <= 0:
            self._asked = len(self.instances)
            self._fastest = min(self.instances, key=lambda instance: instance.prefill_ms(entry))
        return self._fastest

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All entries of the register, which must not change meanwhile."""
        waiting = self.first
        while waiting is not None:
            yield waiting
            waiting = waiting.after

    def backwards(self) -> Iterator[QueuedRequest]:
        """The same, from the newest on."""
        waiting = self.last
        while waiting is not None:
            yield waiting
            waiting = waiting.before

    @property
    def held(self) -> int:
        """How many entries its structures hold; entries past their deadline are not counted here."""
        return len(self.policy) + len(self.late) + (len(self.rest) if self.rest is not None else 0)

    def offers(self) -> bool:
        """Whether any of its instances has a free slot; if not, counts why."""
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
        """Adds the entry to the register, as the newest or in front of all. It is in no structure yet."""
        waiting.group = self
        # A change has passed an entry at the front, and any entry if it has reached the end; it will still reach all others.
        waiting.passed = self._changes if front or self._cursor is None else 0
        neighbour = self.first if front else self.last
        if neighbour is None:
            self.first = self.last = waiting
        elif front:
            waiting.after, neighbour.before, self.first = neighbour, waiting, waiting
        else:
            waiting.before, neighbour.after, self.last = neighbour, waiting, waiting

    def leave(self, waiting: QueuedRequest) -> None:
        """Removes the entry from the register."""
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
        """Puts the entry into the order, as a new one or from the demoted ones."""
        if self.successor is None and self.rest is None:
            self.policy.push(waiting.entry, now_s)
            return
        for structure in self._homes(waiting):
            structure.push(waiting.entry, now_s)

    def rekey(self, waiting: QueuedRequest, now_s: float) -> None:
        """Updates the place of an entry in order after its estimates have changed."""
        for structure in self._homes(waiting):
            structure.rekey(waiting.entry, now_s)

    def on_overdue(self, waiting: QueuedRequest, now_s: float) -> None:
        """Notes that an entry in order has become too late for its target."""
        for structure in self._homes(waiting):
            structure.on_overdue(waiting.entry, now_s)

    def take(self, waiting: QueuedRequest) -> None:
        """Takes the entry out of the structure that its place names, if that belongs to this group."""
        request_id = waiting.entry.request.id
        if waiting.place == "late":
            self.late.discard(request_id)
        elif waiting.place == "ready":
            for structure in self._homes(waiting):
                structure.discard(request_id)

    def popped(self, waiting: QueuedRequest) -> None:
        """Notes that the active policy, or the queue of the demoted, has finally handed the entry out."""
        if self.successor is not None and waiting.place == "ready" and waiting.passed == self._changes:
            self.successor.discard(waiting.entry.request.id)

    def rank(self, waiting: QueuedRequest) -> int | None:
        """How many requests would go before it now. O(n)."""
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
        """Puts a tenant share limiter in front of every structure; entries already there are not limited until `sort` reaches them."""
        self.policy, self.late = _behind_gate(self.policy, tenancy), _behind_gate(self.late, tenancy)
        if self.successor is not None:
            self.successor = _behind_gate(self.successor, tenancy)
        if self.rest is not None:
            self.rest = _behind_gate(self.rest, tenancy)

    def sort(self, waiting: QueuedRequest, now_s: float) -> None:
        """Moves the entry to where its tenant's active limits place it."""
        if waiting.place == "expired":
            return
        for structure in (self.late,) if waiting.place == "late" else self._homes(waiting):
            if isinstance(structure, TenantShareLimiter):
                structure.sort(waiting.entry, now_s)

    # -- changes of policy --------------------------------------------------------------------------------------------

    def replace(self, policy: QueuePolicy, now_s: float) -> None:
        """Changes the policy in one step, in linear time; no other change may be in progress."""
        self.policy = rebuild(self.policy, policy, now_s)

    def begin(self, policy: QueuePolicy) -> None:
        """Starts to build an empty structure beside the active one; see the class."""
        self._changes += 1
        self.successor, self._cursor = policy, self.first

    def begin_at_once(self, policy: QueuePolicy) -> None:
        """Activates an empty structure of arrival order and starts to fill it; see the class."""
        self._changes += 1
        self.rest, self.policy, self._cursor = self.policy, policy, self.first

    def copy(self, limit: int, now_s: float) -> int:
        """Continues the change in progress, over at most `limit` entries; returns how many it passed."""
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
        """Whether the change in progress has reached the end of the register."""
        return self._cursor is None

    def fill(self, now_s: float) -> bool:
        """Moves entries ahead of a planning pass after `begin_at_once`. False if the head of the order is not there yet."""
        if self.rest is None:
            return True
        if len(self.policy) < _HEAD and self._cursor is not None:
            self.copy(_HEAD_STEP, now_s)
        return bool(len(self.policy)) or not len(self.rest)

    @property
    def complete(self) -> bool:
        """Whether the structure built by `begin` holds as many entries as the active one. A policy that loses entries never takes over."""
        return self.successor is None or len(self.successor) == len(self.policy)

    def fault(self) -> str:
        """What is wrong if it is not complete."""
        new = self.policy if self.successor is None else self.successor
        return f"policy {new.name!r} holds {len(new)} requests where {len(self.policy)} wait; {self.policy.name!r} stays in force"

    def take_over(self) -> QueuePolicy | None:
        """Completes a change that has reached the end; returns the structure that is no longer used."""
        if self.successor is not None:
            old, self.policy, self.successor = self.policy, self.successor, None
            return old
        rest, self.rest = self.rest, None
        return rest

    def give_up(self) -> QueuePolicy | None:
        """Abandons the structure that `begin` builds and returns it."""
        given_up, self.successor, self._cursor = self.successor, None, None
        return given_up

    # -- one check of each -------------------------------------------------------------------------------------------------

    def begin_review(self) -> None:
        """Starts a review: `review` returns every entry now in the register once, unless it leaves before."""
        self._review = self.first

    def review(self, limit: int) -> Iterator[QueuedRequest]:
        """The next entries of the review, at most `limit`."""
        for _ in range(limit):
            waiting = self._review
            if waiting is None:
                return
            self._review = waiting.after
            yield waiting

    @property
    def reviewed(self) -> bool:
        """Whether the review has returned all entries."""
        return self._review is None

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _homes(self, waiting: QueuedRequest) -> tuple[QueuePolicy, ...]:
        """The structures that hold an entry that waits in order."""
        if self.successor is not None and waiting.passed == self._changes:
            return (self.policy, self.successor)
        if self.rest is not None and waiting.passed != self._changes:
            return (self.rest,)
        return (self.policy,)


def _behind_gate(structure: QueuePolicy, tenancy: Tenancy) -> QueuePolicy:
    return structure if isinstance(structure, TenantShareLimiter) else gated(structure, tenancy)
