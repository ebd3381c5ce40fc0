"""The runs of a comparison: all of a block on the same arrivals, in an order that is drawn for it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from hmas.demo.calibration import Calibration, Overdue, SweepPoint, Variant
from hmas.demo.outcome import DIGITS
from hmas.demo.settings import Span
from hmas.loadgen.score import Score
from hmas.loadgen.workload import Arrival
from hmas.planning.report import rounded
from hmas_lab.blocks import broken, drawn_order, run_each
from hmas_lab.demo_vllm.runs import FieldRuns
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.onvllm.tenants import SharedLoad

Say = Callable[[str], None]
Windows = Mapping[Overdue, int]
"""The best windows under first come first served, by treatment of late requests."""


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared, and how it is told.

    Attributes:
        field: Load, bursts, lengths, blocks and windows. `settings`: all settings as the document repeats them.
        tuning: What the stage is called in which windows are tuned.
        treatments: Of late requests, for each of which a window is tuned. `shed` is one: at its window capacity is measured again.
        names: The runs of a block. `agents`: those in which H-MAS's agents take part.
        variant: The static configuration of a run by its name, the windows, and what stands before the name.
        figure: What is said of a run beside its goodput.
        results: What the document says of windows and blocks.
    """

    field: FieldSettings
    settings: msgspec.Struct
    tuning: str
    treatments: tuple[Overdue, ...]
    names: tuple[str, ...]
    variant: Callable[[str, Windows, str], Variant]
    figure: Callable[[Score], str]
    results: Callable[[Windows, list[dict[str, Any]]], dict[str, Any]]
    agents: Collection[str] = ()

    @property
    def stages(self) -> tuple[str, str]:
        """What comes before the blocks."""
        return ("measuring capacity", self.tuning)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What all blocks stand on: the operating point, and the tuned windows."""

    calibration: Calibration
    sweep: list[SweepPoint]
    windows: Windows


class Comparison:
    """The runs, made by `FieldRuns`."""

    def __init__(self, contest: Contest, runs: FieldRuns, load: SharedLoad, *, say: Say, stage: Say) -> None:
        self._contest = contest
        self._runs = runs
        self._load = load
        self._say = say
        self._stage = stage

    async def ground(self) -> Ground:
        """Measures capacity and SLOs, and tunes the windows.

        Raises:
            DemoBroken: The engine does not serve.
        """
        measuring, tuning = self._contest.stages
        self._stage(measuring)
        calibration = await self._runs.calibrate()
        self._stage(tuning)
        # A piece of the trace that no block uses.
        arrivals = self._piece(0, calibration, self._contest.field.sweep_span)
        sweep, best = await self._runs.tune(arrivals, self._contest.treatments)
        return Ground(calibration=calibration, sweep=sweep, windows={late: best[late] for late in self._contest.treatments})

    async def block(self, number: int, ground: Ground) -> dict[str, Any]:
        """One block, from 0: the engine's capacity again, then all runs.

        Returns:
            Ready for JSON, with `runs` and `rejected` as `run_each` has them.

        Raises:
            DemoBroken: A process did not come up.
        """
        self._stage(f"block {number + 1}")
        contest, field = self._contest, self._contest.field
        capacity = await self._runs.capacity_at(ground.windows["shed"])
        arrivals = self._piece(number + 1, ground.calibration, field.run_span)
        order = drawn_order(contest.names, seed=field.seed, number=number)
        variants = {name: contest.variant(name, ground.windows, f"block-{number + 1}") for name in order}
        made = await run_each(self._runs, variants, arrivals, field.run_span, agents=contest.agents, tell=self._tell)
        capacity_rps = round(capacity.throughput_rps, 3)
        return {"number": number + 1, "capacity_rps": capacity_rps, "arrivals": len(arrivals), "order": order, **made}

    def document(self, ground: Ground, blocks: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
        """Everything so far, as it is written to live.json; `about` is what the caller knows of machine and engine."""
        return {
            "version": 1,
            **about,
            "complete": len(blocks) == self._contest.field.blocks,
            "settings": msgspec.to_builtins(self._contest.settings),
            "long_from_tokens": self._load.long_from_tokens,
            "calibration": rounded(msgspec.to_builtins(ground.calibration), DIGITS),
            "sweep": rounded(msgspec.to_builtins(ground.sweep), DIGITS),
            **self._contest.results(ground.windows, blocks),
            "broken": broken(blocks),
        }

    def _tell(self, name: str, score: Score) -> None:
        self._say(f"{name}: {score.goodput_rps:.2f} good/s ({score.good} of {score.submitted}), {self._contest.figure(score)}")

    def _piece(self, number: int, calibration: Calibration, span: Span) -> list[Arrival]:
        return self._load.piece(number, mean_rps=calibration.mean_rps, duration_s=span.duration_s, slo_scale=calibration.slo_scale)
