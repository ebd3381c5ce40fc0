"""Checks a proposal against what is allowed: pool, routers, parameters, and the windows that an operator holds. Pure."""

from collections.abc import Collection

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.cooldowns import Cooldowns
from hmas.agents.meta.selectors.base import Proposal, Situation
from hmas.controller.core.errors import PolicyError
from hmas.controller.scheduling.policies.registry import check_parameters


def checked(proposal: Proposal, situation: Situation, pool: Collection[str], bans: Cooldowns) -> tuple[Candidate, str]:
    """Returns the proposed candidate (the running one if it is invalid) and why it cannot be followed; empty if it can.

    While an operator holds the windows of all instances, the running candidate's window stays: another would have no effect until the
    operator's release, and then come into force unproven.
    """
    wanted, current = proposal.candidate, situation.current
    if wanted.policy not in pool:
        return current, f"{wanted.policy!r} is not in the pool"
    if not situation.may_route(wanted) and bans.allows_router(wanted.router, situation.now_s):
        return current, f"router {wanted.router!r} is not allowed; allowed: {', '.join(filter(None, situation.routers)) or 'none'}"
    try:
        check_parameters(wanted.policy, wanted.parameters)
    except PolicyError as error:
        return current, str(error)
    if "knobs" in situation.view.forced and wanted.n_run != current.n_run:
        wanted = wanted.window(current.n_run)
        return wanted, "an operator holds the windows" if wanted == current else ""
    return wanted, ""
