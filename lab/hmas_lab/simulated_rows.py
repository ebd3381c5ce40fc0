"""Common parts of comparisons in simulation: names in options, windows of a fleet, the run of tasks, their rows on disk."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from hmas.controller.core.errors import ConfigError
from hmas.demo.calibration import CapPoint
from hmas.planning import StudyError
from hmas.planning.backends import Backend, Work
from hmas.planning.fleet import Fleet

Name = TypeVar("Name", bound=str)
Task = TypeVar("Task")
Row = TypeVar("Row", bound=msgspec.Struct)


def read_names(what: str, text: str, allowed: tuple[Name, ...]) -> tuple[Name, ...]:
    """Reads names separated by commas; returns them in the order of `allowed`. An empty text stands for all.

    Raises:
        ConfigError: A name is not allowed; the error names the option `what`.
    """
    wanted = {name.strip() for name in text.split(",") if name.strip()} or set(allowed)
    unknown = sorted(wanted - set(allowed))
    if unknown:
        raise ConfigError(f"{what}: {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    return tuple(name for name in allowed if name in wanted)


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


class KeptRows(Generic[Task, Row]):
    """Rows by task.

    Args:
        path: The file; None stores nothing.
        kind: Type of a row; it has an `error` text, empty if there is none.
        key: The task's name in the file, independent of other tasks.
        resume: Whether to use rows that are in the file already. They are comparable only if code and models are the same.
        accept: Which of these rows to use; all by default.
    """

    def __init__(
        self,
        path: Path | None,
        kind: type[Row],
        key: Callable[[Task], str],
        *,
        resume: bool = False,
        accept: Callable[[Row], bool] = lambda _row: True,
    ) -> None:
        """Reads or empties the file.

        Raises:
            StudyError: The file cannot be read or written.
        """
        self._path = path
        self._key = key
        self._rows: dict[str, Row] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if resume and path.exists():
                data = path.read_bytes()
                whole = data[: data.rfind(b"\n") + 1]
                if len(whole) < len(data):
                    # Removes a line that an interrupt or a full disk cut off.
                    path.write_bytes(whole)
                kept = msgspec.json.Decoder(tuple[str, kind]).decode_lines(whole)  # type: ignore[valid-type]
                self._rows = {name: row for name, row in kept if accept(row)}
            else:
                path.write_bytes(b"")
        except OSError as error:
            raise StudyError(f"{path}: {error.strerror}; choose another --out") from error
        except msgspec.DecodeError as error:
            raise StudyError(f"{path}: {error}; it is no file of rows of this study: remove it, or run without --resume") from error

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, task: Task) -> Row | None:
        """The task's row, None if there is none."""
        return self._rows.get(self._key(task))

    def keep(self, task: Task, row: Row) -> None:
        """Stores a row, unless it has an error: such a task runs again."""
        if self._path is not None and not getattr(row, "error", ""):
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode((self._key(task), row)) + b"\n")
