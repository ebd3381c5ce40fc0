"""What agents and operators turn on a scheduler while it runs."""

from collections.abc import Mapping, Sequence

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import LengthBound
from hmas.controller.core.types import Controls
from hmas.controller.scheduling.admission.quotas import Tenancy, TenantLimits
from hmas.controller.scheduling.dispatch import DispatchPlanner
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.running import Running
from hmas.controller.scheduling.instances.token_source import TokenSource
from hmas.controller.scheduling.policies.registry import GUARD, check_parameters, own_parameters
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.engines.base import EngineSnapshot


class PolicyControl:
    """The half of a scheduler that is turned; the other half, which requests go through, is `Scheduler`."""

    def __init__(
        self, instances: Mapping[str, Instance], planner: DispatchPlanner, room: WaitQueue, weights: dict[str, float], tenancy: Tenancy
    ) -> None:
        """Steers these parts. `weights`: tenants' weights, which the room reads too."""
        self._instances = instances
        self._planner = planner
        self._wait_queue = room
        self._weights = weights
        self._tenancy = tenancy
        self._running: dict[str, Running] = {}
        self._configured_guard = planner.guard.share
        self._guard: dict[str, float] = {}

    @property
    def policy(self) -> str:
        """Name of the policy in force: the old one until `settle` has come to the end of a change."""
        return self._wait_queue.queues.policy_name

    @property
    def next_policy(self) -> str:
        """Name of the policy that is to follow, empty where the one in force is to stay."""
        return self._wait_queue.queues.next_policy

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._wait_queue)

    @property
    def parameters(self) -> Mapping[str, float]:
        """Its parameters, defaults filled in, and those that go with any policy where they are given."""
        return {**self._wait_queue.queues.parameters, **self._guard}

    def set_policy(self, name: str, now_s: float, parameters: Mapping[str, float] | None = None) -> bool:
        """Puts the queue under another policy or other parameters, losing nothing (H-MAS C.1). False where it is what was asked for last.

        At once where few wait (`waiting_room.AT_ONCE`), and for arrival order; else the old policy rules until `settle` has built the
        new one's structure. Asked for again before that, the newest counts. The TPOT guard's share, a parameter of every policy, holds now.

        Raises:
            PolicyError: The policy or a parameter is not allowed; the old one stays in force.
        """
        complete = check_parameters(name, parameters)
        changed = self._wait_queue.queues.set_policy(name, own_parameters(complete), now_s)
        return self._hint_guard(complete) or changed

    def _hint_guard(self, parameters: Mapping[str, float]) -> bool:
        """Takes the guard's share from parameters, the configured one where they have none; whether that is another."""
        before, self._guard = self._guard, {GUARD: parameters[GUARD]} if GUARD in parameters else {}
        self._planner.guard.share = self._guard.get(GUARD, self._configured_guard)
        for instance in self._instances.values():
            instance.guard_overridden = bool(self._guard)
            instance.guarded = self._planner.guard.share > 0.0
        return self._guard != before

    def settle(self, limit: int, now_s: float) -> bool:
        """Carries on what touches all that wait, past `limit` of them at most; True while some of it is left.

        Raises:
            SchedulingError: A policy has lost requests while its structure was built. The old one stays in force, with all of them.
        """
        return self._wait_queue.settle(limit, now_s)

    @property
    def settled(self) -> bool:
        """Whether `settle` has nothing to do."""
        return self._wait_queue.settled

    def set_controls(self, instance: str, controls: Controls) -> None:
        """Sets window, token budget and strictness of the TPOT guard of an instance; a smaller window evicts nobody.

        Raises:
            SchedulingError: Unknown instance, or a value out of its range.
        """
        if controls.n_run < 1:
            raise SchedulingError(f"n_run of instance {instance!r} is {controls.n_run}; allowed: 1 or more")
        if controls.token_budget is not None and controls.token_budget < 1:
            raise SchedulingError(f"token_budget of instance {instance!r} is {controls.token_budget}; allowed: 1 or more")
        if not 0.0 < controls.guard <= 1.0:
            raise SchedulingError(f"guard of instance {instance!r} is {controls.guard}; allowed: above 0 to 1")
        self._instance(instance).control(controls)

    def set_tpot_guard(self, share: float) -> None:
        """Sets the configured share of `TpotGuard`; 0 switches it off. A parameter in force goes before it.

        Raises:
            SchedulingError: The share is not from 0 to 1.
        """
        if not 0.0 <= share <= 1.0:
            raise SchedulingError(f"tpot_guard is {share!r}; allowed: 0 to 1")
        self._configured_guard = share
        self._hint_guard(self._guard)

    def set_length_bounds(self, bounds: Sequence[LengthBound]) -> None:
        """Takes new conformal bounds (Eq. 4), for what waits and for what runs. O(running)."""
        self._planner.bounds = tuple(sorted(bounds, key=lambda bound: (bound.prompt_tokens_below == 0, bound.prompt_tokens_below)))
        for run in self._running.values():
            run.instance.rebook(run, self._planner.bounds)

    def set_weight(self, tenant: str, weight: float, now_s: float = 0.0) -> None:
        """Sets a tenant's weight under the fair policies, for those to come and, as `settle` gets to them, for those that wait.

        Raises:
            SchedulingError: The weight is not more than 0.
        """
        if not weight > 0:
            raise SchedulingError(f"weight of tenant {tenant!r} is {weight!r}; allowed: more than 0")
        self._weights[tenant] = weight
        self._wait_queue.reweigh(now_s)

    def set_limits(self, tenant: str, limits: TenantLimits, now_s: float) -> None:
        """Sets quotas, share and cap of a tenant, `NO_LIMITS` for none. O(running).

        Quotas hold for requests to come; a quota that there was stays as used up as it was. Share and cap hold for those that wait as
        `settle` gets to them; those in flight stay.
        """
        running = sum(run.entry.request.tenant == tenant for run in self._running.values())
        if self._tenancy.set_limits(tenant, limits, running, now_s):
            self._wait_queue.sort_tenants(now_s)

    def set_draining(self, instance: str, draining: bool) -> None:
        """Stops or resumes dispatches to an instance; those in flight stay.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(instance).drain(draining=draining)

    def set_probing(self, instance: str, probing: bool) -> None:
        """Lets one request more go to an instance that may not serve, and no second one; or all again.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(instance).probe(probing=probing)

    def attach(self, instance: str, source: TokenSource | None) -> None:
        """Names who is asked for the tokens of an instance, in place of a report of each by `progress`; None to end that.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(instance).source = source

    def set_models(self, instance: str, models: frozenset[str] | None, now_s: float) -> None:
        """Says anew which models an instance serves, None for any.

        Requests whose instances are others now are sorted anew by `settle`; those that it has not got to are not dispatched meanwhile.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(instance).models = models
        self._wait_queue.queues.regroup(now_s)

    def observe(self, snapshot: EngineSnapshot) -> None:
        """Takes an engine's word: an unhealthy one gets no dispatches; KV size and ceilings are noted.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(snapshot.engine).observe(snapshot)

    def _instance(self, name: str) -> Instance:
        if name not in self._instances:
            raise SchedulingError(f"instance {name!r} is unknown; allowed: {', '.join(self._instances)}")
        return self._instances[name]
