"""What may be in force: a queueing policy with its parameters, the TPOT guard's share among them, and who sets the windows."""

from collections.abc import Mapping

import msgspec

from hmas.controller.core.messages import label_of
from hmas.controller.scheduling.policies.registry import GUARD, POLICIES, own_parameters

STEP = 2.5
"""Factor between amounts that are tried: a policy whose order hardly changes hardly tells."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An order of the queue and its windows.

    Attributes:
        parameters: Those that are not named are the policy's own.
        n_run: Window of each instance, at most its ceiling; 0 leaves it to statera.
    """

    policy: str
    parameters: dict[str, float] = {}
    n_run: int = 0

    @property
    def label(self) -> str:
        """Name with parameters and window, such as `two-lane(threshold_ms=4000)` or `fcfs, window 48`."""
        return label_of(self.policy, self.parameters, self.n_run)

    def window(self, n_run: int) -> "Candidate":
        """The same with another window."""
        return msgspec.structs.replace(self, n_run=n_run)

    def guarded(self, share: float | None) -> "Candidate":
        """The same with another share of the TPOT guard, None for the configured one."""
        return msgspec.structs.replace(self, parameters=own_parameters(self.parameters) | ({} if share is None else {GUARD: share}))

    def neighbours(self) -> tuple["Candidate", ...]:
        """The same with one amount among the policy's parameters a step up or down; shares, switches and what is off stay as they are."""
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
        """The same with another value of one parameter, not named where that is the policy's own."""
        policy = POLICIES[self.policy]
        low, high = policy.parameter_ranges[parameter]
        value = round(max(low, min(high, value)), 6)
        others = {name: said for name, said in self.parameters.items() if name != parameter}
        return msgspec.structs.replace(
            self, parameters=others if value == policy.default_parameters[parameter] else others | {parameter: value}
        )

    def under(self, policy: str) -> "Candidate":
        """Another policy, as it comes, with the same windows and guard."""
        return msgspec.structs.replace(self, policy=policy, parameters={GUARD: self.parameters[GUARD]} if GUARD in self.parameters else {})


def candidate(policy: str, parameters: Mapping[str, float] | None = None, n_run: int = 0) -> Candidate:
    """A candidate of its own parameters: later changes of the mapping do not reach it."""
    return Candidate(policy=policy, parameters=dict(parameters or {}), n_run=n_run)
