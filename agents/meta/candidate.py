"""What may be in force: a queueing policy with its hints, the TPOT guard's share among them, and who sets the windows."""

from collections.abc import Mapping

import msgspec

from controller.core.messages import label_of
from controller.scheduling.pool import GUARD, own_hints


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

    def under(self, policy: str) -> "Candidate":
        """Another policy, as it comes, with the same windows and guard."""
        return msgspec.structs.replace(self, policy=policy, hints={GUARD: self.hints[GUARD]} if GUARD in self.hints else {})


def candidate(policy: str, hints: Mapping[str, float] | None = None, n_run: int = 0) -> Candidate:
    """A candidate of its own hints: later changes of the mapping do not reach it."""
    return Candidate(policy=policy, hints=dict(hints or {}), n_run=n_run)
