"""The runs of the live comparison: every arm on the same arrivals, in an order that is drawn for each block."""

from collections.abc import Callable
from typing import Any

import msgspec

from hmas.demo.calibration import Calibration, SweepPoint
from hmas.demo.field_runs import FieldRuns
from hmas.demo.outcome import rounded
from hmas.demo.settings import Span
from hmas.demo.virtual import Overdue
from hmas.lab.blocks import broken, drawn_order, run_each
from hmas.lab.live.figures import summary
from hmas.lab.live.settings import OURS, LiveSettings, variant_of
from hmas.lab.policies.tenants import SharedLoad
from hmas.lab.score import Score
from hmas.lab.workload import Arrival

Say = Callable[[str], None]
STAGES = ("measuring capacity", "tuning the baselines' windows")


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What all blocks stand on: the operating point, and the baselines' best windows by treatment of late requests."""

    calibration: Calibration
    sweep: list[SweepPoint]
    windows: dict[Overdue, int]


class LiveComparison:
    """The runs, made by `FieldRuns`."""

    def __init__(self, settings: LiveSettings, runs: FieldRuns, load: SharedLoad, *, say: Say, stage: Say) -> None:
        self._settings = settings
        self._runs = runs
        self._load = load
        self._say = say
        self._stage = stage

    async def ground(self) -> Ground:
        """Measures capacity and SLOs, and tunes the baselines' windows.

        Raises:
            DemoBroken: The engine does not serve.
        """
        self._stage(STAGES[0])
        calibration = await self._runs.calibrate()
        self._stage(STAGES[1])
        # A piece of the trace that no block uses.
        sweep, best = await self._runs.tune(self._piece(0, calibration, self._settings.field.sweep_span), ("keep", "shed"))
        return Ground(calibration=calibration, sweep=sweep, windows={"keep": best["keep"], "shed": best["shed"]})

    async def block(self, number: int, ground: Ground) -> dict[str, Any]:
        """One block, from 0: the engine's capacity again, then all runs; ready for JSON.

        Raises:
            DemoBroken: A process did not come up.
        """
        self._stage(f"block {number + 1}")
        field = self._settings.field
        capacity = await self._runs.capacity_at(ground.windows["shed"])
        arrivals = self._piece(number + 1, ground.calibration, field.run_span)
        order = drawn_order(self._settings.names, seed=field.seed, number=number)
        variants = {name: variant_of(name, ground.windows, f"block-{number + 1}") for name in order}
        made = await run_each(self._runs, variants, arrivals, field.run_span, agents={OURS}, tell=self._tell)
        return {
            "number": number + 1,
            "capacity_rps": round(capacity.throughput_rps, 3),
            "arrivals": len(arrivals),
            "order": order,
            **made,
        }

    def _tell(self, name: str, score: Score) -> None:
        self._say(f"{name}: {score.goodput_rps:.2f} good/s ({score.good} of {score.submitted}), TPOT p95 {score.tpot_ms.p95:.1f} ms")

    def document(self, ground: Ground, blocks: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
        """Everything so far, as it is written to live.json; `about` is what the caller knows of machine and engine."""
        return {
            "version": 1,
            **about,
            "complete": len(blocks) == self._settings.field.blocks,
            "settings": msgspec.to_builtins(self._settings),
            "long_from_tokens": self._load.long_from_tokens,
            "calibration": rounded(msgspec.to_builtins(ground.calibration)),
            "sweep": rounded(msgspec.to_builtins(ground.sweep)),
            "windows": ground.windows,
            "blocks": blocks,
            "summary": summary(blocks, self._settings.names),
            "broken": broken(blocks),
        }

    def _piece(self, number: int, calibration: Calibration, span: Span) -> list[Arrival]:
        return self._load.piece(number, mean_rps=calibration.mean_rps, duration_s=span.duration_s, slo_scale=calibration.slo_scale)
