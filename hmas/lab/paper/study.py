"""The whole evaluation: grounds, then every arm in every scenario, then what it comes to."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import msgspec

from hmas.lab.compare import plain
from hmas.lab.paper.arms import ARMS, DEFAULT, FIXED, PRODUCT, SGLANG, STRONG
from hmas.lab.paper.figures import summary
from hmas.lab.paper.goals import goals
from hmas.lab.paper.ground import Ground, Grounds
from hmas.lab.paper.rows import Row, Task, run_task
from hmas.lab.paper.scenarios import SCENARIOS
from hmas.lab.paper.settings import FIRST_SEEDS, GO_ON, PaperSettings
from hmas.lab.studies.backends import Backend
from hmas.lab.studies.kept import KeptRows
from hmas.lab.studies.rows import rows_of

PLOTTED = (DEFAULT, SGLANG, STRONG, PRODUCT)
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
        first = [self._task(ground, arm, seed) for ground in grounds for arm, seed in self._first(ground)]
        self._say(f"{len(first)} runs: {len(grounds)} scenarios, {settings.seeds} seeds; then the best fixed policies on the rest of them")
        rows = self._rows(first, tell=True)
        further = [self._task(ground, arm, seed) for ground in grounds for arm, seed in self._further(ground, rows)]
        self._say(f"{len(further)} more runs")
        rows += self._rows(further, tell=True)
        failed = [f"{row.model}, {row.scenario}, {row.arm}, seed {row.seed}: {row.error}" for row in rows if row.error]
        found = summary([row for row in rows if not row.error], grounds, settings)
        return {
            "version": 1,
            "settings": msgspec.to_builtins(msgspec.structs.replace(settings, data="yes" if settings.data else "")),
            "left_out": list(settings.left_out()),
            "arms": {name: ARMS[name].words for name in settings.arms},
            "scenarios": {name: SCENARIOS[name].words for name in settings.scenarios},
            "grounds": plain(grounds),
            "summary": found,
            "goals": goals(found),
            "rows": plain(rows),
            "broken": failed,
        }

    def _first(self, ground: Ground) -> list[tuple[str, int]]:
        """Arms with their seeds: the fixed policies on the first ones only."""
        few = min(FIRST_SEEDS, self._settings.seeds)
        return [
            (arm, seed)
            for seed in range(1, self._settings.seeds + 1)
            for arm in self._settings.arms_of(ground.model, ground.scenario)
            if seed <= few or ARMS[arm].role != "fixed"
        ]

    def _further(self, ground: Ground, rows: Sequence[Row]) -> list[tuple[str, int]]:
        """The fixed policies that were best on the first seeds, on the rest."""
        goodput: dict[str, list[float]] = {}
        for row in rows:
            if (row.model, row.scenario) == (ground.model, ground.scenario) and row.arm in FIXED and not row.error:
                goodput.setdefault(row.arm, []).append(row.figures["goodput_rps"])
        best = sorted(goodput, key=lambda arm: -fmean(goodput[arm]))[:GO_ON]
        return [(arm, seed) for seed in range(FIRST_SEEDS + 1, self._settings.seeds + 1) for arm in best]

    def _task(self, ground: Ground, arm: str, seed: int) -> Task:
        series = seed == 1 and arm in PLOTTED and self._settings.models[ground.model].whole
        return self._grounds.task(ground, arm, seed, ground.windows.get(arm, 0), series=series)

    def _rows(self, tasks: Sequence[Task], *, tell: bool = False) -> list[Row]:
        """The tasks' rows, in their order."""
        known = {place: row for place, task in enumerate(tasks) if (row := self._kept.row(task)) is not None}

        def keep(place: int, row: Row) -> None:
            self._kept.keep(tasks[place], row)

        return rows_of(tasks, Row, run_task, self._backend, known=known, on_row=keep, say=self._say if tell else None)
