"""All groups under one policy, and every change that concerns all of them, a few requests at a time."""

import math
from collections.abc import Callable, Mapping, Sequence

from hmas.controller.core.errors import SchedulingError
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.policies.registry import BYPASS_POLICY, check_parameters, make_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueuePolicy
from hmas.controller.scheduling.queue.model_queue import ModelQueue, QueuedRequest
from hmas.controller.scheduling.queue.retired import DeferredCleanup
from hmas.controller.scheduling.queue.tenant_share import TenantShareLimiter, gated

AT_ONCE = 512
"""Number of waiting requests up to which every change is made in one step."""

Discipline = tuple[str, dict[str, float]]


class PolicySwitcher:
    """The groups of a wait queue. The wait queue adds and removes requests; changes that concern all groups happen here.

    No call touches all waiting requests if there are more than `AT_ONCE`: such work is started, and continues with each call of `settle`.
    This is a change of policy (see `ModelQueue`), the move of requests to other groups, a check of each request for a caller that asks for
    it, and the removal of structures that are no longer used, because freeing 100,000 places at once takes as long as any other pass over
    them. All of it runs side by side; if several policies were requested, the newest counts.

    Attributes:
        policy_name, parameters: The active policy.
        groups: All groups that dispatches may come from.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        *,
        policy: str,
        parameters: Mapping[str, float] | None,
        tenancy: Tenancy | None,
        count: Callable[[], int],
        on_force: Callable[[], bool],
        on_look: Callable[[QueuedRequest], None],
    ) -> None:
        """Starts with the groups that the instances' models require.

        Args:
            instances: All instances, in the order of the configuration.
            policy: The policy; `parameters`: its parameters.
            parameters: See `policy`.
            tenancy: Limits of tenants, None for none.
            count: Returns how many requests wait.
            on_force: Called when another policy becomes active; True requests a check of each waiting request.
            on_look: Called with each waiting request after `look_at_each`.

        Raises:
            PolicyError: The policy or a parameter is not allowed.
        """
        self._instances = tuple(instances)
        self._tenancy = tenancy
        self._count = count
        self._on_force = on_force
        self._on_look = on_look
        self.policy_name = policy
        self.parameters: dict[str, float] = check_parameters(policy, parameters)
        self._wanted: Discipline = (self.policy_name, self.parameters)
        self._building: Discipline | None = None
        self._arriving = False
        self.groups: list[ModelQueue] = []
        self._leaving: list[ModelQueue] = []
        self._retired = DeferredCleanup()
        self._by_model: dict[str, ModelQueue] = {}
        self._default: ModelQueue
        self.regroup(0.0)

    def of(self, model: str) -> ModelQueue:
        """The group that requests for this model belong to."""
        return self._by_model.get(model, self._default)

    def models(self) -> dict[str, ModelQueue]:
        """Every model that any instance names, with the group of its requests."""
        return dict(self._by_model)

    def all(self) -> tuple[ModelQueue, ...]:
        """Every group that holds requests, including those being dissolved."""
        return (*self.groups, *self._leaving)

    @property
    def cost_threshold(self) -> float:
        """The lowest cost above which a group puts requests behind others; 0 if no group does, or the policy has no such threshold."""
        found = math.inf
        for group in self.groups:
            policy = group.policy.inner if isinstance(group.policy, TenantShareLimiter) else group.policy
            found = min(found, float(getattr(policy, "cost_threshold", math.inf)))
        return found if found < math.inf else 0.0

    @property
    def next_policy(self) -> str:
        """The policy that is to follow, empty if the active one is to stay."""
        return "" if self._wanted == (self.policy_name, self.parameters) else self._wanted[0]

    def set_policy(self, name: str, parameters: Mapping[str, float] | None, now_s: float) -> bool:
        """Requests another policy or other parameters. False if it is what was requested last.

        Raises:
            PolicyError: The policy or a parameter is not allowed; nothing has changed then.
        """
        wanted = (name, check_parameters(name, parameters))
        if wanted == self._wanted:
            return False
        self._wanted = wanted
        self._begin(now_s)
        self._hurry(now_s)
        return True

    def look_at_each(self, now_s: float) -> None:
        """Starts a check of each request that waits now."""
        for group in self.groups:
            group.begin_review()
        self._hurry(now_s)

    def sort_tenants(self, now_s: float) -> None:
        """Starts to sort waiting requests again after the slots of a tenant became limited, or unlimited."""
        if self._tenancy is not None and self._tenancy.bounded:
            for group in self.all():
                group.gate(self._tenancy)
        self.look_at_each(now_s)

    def regroup(self, now_s: float) -> None:
        """Sorts requests into groups again after instances have changed the models they serve.

        If all models of a group move to the same instances, the group moves with them as it is. If they separate, or the group meets
        another one, it is dissolved: nothing is dispatched from it any more, and its requests join their new groups, oldest first.
        """
        models = sorted({model for instance in self._instances for model in instance.models or ()})
        sets = self._servers()
        default = tuple(i for i in self._instances if i.models is None)
        aims: dict[ModelQueue, set[tuple[Instance, ...]]] = {self._default: {default}} if self.groups else {}
        for model in {*models, *self._by_model} if self.groups else ():
            aims.setdefault(self.of(model), set()).add(sets.get(model, default))
        made: dict[tuple[Instance, ...], ModelQueue] = {}
        for group in self.groups:
            aim = aims.get(group, set())
            if len(aim) == 1 and (instances := next(iter(aim))) not in made:
                group.serve_by(instances)
                made[instances] = group
            elif group.first is not None:
                self._retired.add(group.give_up())
                self._leaving.append(group)
        self._default = made.get(default) or made.setdefault(default, self._new_group(default))
        self._by_model = {model: made.get(sets[model]) or made.setdefault(sets[model], self._new_group(sets[model])) for model in models}
        self.groups = list(made.values())
        for instance in self._instances:
            instance.slots.clear()
        for group in self.groups:
            group.watch()
        self._hurry(now_s)

    def settle(self, limit: int, now_s: float) -> bool:
        """Continues the changes in progress, over at most `limit` requests; True while some work is left.

        Raises:
            SchedulingError: The structure that was built lacks requests: the policy lost some. It is dropped; the active one stays
                complete.
        """
        if self._busy:
            self._go_on(limit, now_s)
        else:
            self._retired.take_apart(limit)
        return not self.settled

    @property
    def settled(self) -> bool:
        """Whether `settle` has nothing left to do."""
        return not (self._retired or self._busy)

    # -- inside -----------------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """Whether moves, a change of policy or checks are left."""
        return bool(self._leaving) or self._arriving or self._building is not None or not all(group.reviewed for group in self.groups)

    def _begin(self, now_s: float) -> None:
        """Starts the change to the wanted policy, unless a change to arrival order is in progress: that is completed first."""
        if self._arriving or self._building == self._wanted:
            return
        if self._building is not None:
            self._building = None
            for group in self.groups:
                self._retired.add(group.give_up())
        if self._wanted == (self.policy_name, self.parameters):
            return
        if self._count() <= AT_ONCE and not self._leaving:
            for group in self.groups:
                group.replace(self._structure(self._wanted), now_s)
            self._now_in_force()
        elif self._wanted[0] == BYPASS_POLICY:
            self._arriving = True
            for group in self.groups:
                group.begin_at_once(self._structure(self._wanted))
            self._now_in_force()
        else:
            self._building = self._wanted
            for group in self.groups:
                group.begin(self._structure(self._wanted))

    def _go_on(self, limit: int, now_s: float) -> None:
        """Continues moves, then changes of policy, then checks of each request."""
        limit = self._move(limit, now_s)
        if self._building is not None or self._arriving:
            for group in self.groups:
                if limit and not group.copied:
                    limit -= group.copy(limit, now_s)
            if all(group.copied for group in self.groups):
                self._take_over(now_s)
        for group in self.groups:
            if limit and not group.reviewed:
                for waiting in group.review(limit):
                    limit -= 1
                    self._on_look(waiting)
                    group.sort(waiting, now_s)

    def _take_over(self, now_s: float) -> None:
        lossy = next((group for group in self.groups if not group.complete), None)
        if lossy is not None:
            fault = lossy.fault()
            self._wanted, self._building = (self.policy_name, self.parameters), None
            for group in self.groups:
                self._retired.add(group.give_up())
            raise SchedulingError(fault)
        for group in self.groups:
            self._retired.add(group.take_over())
        if self._building is not None:
            self._now_in_force(self._building)
        self._building, self._arriving = None, False
        self._begin(now_s)

    def _move(self, limit: int, now_s: float) -> int:
        """Moves requests from dissolved groups to the groups they belong to; returns what is left of the limit."""
        while limit and self._leaving:
            group = self._leaving[-1]
            waiting = group.first
            if waiting is None:
                self._leaving.pop()
                continue
            limit -= 1
            group.take(waiting)
            group.leave(waiting)
            target = self.of(waiting.entry.request.model)
            target.join(waiting)
            self._on_look(waiting)
            if waiting.place == "ready":
                target.put(waiting, now_s)
            elif waiting.place == "late":
                target.late.push(waiting.entry, now_s)
        return limit

    def _hurry(self, now_s: float) -> None:
        """Completes all changes in progress if few requests wait."""
        if self._count() <= AT_ONCE:
            while self._busy:
                self._go_on(max(1, AT_ONCE), now_s)

    def _now_in_force(self, discipline: Discipline | None = None) -> None:
        self.policy_name, self.parameters = self._wanted if discipline is None else discipline
        if self._on_force():
            for group in self.groups:
                group.begin_review()

    def _servers(self) -> dict[str, tuple[Instance, ...]]:
        """The instances that serve each model that any instance names, in the order of the configuration."""
        servers: dict[str, list[Instance]] = {}
        of_any: list[Instance] = []
        for instance in self._instances:
            if instance.models is None:
                of_any.append(instance)
                for known in servers.values():
                    known.append(instance)
            else:
                for model in instance.models:
                    servers.setdefault(model, of_any.copy()).append(instance)
        return {model: tuple(known) for model, known in servers.items()}

    def _structure(self, discipline: Discipline) -> QueuePolicy:
        return gated(make_policy(*discipline), self._tenancy)

    def _new_group(self, instances: Sequence[Instance]) -> ModelQueue:
        """An empty group, with the same active and coming policy as the others."""
        group = ModelQueue(
            instances, self._structure((self.policy_name, self.parameters)), gated(make_policy(BYPASS_POLICY, {}), self._tenancy)
        )
        if self._building is not None:
            group.begin(self._structure(self._building))
        return group
