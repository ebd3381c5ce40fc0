"""The directory of override documents: it is polled, and the last valid version of each file is kept."""

import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hmas.controller.config.override_format import MAX_BYTES, check_text, document_of, parse_override, valid_id
from hmas.controller.control.overrides import Override
from hmas.controller.core.errors import OverrideError

MAX_FILES = 256
_RACY_S = 2.0
"""A file that was written less than this before it was read is read again: it may change within the same timestamp."""


@dataclass(frozen=True, slots=True)
class FileError:
    """Why a file has no effect, or why an older version of it stays active."""

    file: str
    message: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """One reading of the directory.

    Attributes:
        overrides: The last valid version of every file, in the order of ids, including expired ones.
        errors: Files whose current content cannot be used, in the order of their names.
    """

    overrides: tuple[Override, ...]
    errors: tuple[FileError, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The stored state of a file: its stamp, its last valid version, and the error of its current version."""

    stamp: tuple[int, int, int]
    override: Override | None
    error: str


class OverrideDirectory:
    """A directory with one override per `ID.json`, read by polling and written atomically.

    Files whose name starts with a dot or does not end in `.json` are ignored. Symbolic links, other file types, names that do not match the
    pattern, files larger than 64 KiB and files beyond the first 256 are refused with an error. If a file becomes invalid, its last valid
    version stays active until the file is corrected or removed, or that version expires.
    """

    def __init__(self, path: str | Path) -> None:
        """Stores the path; the first `write` creates the directory, and until then it counts as empty."""
        self.path = Path(path)
        self._seen: dict[str, _Seen] = {}

    def make(self) -> None:
        """Makes the directory where it is missing, so that it belongs to the gateway's user. If it cannot be made, `write` tells."""
        with suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def scan(self, now_s: float) -> ScanResult:
        """Reads the files that have changed since the last scan. Never raises: files that cannot be read are listed in `errors`."""
        errors: list[FileError] = []
        try:
            names = sorted(file.name for file in self.path.iterdir() if file.name.endswith(".json") and not file.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError as error:
            # If the directory cannot be read, the active overrides stay active.
            errors.append(FileError(str(self.path), f"cannot read the directory: {error.strerror}; what was in force stays in force"))
            return self._result(errors)
        errors += [FileError(name, f"more than {MAX_FILES} files; this one is not read; remove some") for name in names[MAX_FILES:]]
        names = names[:MAX_FILES]
        self._seen = {name: self._read(name, now_s) for name in names}
        return self._result(errors)

    def make_room(self, id: str, now_s: float) -> None:  # noqa: A002 - likewise
        """Removes overrides that have expired, those first that did so first, if the directory would else have too many files for one more.

        Raises:
            OverrideError: It has too many that have not expired.
        """
        # Not a file whose present text is refused: somebody is about to correct it.
        good = [seen.override for seen in self._seen.values() if seen.override is not None and not seen.error]
        ended = sorted((override for override in good if not override.active(now_s)), key=lambda override: override.expires_s or 0.0)
        try:
            left = len(list(self.path.glob("[!.]*.json"))) - MAX_FILES + (not (self.path / f"{id}.json").exists())
        except OSError as error:
            raise OverrideError(f"cannot read {self.path}: {error.strerror}; the gateway's user must be allowed to") from error
        for override in ended[: max(0, left)]:
            if override.id != id:
                self.remove(override.id)
        if left > len(ended):
            raise OverrideError(f"{self.path} holds {MAX_FILES} files that have not expired; allowed: at most so many; remove some")

    def write(self, override: Override) -> Path:
        """Writes an override, replacing one of the same id. A reader sees the old file or the new one, never a part.

        Raises:
            OverrideError: The directory cannot be written.
        """
        target = self.path / f"{override.id}.json"
        temporary = self.path / f".{override.id}.{os.getpid()}.tmp"
        text = json.dumps(document_of(override), indent=2, ensure_ascii=False) + "\n"
        # A reader must accept the written document; an Override built in code has not been checked.
        data = check_text(text, override.id)
        parse_override(data, id=override.id, now_s=0.0 if override.expires_s is None else override.expires_s - 1.0)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            raise OverrideError(
                f"cannot write {target}: {error.strerror}; the directory must be writable for the gateway's user"
            ) from error
        return target

    def remove(self, id: str) -> bool:  # noqa: A002 - `id` is the field's name everywhere
        """Removes one override. Returns False if there is no such file.

        Raises:
            OverrideError: The id is malformed, or the file cannot be removed.
        """
        target = self.path / f"{valid_id(id)}.json"
        try:
            target.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise OverrideError(
                f"cannot remove {target}: {error.strerror}; the directory must be writable for the gateway's user"
            ) from error
        return True

    def _result(self, errors: list[FileError]) -> ScanResult:
        overrides = tuple(seen.override for _, seen in sorted(self._seen.items()) if seen.override is not None)
        errors += [FileError(name, seen.error) for name, seen in self._seen.items() if seen.error]
        told = (FileError(_shown(error.file), error.message) for error in errors)
        return ScanResult(overrides, tuple(sorted(told, key=lambda error: error.file)))

    def _read(self, name: str, now_s: float) -> _Seen:
        """Reads a file, or returns its stored state if it has not changed."""
        before = self._seen.get(name)
        good = before.override if before else None
        try:
            id_ = valid_id(name.removesuffix(".json"))
            stamp, data = _read_file(self.path / name, before.stamp if before else None, now_s)
            if data is None and before is not None:
                return before
            return _Seen(stamp, parse_override(data or b"", id=id_, now_s=now_s, allow_expired=True), "")
        except OverrideError as error:
            kept = "; its last good version stays in force" if good else ""
            return _Seen(_NO_STAMP, good, f"{error}{kept}")


def _shown(name: str) -> str:
    """A file's name as text that a message can carry: bytes that are not UTF-8 stand as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


_NO_STAMP = (-1, -1, -1)


def _read_file(path: Path, known: tuple[int, int, int] | None, now_s: float) -> tuple[tuple[int, int, int], bytes | None]:
    """Returns stamp and bytes of a regular file; no bytes if the stamp equals `known`.

    Raises:
        OverrideError: The file is a link, not regular, too large or unreadable.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for ever for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = "a symbolic link; put the file itself here" if path.is_symlink() else f"cannot be opened: {error.strerror}"
        raise OverrideError(f"{path.name}: {what}") from error
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OverrideError(f"{path.name}: not a regular file")
        if state.st_size > MAX_BYTES:
            raise OverrideError(f"{path.name}: {state.st_size} bytes; allowed: {MAX_BYTES} at most")
        stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
        if stamp == known:
            return stamp, None
        # One byte more than the limit is read, to detect that the file has grown meanwhile.
        data = os.read(descriptor, MAX_BYTES + 1)
    except OSError as error:
        raise OverrideError(f"{path.name}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return (_NO_STAMP if state.st_mtime > now_s - _RACY_S else stamp), data
