"""The policy pool Omega (H-MAS C.2): every queueing discipline by name."""

from collections.abc import Mapping
from types import MappingProxyType

from hmas.controller.core.errors import PolicyError
from hmas.controller.scheduling.policies.cfs import Cfs
from hmas.controller.scheduling.policies.edf import Edf
from hmas.controller.scheduling.policies.fcfs import Fcfs
from hmas.controller.scheduling.policies.llf import Llf
from hmas.controller.scheduling.policies.lottery import Lottery
from hmas.controller.scheduling.policies.mlfq import Mlfq
from hmas.controller.scheduling.policies.priority import Priority
from hmas.controller.scheduling.policies.robust_edf import RobustEdf
from hmas.controller.scheduling.policies.rr import RoundRobin
from hmas.controller.scheduling.policies.sjf import Sjf
from hmas.controller.scheduling.policies.slack import Slack
from hmas.controller.scheduling.policies.srtf import Srtf
from hmas.controller.scheduling.policies.stride import Stride
from hmas.controller.scheduling.policies.two_lane import TwoLane
from hmas.controller.scheduling.policies.vtc import Vtc
from hmas.controller.scheduling.policies.wfq import Wfq
from hmas.controller.scheduling.policy_base.policy_check import check_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueuePolicy

BUILT_IN: tuple[type[QueuePolicy], ...] = (
    Fcfs,
    Edf,
    RobustEdf,
    Llf,
    Slack,
    Sjf,
    Srtf,
    TwoLane,
    Priority,
    Wfq,
    Vtc,
    Stride,
    Lottery,
    RoundRobin,
    Cfs,
    Mlfq,
)
"""The built-in policies: by deadline, by length, by class, fair. A new one takes one line here."""

BYPASS_POLICY = Fcfs.name
"""The policy that orders the queue while the control loop is bypassed (H-MAS C.2), and requests of models that have just appeared."""
DEFAULT_POLICY = RobustEdf.name
"""The shipped policy: deadline order while all requests can be in time; in an overload it serves the most of them in time."""

REGISTERED: dict[str, type[QueuePolicy]] = {policy.name: policy for policy in BUILT_IN}
"""What `register` adds to; all others read `POLICIES`."""
POLICIES: Mapping[str, type[QueuePolicy]] = MappingProxyType(REGISTERED)
"""Policies by the name that configuration, operators and meta use: the built-in ones, then a user's in the order of registration."""


GUARD = "tpot_guard"
COMMON_PARAMETERS: Mapping[str, tuple[float, float]] = MappingProxyType({GUARD: (0.0, 1.0)})
"""Parameters that any policy accepts, and their ranges; if one is not given, the configured value stays."""


def register(policy: type[QueuePolicy], pool: dict[str, type[QueuePolicy]] = REGISTERED) -> None:
    """Adds a user's own policy to the pool. Registering the same class again changes nothing.

    This is called only at the start of a process, before a policy is looked up by name (`hmas.controller.config.plugins`).

    Raises:
        PolicyError: Part of the contract is missing or wrong, or the name is taken; the pool has not changed then.
    """
    check_policy(policy)
    if taken := COMMON_PARAMETERS.keys() & policy.default_parameters.keys():
        raise PolicyError(f"parameter {min(taken)!r} of policy {policy.name!r} is taken: it goes with any policy; give it another name")
    if pool.get(policy.name, policy) is not policy:
        raise PolicyError(f"policy name {policy.name!r} is taken by {pool[policy.name].__module__}.{pool[policy.name].__qualname__}")
    pool[policy.name] = policy


def named(text: str) -> tuple[str, ...]:
    """Splits a setting that lists policies, separated by commas; empty for an empty text. Does not check that the pool has them."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def check_parameters(name: str, parameters: Mapping[str, float] | None) -> dict[str, float]:
    """The complete parameters of a policy: the given ones, its own defaults, and those of `COMMON_PARAMETERS` that are given.

    Raises:
        PolicyError: The policy is unknown, it does not take one of the parameters, or a value is out of range.
    """
    if name not in POLICIES:
        raise PolicyError(f"policy {name!r} is unknown; allowed: {', '.join(POLICIES)}")
    policy = POLICIES[name]
    complete, ranges = dict(policy.default_parameters), {**policy.parameter_ranges, **COMMON_PARAMETERS}
    for parameter, value in (parameters or {}).items():
        if parameter not in ranges:
            raise PolicyError(f"parameter {parameter!r} is unknown to policy {name!r}; allowed: {', '.join(ranges)}")
        low, high = ranges[parameter]
        if isinstance(value, bool) or not low <= value <= high:  # comparisons with NaN are false, so NaN is refused too
            raise PolicyError(f"parameter {parameter!r} of policy {name!r} is {value!r}; allowed: a number from {low:g} to {high:g}")
        complete[parameter] = float(value)
    return complete


def make_policy(name: str, parameters: Mapping[str, float] | None = None) -> QueuePolicy:
    """A new, empty policy.

    Raises:
        PolicyError: As `check_parameters`.
    """
    complete = check_parameters(name, parameters)
    return POLICIES[name](own_parameters(complete))


def own_parameters(complete: Mapping[str, float]) -> dict[str, float]:
    """The part of complete parameters that the policy itself takes."""
    return {parameter: value for parameter, value in complete.items() if parameter not in COMMON_PARAMETERS}
