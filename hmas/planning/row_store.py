"""Stores the rows of a long study on disk, one per line as they finish, so that an interrupted study can be resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from hmas.planning.errors import StudyError

Task = TypeVar("Task")
Row = TypeVar("Row", bound=msgspec.Struct)


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

    def row(self, task: Task) -> Row | None:
        """The task's row, None if there is none."""
        return self._rows.get(self._key(task))

    def keep(self, task: Task, row: Row) -> None:
        """Stores a row, unless it has an error: such a task runs again."""
        if self._path is not None and not getattr(row, "error", ""):
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode((self._key(task), row)) + b"\n")
