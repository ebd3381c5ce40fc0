"""One simulated run as a task, what it came to as a row, and the rows that are kept on disk."""

import hashlib
from pathlib import Path

import msgspec

from hmas.lab.agents.settings import AblationSettings, Belief
from hmas.lab.studies.errors import StudyError


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run: all that a process needs.

    Attributes:
        window: Of each instance; 0 for what the profile allows.
        at_once: Whether all of it is there from the beginning.
    """

    data: str
    settings: AblationSettings
    load: float
    mean_rps: float
    slo_scale: float
    window: int
    way: str
    belief: Belief
    seed: int
    at_once: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to: `figures` by name, `tasks` as goodput rates; or an `error` in words."""

    load: float
    way: str
    belief: Belief
    seed: int
    window: int
    figures: dict[str, float] = {}
    tasks: dict[str, float] = {}
    error: str = ""


class KeptRows:
    """Rows on disk, one a line as they come, so that a long run which is broken off can be taken up again.

    Args:
        path: The file; None keeps nothing.
        resume: Whether rows that lie there already count. They are those of the same requests only if code and models are the same.
    """

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        """Reads or empties the file.

        Raises:
            StudyError: It cannot be read or written.
        """
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if resume and path.exists():
                kept = msgspec.json.Decoder(tuple[str, Row]).decode_lines(path.read_bytes())
                self._rows = dict(kept)
            else:
                path.write_bytes(b"")
        except OSError as error:
            raise StudyError(f"{path}: {error.strerror}; choose another --out") from error
        except msgspec.DecodeError as error:
            raise StudyError(f"{path}: {error}; it is no file of rows: run without --resume") from error

    def row(self, task: Task) -> Row | None:
        """The task's row, where it lies there."""
        return self._rows.get(_key(task))

    def keep(self, task: Task, row: Row) -> None:
        """Adds a row; one with an error is to be made again."""
        if self._path is not None and not row.error:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode((_key(task), row)) + b"\n")


def _key(task: Task) -> str:
    """The same for a task whatever else is run beside it."""
    alone = msgspec.structs.replace(task.settings, beliefs=(), ways=(), loads=(), seeds=2)
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(task, settings=alone), order="deterministic")).hexdigest()
