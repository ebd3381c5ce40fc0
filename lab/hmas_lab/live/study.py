"""What the live comparison compares: every arm of its settings, H-MAS with its agents."""

from hmas_lab.live.figures import summary
from hmas_lab.live.settings import OURS, LiveSettings, variant_of
from hmas_lab.onvllm.comparison import Contest


def contest(settings: LiveSettings) -> Contest:
    """The comparison, ready to be run."""
    return Contest(
        field=settings.field,
        settings=settings,
        tuning="tuning the baselines' windows",
        treatments=("keep", "shed"),
        names=settings.names,
        agents={OURS},
        variant=variant_of,
        figure=lambda score: f"TPOT p95 {score.tpot_ms.p95:.1f} ms",
        results=lambda windows, blocks: {"windows": windows, "blocks": blocks, "summary": summary(blocks, settings.names)},
    )
