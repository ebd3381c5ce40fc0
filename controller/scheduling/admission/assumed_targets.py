"""Targets that a request did not declare, brought within what its engines can do. Pure.

Table 6 is calibrated to one installation (H-MAS E.5). On an engine that takes 60 ms a token with nothing else to do, an assumed TPOT
target of 90 ms leaves no room for a batch: the TPOT guard would hold everything back for the sake of a target that no client asked for.
"""

from collections.abc import Sequence

import msgspec

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.instances.instance import Instance


def attainable(request: Request, estimates: Estimates, instances: Sequence[Instance], headroom: float) -> Estimates:
    """Estimates whose assumed targets are at least `headroom` times what the request would take alone. O(instances).

    Args:
        request: One that declares no targets.
        estimates: What is believed of it.
        instances: Those that may serve it. One that has shown nothing yet says nothing; of the others the fastest counts.
        headroom: 0 leaves all targets as they are.
    """
    tpot_ms = min((one.pace.floor_ms for one in instances if one.pace.floor_ms is not None), default=0.0)
    prefill_ms = min((took for one in instances if (took := one.pace.prefill_ms(request.prompt_tokens, 0.0)) > 0.0), default=0.0)
    slo = estimates.slo
    if headroom * tpot_ms <= slo.tpot_ms and headroom * prefill_ms <= slo.ttft_ms:
        return estimates
    stretched = Slo(ttft_ms=max(slo.ttft_ms, headroom * prefill_ms), tpot_ms=max(slo.tpot_ms, headroom * tpot_ms))
    return msgspec.structs.replace(estimates, slo=stretched)
