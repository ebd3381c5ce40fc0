"""The policy pool Omega (H-MAS C.2): every queueing discipline by its name, and the change from one to another."""

from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType

from controller.core.errors import PolicyError
from controller.scheduling.policies.edf import Edf
from controller.scheduling.policies.fcfs import Fcfs
from controller.scheduling.policies.sjf import Sjf
from controller.scheduling.policies.two_lane import TwoLane
from controller.scheduling.policies.wfq import Wfq
from controller.scheduling.queue_entry import QueuePolicy

POLICIES: Mapping[str, type[QueuePolicy]] = MappingProxyType({policy.name: policy for policy in (Fcfs, Edf, Sjf, TwoLane, Wfq)})
"""Policies by the name that configuration, operators and meta use."""


def check_hints(name: str, hints: Mapping[str, float] | None) -> dict[str, float]:
    """The complete hints of a policy: those given, the rest by default.

    Raises:
        PolicyError: The policy is unknown, it does not take one of the hints, or a value is out of range.
    """
    if name not in POLICIES:
        raise PolicyError(f"policy {name!r} is unknown; allowed: {', '.join(POLICIES)}")
    policy = POLICIES[name]
    complete = dict(policy.default_hints)
    for hint, value in (hints or {}).items():
        if hint not in complete:
            allowed = ", ".join(complete) or "none"
            raise PolicyError(f"hint {hint!r} is unknown to policy {name!r}; allowed: {allowed}")
        low, high = policy.hint_ranges[hint]
        if isinstance(value, bool) or not low <= value <= high:  # NaN compares false and is refused too
            raise PolicyError(f"hint {hint!r} of policy {name!r} is {value!r}; allowed: a number from {low:g} to {high:g}")
        complete[hint] = float(value)
    return complete


def make_policy(name: str, hints: Mapping[str, float] | None = None) -> QueuePolicy:
    """A new, empty policy.

    Raises:
        PolicyError: As `check_hints`.
    """
    complete = check_hints(name, hints)
    return POLICIES[name](complete)


def rebuild(old: QueuePolicy, new: QueuePolicy, now_s: float) -> QueuePolicy:
    """Moves every waiting entry from one policy to another, in the order of arrival, in place of a restart (H-MAS C.1)."""
    new.load(sorted(old.entries(), key=attrgetter("seq")), now_s)
    return new
