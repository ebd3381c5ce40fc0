"""The comparison on a live engine: one static policy a run, everything else alike, blocks of runs on the same arrivals.

Every run has the same window (the best one for first come first served with shedding, tuned in the same session) and the same treatment
of late requests; there are no agents, no fence and no guard. So what differs between two runs of a block is the order of the queue.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from hmas.demo.calibration import Calibration, SweepPoint
from hmas.demo.field_runs import FieldRuns
from hmas.demo.outcome import rounded
from hmas.demo.settings import Span
from hmas.demo.virtual import Variant
from hmas.lab.blocks import broken, drawn_order, run_each
from hmas.lab.policies.settings import BASELINE, LATE, TWIN, LiveSettings
from hmas.lab.policies.tenants import SharedLoad
from hmas.lab.score import Score
from hmas.lab.workload import Arrival

Say = Callable[[str], None]
STAGES = ("measuring capacity", "tuning the window")


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What all blocks stand on: the operating point, and the window that the baseline does best with."""

    calibration: Calibration
    sweep: list[SweepPoint]
    window: int


class PolicyRuns:
    """The runs of the comparison, made by `FieldRuns`."""

    def __init__(self, settings: LiveSettings, runs: FieldRuns, load: SharedLoad, *, say: Say, stage: Say) -> None:
        self._settings = settings
        self._runs = runs
        self._load = load
        self._say = say
        self._stage = stage

    @property
    def names(self) -> tuple[str, ...]:
        """The runs of every block: each policy, and the baseline twice."""
        return (*self._settings.policies, TWIN)

    async def ground(self) -> Ground:
        """Measures capacity and SLOs, and tunes the window.

        Raises:
            DemoBroken: The engine does not serve.
        """
        self._stage(STAGES[0])
        calibration = await self._runs.calibrate()
        self._stage(STAGES[1])
        sweep, best = await self._runs.tune(self._piece(0, calibration, self._settings.field.sweep_span), (LATE,))
        return Ground(calibration=calibration, sweep=sweep, window=best[LATE])

    async def block(self, number: int, ground: Ground) -> dict[str, Any]:
        """One block, from 0: the engine's capacity at the window, then all runs in an order that is drawn for this block.

        Returns:
            Ready for JSON, with `runs` and `rejected` as `run_each` has them.

        Raises:
            DemoBroken: A process did not come up.
        """
        self._stage(f"block {number + 1}")
        field = self._settings.field
        capacity = await self._runs.capacity_at(ground.window)
        arrivals = self._piece(number + 1, ground.calibration, field.run_span)
        order = drawn_order(self.names, seed=field.seed, number=number)
        policies = {name: BASELINE if name == TWIN else name for name in order}
        variants = {
            name: Variant(name=f"block-{number + 1}-{name}", policy=policy, n_run=ground.window, overdue=LATE)
            for name, policy in policies.items()
        }
        made = await run_each(self._runs, variants, arrivals, field.run_span, agents=(), tell=self._tell)
        capacity_rps = round(capacity.throughput_rps, 3)
        return {"number": number + 1, "capacity_rps": capacity_rps, "arrivals": len(arrivals), "order": order, **made}

    def _tell(self, name: str, score: Score) -> None:
        self._say(f"{name}: {score.goodput_rps:.2f} good/s ({score.good} of {score.submitted}), TTFT p99 {score.ttft_ms.p99:.0f} ms")

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
            "window": ground.window,
            "late": LATE,
            "blocks": blocks,
            "broken": broken(blocks),
        }

    def _piece(self, number: int, calibration: Calibration, span: Span) -> list[Arrival]:
        return self._load.piece(number, mean_rps=calibration.mean_rps, duration_s=span.duration_s, slo_scale=calibration.slo_scale)
