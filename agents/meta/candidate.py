"""A candidate for meta's decision: a policy, its parameters (with the TPOT guard's share), the instances' windows, and the router."""

from collections.abc import Mapping

import msgspec

from hmas.controller.core.messages import label_of
from hmas.controller.scheduling.policies.registry import GUARD, POLICIES, own_parameters

STEP = 2.5
"""Factor between two tried values of a parameter: a smaller step changes the order too little to show a difference."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A queue order, its windows, and the router.

    Attributes:
        parameters: Parameters of the policy; those that are not named keep the policy's defaults.
        n_run: Window of each instance, at most its ceiling; 0 leaves it to statera.
        router: Router of all models without one of their own, as `make_router` reads it; empty for the configured one.
    """

    policy: str
    parameters: dict[str, float] = {}
    n_run: int = 0
    router: str = ""

    @property
    def label(self) -> str:
        """The name with parameters, window and router, such as `two-lane(threshold_ms=4000)` or `fcfs, window 48`."""
        return label_of(self.policy, self.parameters, self.n_run, self.router)

    def window(self, n_run: int) -> "Candidate":
        """Returns the same candidate with another window."""
        return msgspec.structs.replace(self, n_run=n_run)

    def routed(self, router: str) -> "Candidate":
        """Returns the same candidate with another router; an empty text for the configured one."""
        return msgspec.structs.replace(self, router=router)

    def guarded(self, share: float | None) -> "Candidate":
        """Returns the same candidate with another share of the TPOT guard; None for the configured share."""
        return msgspec.structs.replace(self, parameters=own_parameters(self.parameters) | ({} if share is None else {GUARD: share}))

    def neighbours(self) -> tuple["Candidate", ...]:
        """Candidates with one parameter a step up or down. Shares, switches and parameters at 0 (off) keep their values."""
        policy = POLICIES[self.policy]
        amounts = {
            parameter: self.parameters.get(parameter, usual)
            for parameter, usual in policy.default_parameters.items()
            if policy.parameter_ranges[parameter][1] > 1.0
        }
        return tuple(
            self._with(parameter, value * step) for parameter, value in amounts.items() if value > 0.0 for step in (STEP, 1.0 / STEP)
        )

    def _with(self, parameter: str, value: float) -> "Candidate":
        """Returns the same candidate with another value of one parameter; a value equal to the policy's default is left out."""
        policy = POLICIES[self.policy]
        low, high = policy.parameter_ranges[parameter]
        value = round(max(low, min(high, value)), 6)
        others = {name: said for name, said in self.parameters.items() if name != parameter}
        return msgspec.structs.replace(
            self, parameters=others if value == policy.default_parameters[parameter] else others | {parameter: value}
        )

    def under(self, policy: str) -> "Candidate":
        """Another policy with its default parameters, and the same windows, guard and router."""
        return msgspec.structs.replace(self, policy=policy, parameters={GUARD: self.parameters[GUARD]} if GUARD in self.parameters else {})


def candidate(policy: str, parameters: Mapping[str, float] | None = None, n_run: int = 0, router: str = "") -> Candidate:
    """Builds a candidate with a copy of the parameters, so later changes of the mapping do not affect it."""
    return Candidate(policy=policy, parameters=dict(parameters or {}), n_run=n_run, router=router)
