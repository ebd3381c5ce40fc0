"""Keeps rolled-back candidates out of use for a while. Pure; its size is bounded by the pool, the routers and the parameters."""

from hmas.agents.meta.candidate import Candidate

NEVER_S = float("-inf")


class Cooldowns:
    """Policies, routers, and single candidates of a policy, that made things worse recently.

    Each is held with its kind, because a policy's plain candidate has the policy's name as its label: banning the candidate `edf` with
    statera's windows does not ban every candidate of `edf`.
    """

    def __init__(self) -> None:
        self._until_s: dict[tuple[str, str], float] = {}

    def add(self, failed: Candidate, stable: Candidate, until_s: float) -> None:
        """Records a rollback. Where the policy stayed, the router failed; where that stayed too, only this candidate is banned."""
        if failed.policy != stable.policy:
            banned = ("policy", failed.policy)
        elif failed.router != stable.router:
            banned = ("router", failed.router)
        else:
            banned = ("candidate", failed.label)
        self._until_s[banned] = until_s

    def forget(self, now_s: float) -> None:
        """Removes expired entries."""
        self._until_s = {banned: until_s for banned, until_s in self._until_s.items() if until_s > now_s}

    def allows(self, policy: str, now_s: float) -> bool:
        """Whether candidates of a policy may be proposed."""
        return now_s >= self._until_s.get(("policy", policy), NEVER_S)

    def allows_router(self, router: str, now_s: float) -> bool:
        """Whether candidates with a router may be proposed."""
        return now_s >= self._until_s.get(("router", router), NEVER_S)

    def until_s(self, wanted: Candidate) -> float:
        """The end of a candidate's cooldown; a time in the past if it has none."""
        named = (("policy", wanted.policy), ("router", wanted.router), ("candidate", wanted.label))
        return max(self._until_s.get(banned, NEVER_S) for banned in named)
