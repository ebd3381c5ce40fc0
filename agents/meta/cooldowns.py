"""Keeps rolled-back candidates out of use for a while. Pure; its size is bounded by the pool, the routers and the parameters."""

from hmas.agents.meta.candidate import Candidate

NEVER_S = float("-inf")


class Cooldowns:
    """Policies, routers, and single candidates of a policy, that made things worse recently.

    Each has a table of its own because a policy's plain candidate has the policy's name as its label: banning the candidate `edf` with
    statera's windows does not ban every candidate of `edf`.
    """

    def __init__(self) -> None:
        self._policies: dict[str, float] = {}
        self._routers: dict[str, float] = {}
        self._labels: dict[str, float] = {}

    def add(self, failed: Candidate, stable: Candidate, until_s: float) -> None:
        """Records a rollback. Where the policy stayed, the router failed; where that stayed too, only this candidate is banned."""
        if failed.policy != stable.policy:
            self._policies[failed.policy] = until_s
        elif failed.router != stable.router:
            self._routers[failed.router] = until_s
        else:
            self._labels[failed.label] = until_s

    def forget(self, now_s: float) -> None:
        """Removes expired entries."""
        self._policies = {name: until_s for name, until_s in self._policies.items() if until_s > now_s}
        self._routers = {router: until_s for router, until_s in self._routers.items() if until_s > now_s}
        self._labels = {label: until_s for label, until_s in self._labels.items() if until_s > now_s}

    def allows(self, policy: str, now_s: float) -> bool:
        """Whether candidates of a policy may be proposed."""
        return now_s >= self._policies.get(policy, NEVER_S)

    def allows_router(self, router: str, now_s: float) -> bool:
        """Whether candidates with a router may be proposed."""
        return now_s >= self._routers.get(router, NEVER_S)

    def until_s(self, wanted: Candidate) -> float:
        """The end of a candidate's cooldown; a time in the past if it has none."""
        found = (self._policies.get(wanted.policy, NEVER_S), self._routers.get(wanted.router, NEVER_S))
        return max(*found, self._labels.get(wanted.label, NEVER_S))
