"""Raises assumed targets to what the engines can reach. An assumed target is one that the request did not declare. Pure.

Table 6 is calibrated to one installation (H-MAS E.5). On an engine that needs 60 ms a token when idle, an assumed TPOT target of 90 ms
leaves no room for a batch: the TPOT guard would hold everything back to protect a target that no client asked for.
"""

from collections.abc import Sequence

import msgspec

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.speed import InstanceSpeed
from hmas.controller.scheduling.settings import SchedulerSettings

_BEST_LEAST = 0.25
"""Least part of the pace of a request alone, as it was seen, that the best pace counts as."""


def attainable(request: Request, estimates: Estimates, instances: Sequence[Instance], settings: SchedulerSettings) -> Estimates:
    """Raises assumed targets to at least `settings.headroom` times what the request would take alone. O(instances).

    On an engine so slow that this is more than the usual TPOT target, steps are longer than where the table was calibrated. First tokens
    wait for steps too, so the TTFT target is raised in the same proportion, whatever the task: on a steep engine 2 to 6 points more are in
    time (`lab/benchmarks/guard_study.py --steep --seeds 12`).

    Args:
        request: A request that declares no targets, or only one, which stays as it is.
        estimates: Its current estimates.
        instances: The instances that may serve it. An instance without measurements is ignored; of the others the fastest counts.
        settings: `headroom` and `usual_tpot_ms` count.
    """
    slo, headroom, half = estimates.slo, settings.headroom, request.half_declared
    paces = (one.pace for one in instances)
    alone_ms = headroom * min((_alone_ms(pace, pace.alone_ms) for pace in paces if pace.alone_ms is not None), default=0.0)
    ttft_ms, tpot_ms = slo.ttft_ms, slo.tpot_ms
    if half != "tpot":
        tpot_ms = max(tpot_ms, alone_ms)
    if half != "ttft":
        prefill_ms = min((took for one in instances if (took := one.pace.prefill_ms(request.prompt_tokens, 0.0)) > 0.0), default=0.0)
        ttft_ms = max(ttft_ms, ttft_ms * alone_ms / settings.usual_tpot_ms, headroom * prefill_ms)
    if tpot_ms == slo.tpot_ms and ttft_ms == slo.ttft_ms:
        return estimates
    return msgspec.structs.replace(estimates, slo=Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms))


def _alone_ms(pace: InstanceSpeed, alone_ms: float) -> float:
    """The pace of a request alone, or the best pace that waiting can bring if that is less.

    An engine that was flooded at its start has shown no request alone, and is not slow for that. What its line over large batches says of a
    small one may be far too low for a while.
    """
    best_ms = pace.best_ms()
    return alone_ms if best_ms is None else min(alone_ms, max(best_ms, _BEST_LEAST * alone_ms))
