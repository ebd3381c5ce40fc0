"""The folder of a run: its settings, its log and its checkpoints, so that it can resume after any kind of end."""

import shutil
from pathlib import Path

import msgspec

from hmas.agents.perception.lm.settings import TrainSettings, same_run
from hmas.controller.core.errors import ConfigError

RUN = "run.json"
LOG = "log.txt"
_CHECKPOINT = "checkpoint-"
_LAST_WRITTEN = "trainer_state.json"
"""The Trainer writes this file last, so a checkpoint in which it is readable is complete."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The settings and inputs with which a run began."""

    settings: TrainSettings
    base_fingerprint: str
    data_sha256: dict[str, str]


def begin(run: Run) -> Path | None:
    """Creates the run's folder, or finds the checkpoint to resume from; returns None to start at the beginning.

    Raises:
        ConfigError: The folder holds another run or none that can be resumed, or it cannot be written.
    """
    work = run.settings.work
    path = work / RUN
    if not run.settings.resume:
        if path.exists() and newest_checkpoint(work):
            raise ConfigError(f"work is {work}, which holds a run; allowed: --resume to go on with it, or another folder")
        try:
            work.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(run, enc_hook=str), indent=2) + b"\n")
        except OSError as error:
            raise ConfigError(f"work is {work}: {error.strerror}; allowed: a folder that can be written") from error
        return None
    try:
        before = msgspec.json.decode(path.read_bytes(), type=Run, dec_hook=lambda kind, text: kind(text))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; allowed with --resume: the folder of a run that was begun") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    same_run(before.settings, run.settings)
    if before.base_fingerprint != run.base_fingerprint:
        raise ConfigError(
            f"base is {run.settings.base}, which is not the base that the run in {work} began with; allowed: the same weights"
        )
    if sorted(before.data_sha256.values()) != sorted(run.data_sha256.values()):
        raise ConfigError(f"data has changed since the run in {work} began; allowed with --resume: the same files")
    return newest_checkpoint(work)


def newest_checkpoint(work: Path) -> Path | None:
    """Returns the newest complete checkpoint. Partial ones from a killed run are removed."""
    found: list[tuple[int, Path]] = []
    for path in work.glob(f"{_CHECKPOINT}*"):
        number = path.name.removeprefix(_CHECKPOINT)
        if number.isdigit() and _whole(path):
            found.append((int(number), path))
        else:
            shutil.rmtree(path, ignore_errors=True)
    return max(found)[1] if found else None


def _whole(checkpoint: Path) -> bool:
    try:
        msgspec.json.decode((checkpoint / _LAST_WRITTEN).read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return True
