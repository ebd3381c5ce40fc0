"""The store of trained models under the state directory: versions, the active one, and the history for rollbacks.

    models/KIND/v7/          one version: its files and card.json
    models/KIND/choice.json  the active version, the one in shadow mode, and the previously active ones

A version is copied completely and renamed into place; the choice is one small file that is replaced in one step. So a reader sees the old
or the new state, never a partial one, and agents notice a change by the metadata of that file (`stamp`). A lock serialises the writers of
all processes.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hmas.agents.model_store.card import CARD, ModelCard, files, read_card, verified, write_card
from hmas.controller.core.errors import ModelError

FOLLOWED = ("perception", "prediction")
"""Kinds whose running agents follow a change, and run others in shadow mode; `KINDS`: all, including meta's classifier."""
KINDS = (*FOLLOWED, "meta")
SHIPPED = "shipped"
"""Name of the model that comes with H-MAS; it is active until a version is chosen."""
LOOK_EVERY_S = 2.0
"""How often a running agent looks whether another model was activated."""
KEPT = 8
"""Versions of one kind that are kept; of more, the oldest are deleted that are not active, in shadow mode or the rollback target."""
HISTORY = 16
"""Choices kept for `rollback`."""
_CHOICE = "choice.json"
_HALF_DONE = ".adding-"
_VERSION = re.compile(r"v([1-9][0-9]{0,8})")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice for one kind.

    Attributes:
        current: The active version; empty for the shipped one.
        shadow: Version in shadow mode, whose results are not used; empty for none.
        before: Previously active versions, the latest last; empty strings for the shipped one.
        newest: Largest version number so far: numbers are not used twice.
    """

    current: str = ""
    shadow: str = ""
    before: list[str] = []
    newest: int = 0


class ModelStore:
    """Versions of models on disk. Stateless between calls: several processes may use one folder.

    Args:
        root: Folder of the store, created when something is added.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self, kind: str) -> list[ModelCard]:
        """Returns the cards of all stored versions, oldest first. A version with an unreadable card has no other fields."""
        found = []
        for version in self._versions(kind):
            try:
                found.append(msgspec.structs.replace(read_card(self.folder(kind, version)), version=version))
            except ModelError as error:
                found.append(ModelCard(kind=kind, version=version, details={"broken": str(error)}))
        return found

    def choice(self, kind: str) -> Choice:
        """Returns the choice.

        Raises:
            ModelError: The kind is unknown, or the file of the choice cannot be read.
        """
        path = self._kind(kind) / _CHOICE
        try:
            return msgspec.json.decode(path.read_bytes(), type=Choice)
        except FileNotFoundError:
            return Choice()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: {error}; remove it to go back to the shipped model") from error

    def stamp(self, kind: str) -> tuple[int, int, int]:
        """Returns a value that changes with the choice, from one look at a file's metadata. (0, 0, 0) before the first choice."""
        try:
            status = (self._kind(kind) / _CHOICE).stat()
        except OSError:
            return (0, 0, 0)
        return status.st_mtime_ns, status.st_ino, status.st_size

    def current(self, kind: str) -> Path | None:
        """Returns the folder of the active version, its hashes checked; None for the shipped one.

        Raises:
            ModelError: The version is gone or was changed.
        """
        version = self.choice(kind).current
        return self.open(kind, version) if version else None

    def open(self, kind: str, version: str) -> Path:
        """Returns the folder of a version, its hashes checked.

        Raises:
            ModelError: There is no such version, it is of another kind, or a file was changed.
        """
        folder = self.folder(kind, version)
        card = verified(folder)
        if card.kind != kind:
            raise ModelError(f"{folder / CARD}: kind is {card.kind!r}; allowed here: {kind!r}")
        return folder

    def folder(self, kind: str, version: str) -> Path:
        """Returns the folder of a version.

        Raises:
            ModelError: There is no such version; the message lists the existing ones.
        """
        if version not in self._versions(kind):
            known = ", ".join([*([SHIPPED] if version != SHIPPED else []), *self._versions(kind)])
            raise ModelError(f"{kind} model {version!r} is not in {self.root}; there are: {known or 'none yet'}")
        return self._kind(kind) / version

    def add(self, kind: str, folder: Path, card: ModelCard) -> str:
        """Copies a trained model into the store and returns its version. It is not active yet; old unused versions are deleted.

        Raises:
            ModelError: The card is of another kind, the folder holds no files, or it cannot be copied.
        """
        if card.kind != kind:
            raise ModelError(f"card.kind is {card.kind!r}; allowed here: {kind!r}")
        home = self._kind(kind)
        with self._locked(kind):
            choice = self.choice(kind)
            number = max([choice.newest, *(int(version[1:]) for version in self._versions(kind))]) + 1
            version = f"v{number}"
            for left in home.glob(f"{_HALF_DONE}*"):
                # Left by a process that died while adding: no other process adds while the lock is held.
                shutil.rmtree(left, ignore_errors=True)
            half_done = Path(tempfile.mkdtemp(prefix=_HALF_DONE, dir=home))
            try:
                _copy(folder, half_done)
                write_card(half_done, msgspec.structs.replace(card, version=version))
                half_done.chmod(0o755)
                half_done.rename(home / version)
            except OSError as error:
                raise ModelError(f"{folder} cannot be copied to {home / version}: {error}") from error
            finally:
                shutil.rmtree(half_done, ignore_errors=True)
            choice = msgspec.structs.replace(choice, newest=number)
            self._write(kind, choice)
            self._make_room(kind, choice, version)
        return version

    def use(self, kind: str, version: str) -> None:
        """Activates a version (or `shipped`) after checking its hashes. The previous one becomes the rollback target.

        Raises:
            ModelError: There is no such version, or it is broken.
        """
        wanted = "" if version == SHIPPED else version
        with self._locked(kind):
            if version != SHIPPED:
                self.open(kind, version)
            choice = self.choice(kind)
            if choice.current == wanted:
                return
            self._activate(kind, choice, wanted, [*choice.before, choice.current])

    def rollback(self, kind: str) -> str:
        """Activates the previously active version again, and returns its name. Deleted versions are skipped.

        Raises:
            ModelError: No version was active before, or the previous one is broken.
        """
        with self._locked(kind):
            choice = self.choice(kind)
            before = list(choice.before)
            kept = self._versions(kind)
            while before:
                wanted = before.pop()
                if not wanted or wanted in kept:
                    if wanted:
                        self.open(kind, wanted)
                    self._activate(kind, choice, wanted, before)
                    return wanted or SHIPPED
        raise ModelError(f"no {kind} model was in force before {choice.current or SHIPPED}; `hmas models use {kind} VERSION` names one")

    def set_shadow(self, kind: str, version: str) -> None:
        """Runs a version in shadow mode; an empty one ends that.

        Raises:
            ModelError: There is no such version, it is broken, or it is active already.
        """
        with self._locked(kind):
            if version:
                self.open(kind, version)
            choice = self.choice(kind)
            if version and version == choice.current:
                raise ModelError(f"{kind} model {version!r} is in force already; allowed in its shadow: another version")
            self._write(kind, msgspec.structs.replace(choice, shadow=version))

    def settle_shadow(self, kind: str, version: str, active: str, *, use: bool) -> None:
        """Activates a version that was better in shadow mode, or ends that, unless the choice has another one there by now.

        `active`: the model that it was compared with, by the choice then. If another is active by now, nothing changes.

        Raises:
            ModelError: The version is gone or was changed, or the store cannot be written.
        """
        with self._locked(kind):
            choice = self.choice(kind)
            if choice.shadow != version or (choice.current or SHIPPED) != active:
                return
            if use:
                self.open(kind, version)
                self._activate(kind, choice, version, [*choice.before, choice.current])
            else:
                self._write(kind, msgspec.structs.replace(choice, shadow=""))

    def _kind(self, kind: str) -> Path:
        if kind not in KINDS:
            raise ModelError(f"model kind {kind!r} is unknown; allowed: {', '.join(KINDS)}")
        return self.root / kind

    def _versions(self, kind: str) -> tuple[str, ...]:
        home = self._kind(kind)
        names = [path.name for path in home.iterdir() if _VERSION.fullmatch(path.name)] if home.is_dir() else []
        return tuple(sorted(names, key=lambda name: int(name[1:])))

    def _make_room(self, kind: str, choice: Choice, added: str) -> None:
        held = {choice.current, choice.shadow, added, *choice.before[-1:]}
        versions = self._versions(kind)
        for version in [version for version in versions if version not in held][: max(0, len(versions) - KEPT)]:
            shutil.rmtree(self._kind(kind) / version, ignore_errors=True)

    def _activate(self, kind: str, choice: Choice, version: str, before: Sequence[str]) -> None:
        shadow = "" if choice.shadow == version else choice.shadow
        self._write(kind, msgspec.structs.replace(choice, current=version, before=[*before][-HISTORY:], shadow=shadow))

    def _write(self, kind: str, choice: Choice) -> None:
        home = self._kind(kind)
        handle, name = tempfile.mkstemp(prefix=".choice-", dir=home)
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(msgspec.json.encode(choice))
                target.flush()
                os.fsync(target.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(home / _CHOICE)
        except OSError as error:
            Path(name).unlink(missing_ok=True)
            raise ModelError(f"{home / _CHOICE} cannot be written: {error.strerror}") from error

    @contextlib.contextmanager
    def _locked(self, kind: str) -> Iterator[None]:
        home = self._kind(kind)
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = (home / ".lock").open("ab")
        except OSError as error:
            raise ModelError(f"{home}: {error.strerror}; allowed: a folder that this user may write (state_dir)") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _copy(folder: Path, target: Path) -> None:
    found = list(files(folder))
    if not found:
        raise ModelError(f"{folder}: no files beside {CARD}; allowed: a trained model's folder")
    for name, path in found:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name)


class ModelWatch:
    """Looks at a kind's choice in a store; one look is one `stat`."""

    def __init__(self, store: ModelStore, kind: str) -> None:
        self._store = store
        self._kind = kind
        self._seen: tuple[int, int, int] | None = None
        self._looked_s = float("-inf")

    def changed(self, now_s: float) -> bool:
        """Whether the choice has changed since it was last recorded here; False between looks."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        stamp = self._store.stamp(self._kind)
        changed = stamp != self._seen
        self._seen = stamp
        return changed

    def note(self) -> None:
        """Records the present choice; call it before reading the choice, so that a change in between is noticed."""
        self._seen = self._store.stamp(self._kind)
