"""The controls of a running scheduler that agents and operators change."""

from collections.abc import Mapping, Sequence

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import LengthBound
from hmas.controller.core.placement import Router
from hmas.controller.core.types import Controls, are_other_models
from hmas.controller.scheduling.admission.quotas import Tenancy, TenantLimits
from hmas.controller.scheduling.binding import ArrivalBinding
from hmas.controller.scheduling.dispatch import DispatchPlanner
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.running import Running, TokenSource
from hmas.controller.scheduling.instances.speed import InstanceSpeed
from hmas.controller.scheduling.policies.registry import GUARD, check_parameters, own_parameters
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.refusals import over_quota
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot


class PolicyControl:
    """The controls of a scheduler; the path of requests is in `Scheduler`.

    Attributes:
        settings: What does not change while the scheduler lives.
        instances: The account of each instance, by name.
        tenancy: Quotas and slots of all tenants.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        instances: dict[str, Instance],
        planner: DispatchPlanner,
        room: WaitQueue,
        *,
        weights: dict[str, float],
        tenancy: Tenancy,
    ) -> None:
        """Controls these parts. `weights`: tenants' weights, which the wait queue reads too."""
        self.settings = settings
        self.instances = instances
        self._planner = planner
        self._wait_queue = room
        self._binding = ArrivalBinding(room, planner.routers)
        self._weights = weights
        self.tenancy = tenancy
        self._running: dict[str, Running] = {}
        self._configured_guard = planner.guard.share
        self._guard: dict[str, float] = {}

    @property
    def policy(self) -> str:
        """Name of the active policy."""
        return self._wait_queue.queues.policy_name

    @property
    def tpot_guard(self) -> float:
        """The active share of `TpotGuard`: the policy's parameter, else the configured one; 0 is off."""
        return self._planner.guard.share

    @property
    def router_fault(self) -> tuple[int, str]:
        """How many rankings could not be followed since the start, and what was wrong with the newest."""
        return self._planner.routers.faults, self._planner.routers.fault

    def set_router(self, model: str, router: Router | None) -> None:
        """Replaces the router of a model, or of all others with `*`; None removes that of a model."""
        self._planner.routers.set(model, router)

    @property
    def wants_blocks(self) -> bool:
        """Whether a router reads `Request.blocks` and has a choice. The caller need not compute them otherwise."""
        return self._planner.routers.uses_blocks and len(self.instances) > 1

    @property
    def wants_times_alone(self) -> bool:
        """Whether a router reads `Estimates.alone` and has a choice. Prediction need not compute these times otherwise."""
        return self._planner.routers.uses_times_alone and len(self.instances) > 1

    @property
    def queued(self) -> int:
        """Number of waiting requests."""
        return len(self._wait_queue)

    @property
    def parameters(self) -> Mapping[str, float]:
        """The active policy's parameters, defaults filled in, and the given ones of those that any policy accepts."""
        return {**self._wait_queue.queues.parameters, **self._guard}

    def set_policy(self, name: str, now_s: float, parameters: Mapping[str, float] | None = None) -> bool:
        """Switches to another policy or other parameters without losing a request (H-MAS C.1). False if they are active already. O(n).

        Raises:
            PolicyError: The policy or a parameter is not allowed; the old one stays active.
            SchedulingError: The policy has lost requests while it took them over. The old one stays active, with all of them.
        """
        complete = check_parameters(name, parameters)
        changed = self._wait_queue.set_policy(name, own_parameters(complete), now_s)
        return self._hint_guard(complete) or changed

    def _hint_guard(self, parameters: Mapping[str, float]) -> bool:
        """Sets the guard's share from the parameters, or the configured one if they have none; returns whether it has changed."""
        before, self._guard = self._guard, {GUARD: parameters[GUARD]} if GUARD in parameters else {}
        self._planner.guard.share = self._guard.get(GUARD, self._configured_guard)
        for instance in self.instances.values():
            instance.guard_overridden = bool(self._guard)
            instance.guard_enabled = self._planner.guard.share > 0.0
        return self._guard != before

    def sweep(self, now_s: float) -> None:
        """Moves requests that have become overdue or reached their deadline, a bounded number; a dispatch does the same first."""
        self._wait_queue.sweep(now_s)

    @property
    def behind(self) -> bool:
        """Whether the last sweep left overdue or expired requests in their place."""
        return self._wait_queue.behind

    def set_controls(self, instance: str, controls: Controls) -> None:
        """Sets window, token budget and TPOT guard factor of an instance; a smaller window evicts no request.

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
        """Sets the configured share of `TpotGuard`; 0 switches it off. An active policy parameter takes precedence.

        Raises:
            SchedulingError: The share is not from 0 to 1.
        """
        if not 0.0 <= share <= 1.0:
            raise SchedulingError(f"tpot_guard is {share!r}; allowed: 0 to 1")
        self._configured_guard = share
        self._hint_guard(self._guard)

    def set_bypass(self, *, active: bool) -> None:
        """Lifts the KV fence during an emergency bypass if `fence_in_bypass` is off; requests stay booked meanwhile."""
        self._planner.fenced = self._planner.fence_in_bypass or not active

    def set_length_bounds(self, bounds: Sequence[LengthBound]) -> None:
        """Applies new conformal bounds (Eq. 4) to waiting and running requests. O(running)."""
        self._planner.bounds = tuple(sorted(bounds, key=lambda bound: (bound.prompt_tokens_below == 0, bound.prompt_tokens_below)))
        for run in self._running.values():
            run.instance.rebook(run, self._planner.bounds)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Sets tenants' shares of the service relative to the others, from the next dispatch on. O(n) for all of them together.

        Raises:
            SchedulingError: A weight is not more than 0; none is set.
        """
        for tenant, weight in weights.items():
            if not weight > 0:
                raise SchedulingError(f"weight of tenant {tenant!r} is {weight!r}; allowed: more than 0")
        self._weights.update(weights)
        if weights:
            self._wait_queue.reweigh(weights)

    def set_limits(self, tenant: str, limits: TenantLimits, now_s: float) -> None:
        """Sets quotas, share and cap of a tenant, `NO_LIMITS` for none. O(1).

        Quotas apply to new requests; an existing quota stays used up to the same degree. Share and cap apply to waiting requests too;
        requests in flight stay.
        """
        self.tenancy.set_limits(tenant, limits, now_s)

    def take_request(self, tenant: str, now_s: float) -> Refusal | None:
        """Counts a request that does not wait in the queue; returns a refusal if the tenant has used up its requests per minute."""
        over = self.tenancy.take_request(tenant, now_s)
        return None if over is None else over_quota(tenant, over)

    def set_draining(self, instance: str, draining: bool) -> None:
        """Stops or resumes dispatches to an instance; requests in flight stay.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(instance).drain(draining=draining)
        self._binding.changed(instance)

    def set_probing(self, instance: str, probing: bool) -> None:
        """Lets one more request go to an instance that may not serve, and no second one; or lifts that limit.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(instance).probe(probing=probing)

    def set_avoided(self, instances: frozenset[str]) -> None:
        """Sets the instances that get a request only where no other one can take it."""
        self._planner.avoided = instances

    def longest_prompt(self, instance: str) -> int:
        """Tokens of the longest prompt in flight on an instance without a first token, 0 if there is none. O(in flight).

        Raises:
            SchedulingError: Unknown instance.
        """
        running = self._instance(instance).running.values()
        return max((run.entry.request.prompt_tokens for run in running if run.first_s is None), default=0)

    def attach(self, instance: str, source: TokenSource | None) -> None:
        """Sets the source of an instance's token counts, which replaces the reports by `progress`; None to end that.

        Raises:
            SchedulingError: Unknown instance.
        """
        self._instance(instance).source = source

    def add_instance(self, spec: InstanceSpec, now_s: float) -> None:
        """Adds an instance. It drains, so that it gets no request before its caller has read its models and health.

        Raises:
            SchedulingError: There is one of that name, or its window is below 1.
        """
        if spec.name in self.instances:
            raise SchedulingError(f"instance {spec.name!r} is there already; names must be unique")
        made = make_instance(spec, self.settings)
        made.drain(draining=True)
        made.recovery.begin(made.in_flight)
        self.instances[spec.name] = made
        self._hint_guard(self._guard)
        self._use_instances(now_s)

    def remove_instance(self, name: str, now_s: float) -> None:
        """Removes an instance that has nothing in flight. Requests that only it serves wait on, as for a model that nobody serves.

        Raises:
            SchedulingError: Unknown instance, or requests are in flight there.
        """
        if self._instance(name).in_flight:
            raise SchedulingError(f"instance {name!r} has {self._instance(name).in_flight} requests in flight; allowed: none")
        self._instance(name).drain(draining=True)
        self._wait_queue.settle(now_s)
        self._binding.changed(name)
        self._binding.rebind(self._planner.avoided, now_s)
        del self.instances[name]
        self._planner.forget(name)
        self._use_instances(now_s)

    def _use_instances(self, now_s: float) -> None:
        instances = tuple(self.instances.values())
        self.tenancy.serve_with(instances)
        self._wait_queue.regroup(now_s, instances)

    def set_models(self, instance: str, models: frozenset[str] | None, context: Mapping[str, int] | None = None) -> None:
        """Changes which models an instance serves, None for any, and their `Instance.context`, from the next decision on.

        The waiting requests are sorted anew before that, once for all instances that have changed meanwhile. O(1).

        Raises:
            SchedulingError: Unknown instance.
        """
        changed = self._instance(instance)
        if are_other_models(changed.models, models):
            changed.pace, changed.token_ms = InstanceSpeed(), None
        changed.models, changed.context = models, context or {}
        self._wait_queue.unsettled = True
        self._binding.changed(instance)

    def observe(self, snapshot: EngineSnapshot, confirmed: bool = True) -> None:
        """Takes an engine's report: an unhealthy engine gets no dispatches; KV size and ceilings are recorded.

        Args:
            snapshot: The report.
            confirmed: Whether it is known that the engine is down, if it says so. One lost connection says little, and moves nothing that
                waits for the engine (binding at arrival): the next report will.

        Raises:
            SchedulingError: Unknown instance.
        """
        instance = self._instance(snapshot.engine)
        if instance.observe(snapshot):
            # It may have been restarted. A shorter gap may be one lost connection, and says nothing about its cache.
            self._planner.routers.left(instance.name)
            self._wait_queue.forgive(instance.name)
        if confirmed and not snapshot.healthy:
            self._binding.changed(instance.name)

    def _instance(self, name: str) -> Instance:
        if name not in self.instances:
            raise SchedulingError(f"instance {name!r} is unknown; allowed: {', '.join(self.instances)}")
        return self.instances[name]


def make_instance(spec: InstanceSpec, settings: SchedulerSettings) -> Instance:
    """An instance's account under a scheduler's settings.

    Raises:
        SchedulingError: Its window is below 1.
    """
    if spec.capacity_n_run < 1:
        raise SchedulingError(f"capacity_n_run of instance {spec.name!r} is {spec.capacity_n_run}; allowed: 1 or more")
    return Instance(spec, fenced=settings.fence, margin=settings.fence_margin, confidence=settings.late_confidence)
