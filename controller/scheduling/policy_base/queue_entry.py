"""The entry that a queue holds, and the contract of a queueing policy."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.policy_base.signals import Signal


@dataclass
class QueueEntry:
    """One waiting or running request with its current estimates.

    Attributes:
        request: The request as the gateway received it.
        estimates: The current estimates; replaced when agents answer.
        seq: Arrival order, unique; every policy breaks its ties by it, so runs are deterministic.
        weight: The tenant's weight for fair policies.
        tried: Instances that have already failed this request.
        skipped: How often other requests passed it while it was held back.
        held: How often a planning pass held it back, by reason; None before the first time.
        blocked: The most recent of these reasons.
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
        """Records that a planning pass could not dispatch it, for one of a fixed set of reasons."""
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

    A policy that puts costly requests behind others also has a property `cost_threshold`: the highest cost in tokens that is served in
    turn, infinite if all are. Operators see it, and the twin's replays begin with it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for operators: the purpose of the policy."""
    default_parameters: ClassVar[Mapping[str, float]]
    """Parameters that the policy takes, with their defaults. Names not listed are refused."""
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]]
    """Lowest and highest value of each parameter."""
    signals: ClassVar[tuple[Signal, ...]]
    """The signals that the policy orders by, and what replaces an unknown one."""
    starvation: ClassVar[str]
    """The bound on how long or how often a request may be passed; or "starves: " with which requests starve, and when."""
    complexity: ClassVar[str]
    """The cost of its calls with n requests in f flows waiting."""
    source: ClassVar[str]
    """Its origin: paper and section."""
    parameters: Mapping[str, float]
    """The active parameters, defaults filled in."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        """Takes checked and complete parameters: see `hmas.controller.scheduling.policies.registry.make_policy`."""
        ...

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry."""
        ...

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once, in linear time; used for a rebuild."""
        ...

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry out, None if empty."""
        ...

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns an entry that was just popped but could not be dispatched to its former place, without a charge."""
        ...

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        ...

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Moves an entry to the place of its changed estimates."""
        ...

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:
        """Notes that a waiting entry has become too late for its TTFT target (`hmas.controller.scheduling.instances.lateness`).

        This is called once, while the entry is still here. The policy does not decide what becomes of it: if late requests are put behind
        all others, or dropped, it is discarded next.
        """
        ...

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Notes that a request has ended with `output_tokens` output tokens: the true length, where the charge at `pop` was a prediction.

        This goes to the active policy of the request's group, whichever policy handed the request out: a policy that did not hand it out
        has nothing to correct. Policies do not see single tokens of a request, so that simulation and gateway decide on the same
        information.
        """
        ...

    def rank(self, request_id: str) -> int | None:
        """How many entries would go before it now, None if it is not here. O(n); an estimate if lanes or tenants interleave."""
        ...

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        ...

    def __len__(self) -> int: ...
