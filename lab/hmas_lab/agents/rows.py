"""One simulated run as a task, what it came to as a row, and the rows that are kept on disk."""

import hashlib
from pathlib import Path

import msgspec

from hmas_lab import simulated_rows
from hmas_lab.agents.settings import AblationSettings, Belief


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


class KeptRows(simulated_rows.KeptRows[Task, Row]):
    """As `hmas_lab.simulated_rows.KeptRows`, of this study."""

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        """Reads or empties the file; None keeps nothing.

        Raises:
            StudyError: It cannot be read or written.
        """
        super().__init__(path, Row, _key, resume=resume)


def _key(task: Task) -> str:
    """The same for a task whatever else is run beside it."""
    alone = msgspec.structs.replace(task.settings, beliefs=(), ways=(), loads=(), seeds=2)
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(task, settings=alone), order="deterministic")).hexdigest()
