"""The comparison on a live engine: one static policy a run, everything else alike, blocks of runs on the same arrivals.

Every run has the same window (the best one for first come first served with shedding, tuned in the same session) and the same treatment
of late requests; there are no agents, no fence and no guard. So what differs between two runs of a block is the order of the queue.
"""

from hmas.demo.calibration import Variant
from hmas_lab.onvllm.comparison import Contest, Windows
from hmas_lab.policies.settings import BASELINE, LATE, TWIN, LiveSettings


def contest(settings: LiveSettings) -> Contest:
    """The comparison, ready to be run."""
    return Contest(
        field=settings.field,
        settings=settings,
        tuning="tuning the window",
        treatments=(LATE,),
        names=(*settings.policies, TWIN),
        variant=_variant,
        figure=lambda score: f"TTFT p99 {score.ttft_ms.p99:.0f} ms",
        results=lambda windows, blocks: {"window": windows[LATE], "late": LATE, "blocks": blocks},
    )


def _variant(name: str, windows: Windows, prefix: str) -> Variant:
    return Variant(name=f"{prefix}-{name}", policy=BASELINE if name == TWIN else name, n_run=windows[LATE], overdue=LATE)
