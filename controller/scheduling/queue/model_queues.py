"""The queues of all models and instances under one policy, and the changes that concern all of them."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.placement import servers_of
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.instance_group import InstanceGroup
from hmas.controller.scheduling.policies.registry import BYPASS_POLICY, check_parameters, make_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.queue.model_queue import WINDOW, ModelQueue, Passes, QueuedRequest


class ModelQueues:
    """The groups of a wait queue: one for each set of instances that serve the same models. Changes are made at once, in linear time.

    Where requests are bound to an instance at their arrival, each instance has a group besides, which holds the requests bound to it.

    Attributes:
        policy_name, parameters: The active policy.
        central: The groups of models. `groups`: these and those of instances.
    """

    def __init__(
        self, instances: Sequence[Instance], *, policy: str, parameters: Mapping[str, float] | None, tenancy: Tenancy, binds: bool = False
    ) -> None:
        """Starts with the groups that the instances' models require.

        Args:
            instances: All instances, in the order of the configuration.
            policy: The policy.
            parameters: Its parameters.
            tenancy: The limits of tenants.
            binds: Whether requests are bound to an instance at their arrival.

        Raises:
            PolicyError: The policy or a parameter is not allowed.
        """
        self._instances = tuple(instances)
        self._tenancy = tenancy
        self.policy_name = policy
        self.parameters: dict[str, float] = check_parameters(policy, parameters)
        self.groups: list[ModelQueue] = []
        self.central: list[ModelQueue] = []
        self._binds = binds
        self._bound: dict[str, ModelQueue] = {}
        self._bound_passes = Passes()
        self._by_model: dict[str, ModelQueue] = {}
        self._default: ModelQueue
        self.regroup(0.0)

    def of(self, model: str) -> ModelQueue:
        """The group that requests for this model belong to while they are bound to no instance."""
        return self._by_model.get(model, self._default)

    def holding(self, entry: QueueEntry) -> ModelQueue:
        """The group that a request belongs to."""
        return self._bound.get(entry.bound) or self.of(entry.request.model)

    def bound_to(self, instance: str) -> int:
        """How many waiting requests are bound to an instance."""
        group = self._bound.get(instance)
        return 0 if group is None else len(group.members)

    def to_look_at(self) -> list[ModelQueue]:
        """The groups with requests that may be dispatched now. O(groups).

        The queue of an instance whose window was full at the last look, and still is, need not be looked at again.
        """
        bound = [group for group in self._bound.values() if group.members and (group.instances.open or group.blocked != WINDOW)]
        return [group for group in self.central if group.members] + bound

    def stranded(self, instance: str) -> Iterator[QueuedRequest]:
        """Requests that are bound to an instance that takes none, or none of their model. O(requests bound to it)."""
        group = self._bound.get(instance)
        if group is None:
            return
        for waiting in group.members.values():
            if not any(one.available and one.serves(waiting.entry.request.model) for one in group.instances.all):
                yield waiting

    def serving(self, model: str) -> list[ModelQueue]:
        """All groups with requests that compete for the instances of this model. O(instances) where requests are bound."""
        common = self.of(model)
        return [common, *(self._bound[instance.name] for instance in common.instances.all if instance.name in self._bound)]

    def passes(self, model: str) -> Passes:
        """How often a planning pass found no free slot for requests of this model.

        Where requests are bound: how often any instance filled up while requests waited for it.
        """
        return self._bound_passes if self._binds else self.of(model).passes

    def models(self) -> dict[str, ModelQueue]:
        """Every model that any instance names, with the group of its requests."""
        return dict(self._by_model)

    @property
    def cost_threshold(self) -> float:
        """The lowest cost above which a group puts requests behind others; 0 if no group does, or the policy has no such threshold."""
        found = min(group.ready.policy.cost_threshold for group in self.groups)
        return found if found < math.inf else 0.0

    @property
    def long_split(self) -> tuple[float, float]:
        """The active policy's split between short and long requests."""
        return self._default.ready.policy.long_split

    def set_policy(self, name: str, parameters: Mapping[str, float] | None, now_s: float) -> bool:
        """Changes the policy of all groups or of none, with all requests in place. False if it is active with these parameters.

        Raises:
            PolicyError: The policy or a parameter is not allowed; nothing has changed then.
            SchedulingError: The policy has lost requests; nothing has changed then.
        """
        complete = check_parameters(name, parameters)
        if (name, complete) == (self.policy_name, self.parameters):
            return False
        filled: list[QueuePolicy] = []
        try:
            for group in self.groups:
                filled.append(group.filled(make_policy(name, complete), now_s))  # noqa: PERF401 - those that are filled are dropped on an error
        except Exception as error:
            for group, policy in zip(self.groups, filled, strict=False):
                group.drop(policy)
            if isinstance(error, SchedulingError):
                raise
            # A policy is a plugin, and may raise anything.
            raise SchedulingError(f"policy {name!r} cannot be made: {type(error).__name__}: {error}") from error
        for group, policy in zip(self.groups, filled, strict=True):
            group.adopt(policy)
        self.policy_name, self.parameters = name, complete
        return True

    def regroup(self, now_s: float, instances: Sequence[Instance] | None = None) -> list[QueuedRequest]:
        """Forms the groups again after instances have changed the models they serve. Returns the requests that changed their group.

        `instances`: all that there are now, None for the same as before.

        If all models of a group move to the same instances, the group moves with them as it is. If they separate, or the group meets
        another one, it is dissolved, and its requests join the groups they belong to.
        """
        if instances is not None:
            self._instances = tuple(instances)
        sets = {model: tuple(servers) for model, servers in servers_of((one, one.models) for one in self._instances).items()}
        models = sorted(sets)
        default = tuple(i for i in self._instances if i.models is None)
        aims: dict[ModelQueue, set[tuple[Instance, ...]]] = {self._default: {default}} if self.central else {}
        for model in {*models, *self._by_model} if self.central else ():
            aims.setdefault(self.of(model), set()).add(sets.get(model, default))
        made: dict[tuple[Instance, ...], ModelQueue] = {}
        moved: list[QueuedRequest] = []
        for group in self.central:
            aim = aims.get(group, set())
            if len(aim) == 1 and (servers := next(iter(aim))) not in made:
                made[servers] = group
            else:
                moved += group.members.values()
        self._default = made.get(default) or made.setdefault(default, self._new_group(default))
        self._by_model = {model: made.get(sets[model]) or made.setdefault(sets[model], self._new_group(sets[model])) for model in models}
        self.central = list(made.values())
        for instance in self._instances:
            instance.groups.clear()
        for servers, group in made.items():
            group.instances = InstanceGroup(servers)
            for instance in servers:
                instance.groups.append(group.instances)
        if self._binds:
            self._regroup_bound()
        self.groups = [*self.central, *self._bound.values()]
        self.join(moved, now_s)
        return moved

    def join(self, moved: list[QueuedRequest], now_s: float) -> None:
        """Adds requests that no group holds to those they belong to, in their order of submission. O(requests of these groups)."""
        moved.sort(key=attrgetter("entry.seq"))
        for waiting in moved:
            group = waiting.group = self.holding(waiting.entry)
            group.members[waiting.entry.request.id] = waiting
            group.put(waiting, now_s)
        for group in {id(waiting.group): waiting.group for waiting in moved}.values():
            members = sorted(group.members.values(), key=attrgetter("entry.seq"))
            group.members = OrderedDict((waiting.entry.request.id, waiting) for waiting in members)

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _regroup_bound(self) -> None:
        """A group for each instance. Nothing is bound to one that has left: its requests were bound anew when it stopped taking any."""
        before, self._bound = self._bound, {}
        for instance in self._instances:
            group = before.pop(instance.name, None)
            if group is None:
                group = self._new_group((instance,), self._bound_passes)
            else:
                group.instances = InstanceGroup((instance,))
            instance.groups.append(group.instances)
            self._bound[instance.name] = group

    def _new_group(self, instances: Sequence[Instance], passes: Passes | None = None) -> ModelQueue:
        """An empty group under the active policy."""
        policy, late = make_policy(self.policy_name, self.parameters), make_policy(BYPASS_POLICY, {})
        return ModelQueue(InstanceGroup(instances), policy, late, self._tenancy, passes or Passes())
