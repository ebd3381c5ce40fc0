"""Divides rows into those for training, for validation (stopping and calibration), and for the test. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.split import split


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows by their use; no prompt has a twin in another part."""

    train: list[Row]
    validation: list[Row]
    test: list[Row]


def dealt(rows: Sequence[Row], seed: int) -> Parts:
    """Returns the rows by use, in the same shares within each source and task."""
    places = split(rows, seed)
    return Parts(*([rows[index] for index in places[name]] for name in ("train", "validation", "test")))


def evenly(rows: Sequence[Row], limit: int, seed: int) -> list[Row]:
    """Returns at most `limit` rows, in turn from every source of every task, so that large sources do not dominate; 0 takes all."""
    if limit <= 0 or len(rows) <= limit:
        return list(rows)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task.value, row.source), []).append(row)
    ordered = [sorted(groups[key], key=lambda row: crc32(f"{seed} {row.prompt}".encode("utf-8", "replace"))) for key in sorted(groups)]
    taken: list[Row] = []
    while len(taken) < limit:
        ordered = [group for group in ordered if group]
        taken.extend(group.pop() for group in ordered[: limit - len(taken)])
    return taken
