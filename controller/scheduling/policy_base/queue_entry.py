"""The entry that a queue holds, and the contract of a queueing policy."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.policy_base.signals import Signal


@dataclass
class QueueEntry:
    """One waiting or running request with what is believed about it.

    Attributes:
        request: What the gateway was asked.
        estimates: What is believed; replaced as agents answer.
        seq: Arrival order, unique; every policy breaks its ties by it, so runs are deterministic.
        weight: The tenant's weight for fair policies.
        tried: Instances that have already failed this request.
        skipped: How often the fence let others pass it.
        held: How often it was looked at and left where it is, by reason; None before the first time.
        blocked: The reason of the last of these times.
    """

    request: Request
    estimates: Estimates
    seq: int
    weight: float = 1.0
    tried: frozenset[str] = field(default_factory=frozenset)
    skipped: int = 0
    held: dict[str, int] | None = None
    blocked: str = ""

    def hold(self, reason: str) -> None:
        """It was looked at and could not go, for a reason out of a fixed few."""
        self.blocked = reason
        if self.held is None:
            self.held = {}
        self.held[reason] = self.held.get(reason, 0) + 1

    @property
    def ttft_deadline_s(self) -> float:
        """When the first token is due: a_r + SLO_ttft."""
        return self.request.arrival_s + self.estimates.slo.ttft_ms / 1000.0

    @property
    def deadline_s(self) -> float:
        """D_r = a_r + SLO_ttft + SLO_tpot * l_pred (H-MAS 3.5)."""
        slo = self.estimates.slo
        return self.request.arrival_s + (slo.ttft_ms + slo.tpot_ms * self.estimates.output_tokens) / 1000.0


class QueuePolicy(Protocol):
    """A queueing discipline over waiting entries. Pure: time comes in as `now_s`.

    Every entry is in the policy at most once, by `request.id`. Costs are per call with n entries waiting.

    A policy that puts costly requests behind others has a property `cost_threshold` besides: the highest cost in tokens that is served in
    turn, infinite where all are. Operators see it, and the twin's replays begin with it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for operators: what it is for."""
    default_parameters: ClassVar[Mapping[str, float]]
    """Parameters it takes, with their defaults. Names not listed are refused."""
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]]
    """Lowest and highest value of each parameter."""
    signals: ClassVar[tuple[Signal, ...]]
    """What it orders by, and what stands in where that is not known."""
    starvation: ClassVar[str]
    """The bound on how long or how often a request may be passed; or "starves: " and who, and when."""
    complexity: ClassVar[str]
    """What its calls cost with n requests in f flows waiting."""
    source: ClassVar[str]
    """Where it comes from: paper and section."""
    parameters: Mapping[str, float]
    """Parameters in force, defaults filled in."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        """Takes parameters that are already checked and complete: see `hmas.controller.scheduling.policies.registry.make_policy`."""
        ...

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Takes a waiting entry in."""
        ...

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Takes many in at once, in linear time; for a rebuild."""
        ...

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry out, None when empty."""
        ...

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns an entry that was just popped but could not be dispatched, to the place it had, with no charge."""
        ...

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None where it is not here."""
        ...

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """The entry's estimates have changed: gives it the place they ask for."""
        ...

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:
        """An entry that stands here has become too late for its TTFT target (`hmas.controller.scheduling.instances.lateness`).

        Told once, while it still stands here. What becomes of it is not the policy's to decide: where late requests are put behind all
        others, or dropped, it is discarded next.
        """
        ...

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """A request that ran has ended with so many output tokens: the truth, where the charge at `pop` was a prediction.

        Told to the policy in force for the request's group, whichever policy handed it out: one that did not has nothing to
        correct. Nothing is told of a request's single tokens, so that simulation and gateway decide on the same knowledge.
        """
        ...

    def rank(self, request_id: str) -> int | None:
        """How many would go before it as things stand, None where it is not here. O(n); an estimate where lanes or tenants interleave."""
        ...

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        ...

    def __len__(self) -> int: ...
