"""The directory of override documents: read again and again, its last good state kept."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hmas.controller.config.override_format import MAX_BYTES, document_of, parse_override, valid_id
from hmas.controller.control.overrides import Override, in_force
from hmas.controller.core.errors import OverrideError

MAX_FILES = 256
_RACY_S = 2.0
"""A file written this short before it was read may change again within the same timestamp; it is read once more."""


@dataclass(frozen=True, slots=True)
class FileError:
    """Why a file has no effect, or an older version of it stays in force."""

    file: str
    message: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """One reading of the directory.

    Attributes:
        overrides: The last good version of every file, in the order of ids; expired ones are among them.
        changed: Whether what is in force differs from the scan before (a file changed, or one has expired).
        errors: Files that cannot be used as they stand, in the order of their names.
    """

    overrides: tuple[Override, ...]
    changed: bool
    errors: tuple[FileError, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is remembered of a file: its stamp, its last good version, and why the present version is not it."""

    stamp: tuple[int, int, int]
    override: Override | None
    error: str


class OverrideDirectory:
    """A directory with one override per `ID.json`, read by polling and written atomically.

    Names that start with a dot or do not end in `.json` are not looked at. Symbolic links, other file types, names out of
    the pattern, files beyond 64 KiB and beyond the first 256 are refused with an error. A file that turns bad keeps its last good version
    in force until it is mended, removed, or that version expires.
    """

    def __init__(self, path: str | Path) -> None:
        """Names the directory; it is made by the first `write`, and counts as empty until it is there."""
        self.path = Path(path)
        self._seen: dict[str, _Seen] = {}
        self._active: tuple[Override, ...] = ()

    def scan(self, now_s: float) -> ScanResult:
        """Reads what has changed since the last scan. Never raises: what cannot be read is among the errors."""
        errors: list[FileError] = []
        try:
            names = sorted(file.name for file in self.path.iterdir() if file.name.endswith(".json") and not file.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError as error:
            # Not being able to look is no reason to let go of what is held.
            errors.append(FileError(str(self.path), f"cannot read the directory: {error.strerror}; what was in force stays in force"))
            return self._result(now_s, errors)
        errors += [FileError(name, f"more than {MAX_FILES} files; this one is not read; remove some") for name in names[MAX_FILES:]]
        names = names[:MAX_FILES]
        self._seen = {name: self._read(name, now_s) for name in names}
        return self._result(now_s, errors)

    def write(self, override: Override) -> Path:
        """Puts an override in force, replacing one of the same id. A reader sees the old file or the new one, never a part.

        Raises:
            OverrideError: The directory cannot be written.
        """
        target = self.path / f"{override.id}.json"
        temporary = self.path / f".{override.id}.{os.getpid()}.tmp"
        data = json.dumps(document_of(override), indent=2, ensure_ascii=False).encode() + b"\n"
        # What is written must be what a reader takes; building an Override by hand skips the checks.
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
        """Releases one override. False where there is no such file.

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

    def _result(self, now_s: float, errors: list[FileError]) -> ScanResult:
        overrides = tuple(seen.override for _, seen in sorted(self._seen.items()) if seen.override is not None)
        active = tuple(in_force(overrides, now_s))
        changed, self._active = active != self._active, active
        errors += [FileError(name, seen.error) for name, seen in self._seen.items() if seen.error]
        return ScanResult(overrides, changed, tuple(sorted(errors, key=lambda error: error.file)))

    def _read(self, name: str, now_s: float) -> _Seen:
        """The file as it stands, or as remembered when it has not changed."""
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


_NO_STAMP = (-1, -1, -1)


def _read_file(path: Path, known: tuple[int, int, int] | None, now_s: float) -> tuple[tuple[int, int, int], bytes | None]:
    """Stamp and bytes of a regular file; no bytes when the stamp is the known one.

    Raises:
        OverrideError: It is a link, no regular file, too large or unreadable.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
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
        # A regular file gives all it has up to the count; one more byte shows that it has grown meanwhile.
        data = os.read(descriptor, MAX_BYTES + 1)
    except OSError as error:
        raise OverrideError(f"{path.name}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return (_NO_STAMP if state.st_mtime > now_s - _RACY_S else stamp), data
