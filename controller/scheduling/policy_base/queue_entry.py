"""The entry that a queue holds, and the contract of a queueing policy."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.policy_base.declaration import Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.service_split import FOLLOWS_TRAFFIC, SLOW_QUANTILE


@dataclass
class QueueEntry:
    """One waiting or running request with its current estimates.

    Attributes:
        request: The request as the gateway received it.
        estimates: The current estimates; replaced when agents answer.
        seq: Arrival order, unique; every policy breaks its ties by it, so runs are deterministic.
        weight: The tenant's weight for fair policies.
        bound: The instance that it was bound to at its arrival, empty if it waits for whichever comes first.
        only: The only instance that may take it, because no other one has what it continues; empty for any.
        tried: Instances that have already failed this request and do not get it again, unless they are back after an outage.
        resent: Whether it is sent a second time, and so no third time.
        skipped: How often other requests passed it while it was held back.
        held: How often a planning pass held it back, by reason; None before the first time.
        blocked: The most recent of these reasons.
    """

    request: Request
    estimates: Estimates
    seq: int
    weight: float = 1.0
    bound: str = ""
    only: str = ""
    tried: frozenset[str] = field(default_factory=frozenset)
    resent: bool = False
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
        """D_r = a_r + SLO_ttft + SLO_tpot * l_pred (H-MAS 3.5), l_pred of one answer: several are decoded side by side."""
        slo = self.estimates.slo
        return self.request.arrival_s + (slo.ttft_ms + slo.tpot_ms * self.estimates.output_tokens / self.request.sequences) / 1000.0

    @property
    def latest_start_s(self) -> float:
        """When the request has to be sent to end by its deadline: D_r - T_tot (H-MAS Eq. 5 without V_sys), T_tot that of one answer."""
        estimates = self.estimates
        return self.deadline_s - (estimates.ttft_ms + estimates.tpot_ms * estimates.output_tokens / self.request.sequences) / 1000.0


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuePolicy(ABC):
    """A queueing discipline over waiting entries. Pure: time comes in as `now_s`.

    Every entry is in the policy at most once, by `request.id`. Costs are per call with n entries waiting. A policy states its name and
    defines the order: `push`, `pop`, `discard`, `entries` and `__len__`. All else has a default here.

    Attributes:
        parameters: The active parameters, defaults filled in.
    """

    name: ClassVar[str]
    """The name that configuration, operators and meta use."""
    summary: ClassVar[str] = "no summary"
    """One line for operators: the purpose of the policy."""
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Parameters that the policy takes, with their defaults. Names not listed are refused."""
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({})
    """Lowest and highest value of each parameter."""
    signals: ClassVar[tuple[Signal, ...]] = ()
    """The signals that the policy orders by, and what replaces an unknown one."""
    starvation: ClassVar[str] = "not stated"
    """The bound on how long or how often a request may be passed; or "starves: " with which requests starve, and when."""
    complexity: ClassVar[str] = "not stated"
    """The cost of its calls with n requests in f flows waiting."""
    source: ClassVar[str] = "not stated"
    """Its origin: paper and section."""
    shares_tenants: ClassVar[bool] = False
    """Whether the policy itself shares service among tenants by their weights. If not, each tenant gets a queue of its own under it,
    and `hmas.controller.scheduling.queue.tenant_queues` shares among them."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        """Takes checked and complete parameters: see `hmas.controller.scheduling.policies.registry.make_policy`."""
        self.parameters: Mapping[str, float] = dict(parameters)

    # -- the order --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry."""

    @abstractmethod
    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry out, None if there is none to serve."""

    @abstractmethod
    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""

    @abstractmethod
    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""

    @abstractmethod
    def __len__(self) -> int: ...

    # -- what has a default -----------------------------------------------------------------------------------------------

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once, oldest first, when this policy takes a queue over; to be overridden by what takes linear time."""
        for entry in entries:
            self.push(entry, now_s)

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns an entry that was just popped but could not be dispatched to its former place, without a charge."""
        self.push(entry, now_s)

    def serve(self, request_id: str, now_s: float) -> QueueEntry | None:  # noqa: ARG002  policies that keep accounts need the time
        """Takes out an entry that is served out of turn, None if it is not here. A policy that keeps accounts charges it."""
        return self.discard(request_id)

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Moves an entry to the place of its changed estimates."""
        self.discard(entry.request.id)
        self.push(entry, now_s)

    def rank(self, request_id: str) -> int | None:
        """How many entries would go before it now, None if it is not here. O(n); an estimate, by arrival unless overridden."""
        mine = next((entry.seq for entry in self.entries() if entry.request.id == request_id), None)
        return None if mine is None else sum(1 for entry in self.entries() if entry.seq < mine)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:  # noqa: B027  most policies need nothing here
        """Notes that a waiting entry has become too late for its TTFT target (`hmas.controller.scheduling.instances.lateness`).

        This is called once, while the entry is still here. The policy does not decide what becomes of it: if late requests are put behind
        all others, or dropped, it is discarded next.
        """

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:  # noqa: B027  most policies need nothing here
        """Notes that a request has ended with `output_tokens` output tokens: the true length, where the charge at `pop` was a prediction.

        This goes to the active policy of the request's group, whichever policy handed the request out: a policy that did not hand it out
        has nothing to correct. Policies do not see single tokens of a request, so that simulation and gateway decide on the same
        information.
        """

    def close_tenant(self, tenant: str, now_s: float) -> None:  # noqa: B027  only policies that share among tenants need it
        """Leaves a tenant's entries out of `pop` until `open_tenant`: it is at its limit of slots. Called only if `shares_tenants`."""

    def open_tenant(self, tenant: str, now_s: float) -> None:  # noqa: B027  as above
        """Lets a tenant take part again. What it did not use meanwhile gives it no claim."""

    def cost(self, entry: QueueEntry) -> float:  # noqa: ARG002  the contract's argument
        """What `cost_threshold` is compared with, in tokens; 0 without a threshold. It depends on the entry and the parameters alone."""
        return 0.0

    @property
    def cost_threshold(self) -> float:
        """The highest cost in tokens that is served in turn, infinite if all are. Operators see it; the twin's replays begin with it."""
        return math.inf

    @property
    def long_split(self) -> tuple[float, float]:
        """What counts as a long request: a T_tot above these milliseconds or, if they are 0, above this quantile (see `ServiceSplit`)."""
        return FOLLOWS_TRAFFIC, SLOW_QUANTILE
