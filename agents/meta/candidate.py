"""What may be in force: a queueing policy with its hints, the TPOT guard's share among them, and who sets the windows."""

from collections.abc import Mapping

import msgspec

from hmas.controller.core.messages import label_of
from hmas.controller.scheduling.policies.registry import GUARD, POLICIES, own_hints

STEP = 2.5
"""Factor between amounts that are tried: a policy whose order hardly changes hardly tells."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An order of the queue and its windows.

    Attributes:
        hints: Those that are not named are the policy's own.
        n_run: Window of each instance, at most its ceiling; 0 leaves it to statera.
    """

    policy: str
    hints: dict[str, float] = {}
    n_run: int = 0

    @property
    def label(self) -> str:
        """Name with hints and window, such as `two-lane(threshold_ms=4000)` or `fcfs, window 48`."""
        return label_of(self.policy, self.hints, self.n_run)

    def window(self, n_run: int) -> "Candidate":
        """The same with another window."""
        return msgspec.structs.replace(self, n_run=n_run)

    def guarded(self, share: float | None) -> "Candidate":
        """The same with another share of the TPOT guard, None for the configured one."""
        return msgspec.structs.replace(self, hints=own_hints(self.hints) | ({} if share is None else {GUARD: share}))

    def neighbours(self) -> tuple["Candidate", ...]:
        """The same with one amount among the policy's hints a step up or down; shares, switches and what is off stay as they are."""
        policy = POLICIES[self.policy]
        amounts = {hint: self.hints.get(hint, usual) for hint, usual in policy.default_hints.items() if policy.hint_ranges[hint][1] > 1.0}
        return tuple(self._with(hint, value * step) for hint, value in amounts.items() if value > 0.0 for step in (STEP, 1.0 / STEP))

    def _with(self, hint: str, value: float) -> "Candidate":
        """The same with another value of one hint, not named where that is the policy's own."""
        policy = POLICIES[self.policy]
        low, high = policy.hint_ranges[hint]
        value = round(max(low, min(high, value)), 6)
        others = {name: said for name, said in self.hints.items() if name != hint}
        return msgspec.structs.replace(self, hints=others if value == policy.default_hints[hint] else others | {hint: value})

    def under(self, policy: str) -> "Candidate":
        """Another policy, as it comes, with the same windows and guard."""
        return msgspec.structs.replace(self, policy=policy, hints={GUARD: self.hints[GUARD]} if GUARD in self.hints else {})


def candidate(policy: str, hints: Mapping[str, float] | None = None, n_run: int = 0) -> Candidate:
    """A candidate of its own hints: later changes of the mapping do not reach it."""
    return Candidate(policy=policy, hints=dict(hints or {}), n_run=n_run)
