"""Runs a queueing policy through a seeded script of all calls of a scheduler, and compares it with a plain table of waiting requests."""

from collections.abc import Mapping

import numpy as np

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy

START_S = 1_700_000_000.0
TENANTS = {"acme": 1.0, "bolt": 1.0, "crane": 3.0, "dune": 0.5}
"""Tenants of the script and their weights."""
LOOK_AHEAD = 9
"""Most entries that a scheduler pops before it puts back those that cannot be dispatched, but for those that only some instances take."""


class NonConformance(PolicyError):
    """A policy violates a requirement on every policy; the error says which, and at which step."""


def make_entry(number: int, arrival_s: float, rng: np.random.Generator) -> QueueEntry:
    """A request of a mixed workload with different tenants, sessions, priorities, targets and lengths."""
    tenant = sorted(TENANTS)[int(rng.integers(len(TENANTS)))]
    request = Request(
        id=f"r{number:06d}",
        tenant=tenant,
        model="m",
        arrival_s=arrival_s,
        prompt_tokens=int(rng.integers(1, 4000)),
        priority=int(rng.choice([0, 0, 0, 0, -3, 7])),
        session=["", "s1", "s2", "s3"][int(rng.integers(4))],
    )
    return QueueEntry(request=request, estimates=make_estimates(rng), seq=number, weight=TENANTS[tenant])


def make_estimates(rng: np.random.Generator) -> Estimates:
    """Estimates as an agent might send them."""
    slo = Slo(ttft_ms=float(rng.choice([500.0, 2000.0, 9000.0])), tpot_ms=float(rng.choice([30.0, 60.0])))
    output = float(np.clip(rng.lognormal(4.8, 1.0), 1.0, 4000.0))
    return Estimates(slo=slo, output_tokens=output, ttft_ms=float(rng.uniform(20.0, 900.0)), tpot_ms=float(rng.uniform(15.0, 45.0)))


class QueueScript:
    """Drives one policy. Every choice depends on `seed` and the waiting requests, so two equal policies get the same calls.

    Attributes:
        waiting: Requests that must be in the policy, by id.
        running: Requests that it popped and that have not ended.
        order: Ids in the order in which it popped them.
    """

    SHARES: Mapping[str, float] = {
        "push": 0.4,
        "pop": 0.31,
        "rekey": 0.08,
        "discard": 0.04,
        "lapse": 0.05,
        "end": 0.08,
        "retry": 0.04,
    }
    BURST = 24

    def __init__(self, policy: QueuePolicy, seed: int, *, probing: bool = False) -> None:
        """Accepts an empty policy. `probing`: before each step some requests are popped and put back, which must change nothing."""
        self.policy = policy
        self.seed = seed
        self.now_s = START_S
        self.waiting: dict[str, QueueEntry] = {}
        self.running: dict[str, QueueEntry] = {}
        self.order: list[str] = []
        self._rng = np.random.default_rng(seed)
        self._probes = np.random.default_rng(seed + 1) if probing else None
        self._number = 0
        self._step = 0

    def run(self, steps: int) -> None:
        """Runs a burst of arrivals, then the steps, then pops all requests.

        Raises:
            NonConformance: A request was lost or duplicated, or a count was wrong.
        """
        names = list(self.SHARES)
        for _ in range(self.BURST):
            self.push()
        for choice in self._rng.choice(len(names), size=steps, p=list(self.SHARES.values())):
            self.now_s += float(self._rng.exponential(0.3))
            self._step += 1
            if self._probes is not None:
                self.probe(int(self._probes.integers(0, LOOK_AHEAD + 1)))
            getattr(self, names[choice])()
            self.check()
        while self.waiting:
            self.pop()
            self.check()
        self.pop()

    def push(self) -> None:
        """A request arrives."""
        entry = make_entry(self._number, self.now_s, self._rng)
        self._number += 1
        self.waiting[entry.request.id] = entry
        self.policy.push(entry, self.now_s)

    def pop(self) -> None:
        """A slot becomes free."""
        entry = self.policy.pop(self.now_s)
        if entry is None:
            self.expect(not self.waiting, f"pop gives None while {len(self.waiting)} wait")
            return
        request_id = entry.request.id
        self.expect(self.waiting.pop(request_id, None) is entry, f"pop gives {request_id}, which does not wait")
        self.running[request_id] = entry
        self.order.append(request_id)

    def rekey(self) -> None:
        """An agent sends estimates of a request."""
        entry = self._picked(self.waiting)
        if entry is not None:
            entry.estimates = make_estimates(self._rng)
            self.policy.rekey(entry, self.now_s)

    def discard(self) -> None:
        """A client disconnects."""
        entry = self._picked(self.waiting)
        if entry is not None:
            self._leaves(entry.request.id, entry)

    def lapse(self) -> None:
        """A request becomes overdue and leaves the policy for the queue of demoted requests."""
        entry = self._picked(self.waiting)
        if entry is not None:
            self.policy.on_overdue(entry, self.now_s)
            self._leaves(entry.request.id, entry)

    def end(self) -> None:
        """A running request ends."""
        entry = self._picked(self.running)
        if entry is not None:
            del self.running[entry.request.id]
            self.policy.on_finished(entry, int(self._rng.integers(0, 4000)), self.now_s)

    def retry(self) -> None:
        """A request returns from a failed instance."""
        entry = self._picked(self.running)
        if entry is not None:
            del self.running[entry.request.id]
            entry.tried = frozenset({"i0"})
            self.waiting[entry.request.id] = entry
            self.policy.push(entry, self.now_s)

    def probe(self, count: int) -> None:
        """Pops some requests and puts them back, last first, as a scheduler does if it can dispatch none of them."""
        out: list[QueueEntry] = []
        while len(out) < count and (entry := self.policy.pop(self.now_s)) is not None:
            out.append(entry)
        for entry in reversed(out):
            self.policy.undo_pop(entry, self.now_s)

    def check(self) -> None:
        """Checks the conditions that must hold after every step."""
        held = len(self.policy)
        self.expect(held == len(self.waiting), f"len is {held} while {len(self.waiting)} wait")
        if self._step % 16 == 0:
            found = sorted(entry.request.id for entry in self.policy.entries())
            self.expect(found == sorted(self.waiting), "entries() are not those that wait")
            self.expect(self.policy.rank("nobody") is None, "ahead of an unknown id is not None")
            self.expect(self.policy.discard("nobody") is None, "discard of an unknown id is not None")
            for request_id in list(self.waiting)[:3]:
                ahead = self.policy.rank(request_id)
                self.expect(ahead is not None and 0 <= ahead < held, f"ahead of {request_id} is {ahead} with {held} waiting")

    def expect(self, holds: bool, otherwise: str) -> None:
        """Raises `NonConformance` unless the condition holds."""
        if not holds:
            raise NonConformance(f"{type(self.policy).__qualname__}: {otherwise} (seed {self.seed}, step {self._step})")

    def _leaves(self, request_id: str, entry: QueueEntry) -> None:
        del self.waiting[request_id]
        self.expect(self.policy.discard(request_id) is entry, f"discard of {request_id}, which waits, does not give it")
        self.expect(self.policy.discard(request_id) is None, f"a second discard of {request_id} gives something")

    def _picked(self, among: Mapping[str, QueueEntry]) -> QueueEntry | None:
        if not among:
            return None
        return among[sorted(among)[int(self._rng.integers(len(among)))]]
