"""Raises assumed targets to what the engines can reach. An assumed target is one that the request did not declare. Pure.

Table 6 is calibrated to one installation (H-MAS E.5). On an engine that needs 60 ms a token when idle, an assumed TPOT target of 90 ms
leaves no room for a batch: the TPOT guard would hold everything back to protect a target that no client asked for.
"""

from collections.abc import Sequence

import msgspec

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.instances.instance import Instance


def attainable(request: Request, estimates: Estimates, instances: Sequence[Instance], headroom: float) -> Estimates:
    """Raises assumed targets to at least `headroom` times what the request would take alone. O(instances).

    Args:
        request: A request that declares no targets, or only one, which stays as it is.
        estimates: Its current estimates.
        instances: The instances that may serve it. An instance without measurements is ignored; of the others the fastest counts.
        headroom: 0 leaves all targets as they are.
    """
    tpot_ms = prefill_ms = 0.0
    if request.half_declared != "tpot":
        tpot_ms = min((one.pace.alone_ms for one in instances if one.pace.alone_ms is not None), default=0.0)
    if request.half_declared != "ttft":
        prefill_ms = min((took for one in instances if (took := one.pace.prefill_ms(request.prompt_tokens, 0.0)) > 0.0), default=0.0)
    slo = estimates.slo
    if headroom * tpot_ms <= slo.tpot_ms and headroom * prefill_ms <= slo.ttft_ms:
        return estimates
    stretched = Slo(ttft_ms=max(slo.ttft_ms, headroom * prefill_ms), tpot_ms=max(slo.tpot_ms, headroom * tpot_ms))
    return msgspec.structs.replace(estimates, slo=stretched)
