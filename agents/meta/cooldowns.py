"""What was rolled back is left alone for a while. Pure and bounded by the pool and its parameters."""

from hmas.agents.meta.candidate import Candidate

NEVER_S = float("-inf")


class Cooldowns:
    """Policies, and single candidates of a policy, that made things worse lately.

    Two tables, because the plain candidate of a policy goes by the policy's own name: `edf` with statera's windows is not all of `edf`.
    """

    def __init__(self) -> None:
        self._policies: dict[str, float] = {}
        self._labels: dict[str, float] = {}

    def add(self, failed: Candidate, stable: Candidate, until_s: float) -> None:
        """A candidate was rolled back to another: where the policy stays, what failed is its parameters or its window, not the policy."""
        if failed.policy == stable.policy:
            self._labels[failed.label] = until_s
        else:
            self._policies[failed.policy] = until_s

    def forget(self, now_s: float) -> None:
        """Drops those whose time is over."""
        self._policies = {name: until_s for name, until_s in self._policies.items() if until_s > now_s}
        self._labels = {label: until_s for label, until_s in self._labels.items() if until_s > now_s}

    def allows(self, policy: str, now_s: float) -> bool:
        """Whether any candidate of a policy may be wished."""
        return now_s >= self._policies.get(policy, NEVER_S)

    def until_s(self, wanted: Candidate) -> float:
        """Until when a candidate is left alone; the past where it is not."""
        return max(self._policies.get(wanted.policy, NEVER_S), self._labels.get(wanted.label, NEVER_S))
