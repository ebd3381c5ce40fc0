"""Common parts of comparisons in simulation: the windows of a fleet, the run of tasks, the best window."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

import msgspec

from hmas.controller.core.errors import ConfigError
from hmas.demo.calibration import CapPoint
from hmas.planning.backends import Backend, Work
from hmas.planning.errors import StudyError
from hmas.planning.fleet import Fleet

Row = TypeVar("Row")


class Measured(Protocol):
    """The row of a run on a backlog; its figures include `middle_rps` and `tpot_ms_p50`."""

    @property
    def window(self) -> int:
        """Window of each instance."""
        ...

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures by name."""
        ...


def caps_of(fleet: Fleet, caps: Sequence[int]) -> list[int]:
    """The windows that every engine of the fleet can have.

    Raises:
        ConfigError: No window is left to try.
    """
    most = min(kind.profile.max_num_seqs for kind in fleet.kinds)
    kept = [cap for cap in caps if cap <= most]
    if not kept:
        raise ConfigError(f"caps are {list(caps)}; allowed for {fleet.name}: at least one of 1 to {most}")
    return kept


def curve_of(rows: Iterable[Measured], what: str) -> list[CapPoint]:
    """Throughput and TPOT by window.

    Raises:
        StudyError: No run completed a request; `what` names the runs in the error.
    """
    curve = [
        CapPoint(n_run=row.window, throughput_rps=row.figures["middle_rps"], tpot_ms=row.figures["tpot_ms_p50"])
        for row in rows
        if row.figures["middle_rps"] > 0.0
    ]
    if not curve:
        raise StudyError(f"{what}: nothing was completed while capacity was measured")
    return curve


def best_window(tried: Mapping[int, float]) -> int:
    """The window with the highest goodput rate; among equals the smallest."""
    return max(tried, key=lambda cap: (tried[cap], -cap))


def rows_of(
    tasks: Sequence[msgspec.Struct],
    kind: type[Row],
    work: Work,
    backend: Backend,
    *,
    known: Mapping[int, Row],
    on_row: Callable[[int, Row], None],
    say: Callable[[str], None] | None,
) -> list[Row]:
    """Runs tasks and returns their rows in the order of the tasks.

    Args:
        tasks: All tasks.
        kind: Type of the rows that `work` returns, encoded as JSON.
        work: A module-level function from task to row, both encoded.
        backend: Where it runs.
        known: Rows that exist already, by index of their task.
        on_row: Called with index and row of each new row.
        say: Called about ten times with the progress as text; None for no progress.
    """
    found = dict(known)
    left = [place for place in range(len(tasks)) if place not in found]
    if left:
        with closing(backend(work, [msgspec.json.encode(tasks[place]) for place in left])) as answers:
            for number, answer in answers:
                row = msgspec.json.decode(answer, type=kind)
                found[left[number]] = row
                on_row(left[number], row)
                if say is not None and len(found) % max(1, len(tasks) // 10) == 0:
                    say(f"{len(found)} of {len(tasks)} runs done")
    return [found[place] for place in range(len(tasks))]
