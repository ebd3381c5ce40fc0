"""The whole evaluation: grounds, then every arm in every scenario, then what it comes to."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hmas.planning.backends import Backend
from hmas_lab.compare import plain
from hmas_lab.paper.arms import ARMS, DEFAULT, FEW_FIXED, FIXED, LIGHTLLM, PRODUCT, SGLANG, STRONG
from hmas_lab.paper.figures import summary
from hmas_lab.paper.goals import goals
from hmas_lab.paper.ground import TUNING_SEED, Ground, Grounds, lender
from hmas_lab.paper.rows import Row, Task, run_task
from hmas_lab.paper.scenarios import SCENARIOS
from hmas_lab.paper.settings import GO_ON, SCREENED_SPAN, PaperSettings
from hmas_lab.simulated_rows import KeptRows, rows_of

PLOTTED = (DEFAULT, SGLANG, LIGHTLLM, STRONG, PRODUCT)
"""Arms whose course over time is kept, of the first seed."""


class PaperStudy:
    """The evaluation; `say` is told where it stands."""

    def __init__(self, settings: PaperSettings, backend: Backend, say: Callable[[str], None], kept: KeptRows[Task, Row]) -> None:
        """Checks what can be checked without a simulation; `kept` holds rows of an earlier run that was broken off.

        Raises:
            ConfigError: A fleet cannot be read, or no window is left to try.
        """
        self._settings = settings
        self._backend = backend
        self._say = say
        self._kept = kept
        self._grounds = Grounds(settings, self._rows, say)

    def run(self) -> dict[str, Any]:
        """Runs it all. The same settings give the same document, however many processes work on it, as far as the arms themselves do.

        Raises:
            StudyError: A run failed while the operating points were looked for.
        """
        settings = self._settings
        grounds = self._grounds.find()
        chosen = self._screened(grounds)
        tasks = [
            self._task(ground, arm, seed)
            for ground in grounds
            for seed in range(1, settings.seeds + 1)
            for arm in settings.arms_of(ground.model, ground.scenario)
            if ARMS[arm].role != "fixed" or arm in chosen[ground.model, ground.scenario]
        ]
        self._say(f"{len(tasks)} runs: {len(grounds)} scenarios, {settings.seeds} seeds")
        rows = self._rows(tasks, tell=True)
        failed = [f"{row.model}, {row.scenario}, {row.arm}, seed {row.seed}: {row.error}" for row in rows if row.error]
        found = summary([row for row in rows if not row.error], grounds, settings)
        return {
            "version": 1,
            "settings": msgspec.to_builtins(msgspec.structs.replace(settings, data="yes" if settings.data else "")),
            "left_out": list(settings.left_out()),
            "arms": {name: ARMS[name].words for name in settings.arms},
            "scenarios": {name: SCENARIOS[name].words for name in settings.scenarios},
            "fleets": {name: settings.fleet(name) for name in settings.models},
            "grounds": plain(grounds),
            "went_on": {f"{model}, {name}": found for (model, name), found in chosen.items()},
            "summary": found,
            "goals": goals(found),
            "rows": plain(rows),
            "broken": failed,
        }

    def _screened(self, grounds: Sequence[Ground]) -> dict[tuple[str, str], list[str]]:
        """Fixed policies that go on, by model and scenario: the best on a shorter workload that is not scored, and the paper's subset."""
        tried = [
            (ground, arm)
            for ground in grounds
            if not lender(ground, grounds)
            for arm in self._settings.arms_of(ground.model, ground.scenario)
            if arm in FIXED
        ]
        self._say(f"{len(tried)} runs to find the fixed policies that go on, on a workload that is not scored")
        tasks = [self._grounds.task(_shorter(ground), arm, TUNING_SEED, 0) for ground, arm in tried]
        goodput: dict[tuple[str, str], dict[str, float]] = {}
        for (ground, arm), row in zip(tried, self._rows(tasks, tell=True), strict=True):
            goodput.setdefault((ground.model, ground.scenario), {})[arm] = row.figures.get("goodput_rps", 0.0)
        found = {}
        for ground in grounds:
            mine = goodput.get((ground.model, lender(ground, grounds) or ground.scenario), {})
            best = sorted(mine, key=lambda arm: -mine[arm])
            found[ground.model, ground.scenario] = best[:GO_ON] + [arm for arm in best[GO_ON:] if arm in FEW_FIXED]
        return found

    def _task(self, ground: Ground, arm: str, seed: int) -> Task:
        series = seed == 1 and arm in PLOTTED and self._settings.models[ground.model].whole
        return self._grounds.task(ground, arm, seed, ground.windows.get(arm, 0), series=series)

    def _rows(self, tasks: Sequence[Task], *, tell: bool = False) -> list[Row]:
        """The tasks' rows, in their order."""
        known = {place: row for place, task in enumerate(tasks) if (row := self._kept.row(task)) is not None}

        def keep(place: int, row: Row) -> None:
            self._kept.keep(tasks[place], row)

        return rows_of(tasks, Row, run_task, self._backend, known=known, on_row=keep, say=self._say if tell else None)


def _shorter(ground: Ground) -> Ground:
    return msgspec.structs.replace(ground, span_s=ground.span_s * SCREENED_SPAN)
