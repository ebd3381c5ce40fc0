"""A training run on a Hugging Face base: settings, checked before anything is loaded, the run's folder, and the result. Needs no torch."""

import importlib.util
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hmas.agents.model_store.card import ModelCard
from hmas.agents.perception.lm.answers import EXCERPT_CHARS
from hmas.controller.core.errors import ConfigError
from hmas.controller.runtime.clock import Clock

KINDS = ("auto", "causal", "encoder")
RUN = "run.json"
LOG = "log.txt"
_CHECKPOINT = "checkpoint-"
_LAST_WRITTEN = "trainer_state.json"
"""The Trainer writes this file last, so a checkpoint in which it is readable is complete."""


class TrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One training run.

    Attributes:
        base: Folder of a Hugging Face model.
        data: Files of typed prompts.
        out: Folder for the finished artefact.
        work: Folder of checkpoints, settings and log; `resume` continues from there.
        kind: `causal`, `encoder`, or `auto` to follow the base's config.
        merge: Write complete merged weights instead of an adapter.
        resume: Continue from the newest complete checkpoint in `work`.
        epochs: Most passes over the training rows.
        batch, accumulate: Rows of one forward pass, and passes per step of the optimiser.
        learning_rate: Peak; it warms up over the first 3 % of the steps and falls along a cosine.
        rank, alpha, dropout: Of the adapter; rank 0 trains all weights, which goes with `merge`. vLLM serves ranks 16 and 32 as it is.
        targets: `auto` (by architecture), `all-linear`, or names of modules separated by commas.
        excerpt_chars: Characters of a prompt that the model sees, head and tail.
        max_tokens: Most tokens of one row; the excess is cut out of the excerpt's middle.
        eval_every: Steps between two validations, each with a checkpoint; 0 for five per epoch.
        patience: Validations without a better loss after which training stops early.
        limit: Most collected rows used, and most generated ones, chosen evenly over tasks and sources; 0 for all.
        licensed: Train only on rows whose licence lets the model be passed on.
        without: Parts of names of sources that are left out of training and validation; the model is judged on all their rows.
        seed: Seed of everything random.
        threads: CPU threads; 0 for torch's own choice.
        gradient_checkpointing: Less memory for about a third more time.
    """

    base: Path
    data: tuple[Path, ...]
    out: Path
    work: Path
    kind: str = "auto"
    merge: bool = False
    resume: bool = False
    epochs: float = 3.0
    batch: int = 8
    accumulate: int = 1
    learning_rate: float = 2e-4
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    targets: str = "auto"
    excerpt_chars: int = EXCERPT_CHARS
    max_tokens: int = 1024
    eval_every: int = 0
    patience: int = 4
    limit: int = 0
    licensed: bool = False
    without: tuple[str, ...] = ()
    seed: int = 0
    threads: int = 0
    gradient_checkpointing: bool = False


_RANGES: dict[str, tuple[float, float]] = {
    "epochs": (0.01, 1000),
    "batch": (1, 4096),
    "accumulate": (1, 4096),
    "learning_rate": (1e-7, 1.0),
    "rank": (0, 512),
    "alpha": (1, 4096),
    "dropout": (0.0, 0.9),
    "excerpt_chars": (80, 100_000),
    "max_tokens": (128, 131_072),
    "eval_every": (0, 1_000_000),
    "patience": (1, 1000),
    "limit": (0, 100_000_000),
    "seed": (0, 2**31 - 1),
    "threads": (0, 1024),
}


def check(settings: TrainSettings) -> TrainSettings:
    """Returns the settings if every value is in its range and every path exists.

    Raises:
        ConfigError: Names the first setting that fails, its value and what is allowed.
    """
    for name, (least, most) in _RANGES.items():
        value = getattr(settings, name)
        if not math.isfinite(value) or not least <= value <= most:
            raise ConfigError(f"{name} is {value}; allowed: {least:g} to {most:g}")
    if settings.kind not in KINDS:
        raise ConfigError(f"kind is {settings.kind!r}; allowed: {', '.join(KINDS)}")
    if not settings.rank and not settings.merge:
        raise ConfigError("rank is 0 without merge; allowed: rank 0, which trains all weights, with merge, or 1 to 512")
    if not settings.targets.strip(" ,"):
        raise ConfigError("targets is empty; allowed: auto, all-linear, or module names with commas between, such as q_proj,v_proj")
    if not (settings.base / "config.json").is_file():
        raise ConfigError(f"base is {settings.base}; allowed: a local folder of a Hugging Face model, with its config.json and weights")
    if not settings.data:
        raise ConfigError("data is empty; allowed: one or more files of typed prompts (.jsonl or .jsonl.gz)")
    for path in settings.data:
        if not path.is_file():
            raise ConfigError(f"data names {path}, which is no file; allowed: files of typed prompts (.jsonl or .jsonl.gz)")
    if settings.out.resolve() == settings.work.resolve():
        raise ConfigError(f"out and work are both {settings.out}; allowed: two folders, since work is kept until the run has ended")
    if settings.out.exists() and (not settings.out.is_dir() or any(settings.out.iterdir())):
        raise ConfigError(f"out is {settings.out}, which is not empty; allowed: a new or empty folder")
    return settings


FREE_TO_CHANGE = ("out", "resume", "merge", "threads", "epochs", "patience", "base", "data", "work")
"""Settings that a resumed run may change; base and data are compared by content, not by path."""


def same_run(before: TrainSettings, now: TrainSettings) -> None:
    """Rejects resuming a checkpoint with settings that would make it another run.

    Raises:
        ConfigError: Names the first setting that differs, and both values.
    """
    for name in TrainSettings.__struct_fields__:
        was, wanted = getattr(before, name), getattr(now, name)
        if name not in FREE_TO_CHANGE and was != wanted:
            raise ConfigError(f"{name} is {wanted}, but the run in {now.work} began with {was}; allowed with --resume: {was}")


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


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a run.

    Attributes:
        card: Card of the artefact in `folder`; None if the run was interrupted.
        folder: `TrainSettings.out`.
        checkpoint: Checkpoint from which an interrupted run resumes; empty for a finished run.
    """

    card: ModelCard | None
    folder: Path
    checkpoint: str = ""


def run(settings: TrainSettings, *, clock: Clock, say: Callable[[str], None], command: str = "") -> Trained:
    """Trains, calibrates and evaluates a model and writes the artefact; reports progress line by line.

    The artefact is written only after it was reloaded and gave the same answers. SIGINT and SIGTERM end the run with a checkpoint.

    `say` takes one line of text for people; `command` is the command line that reproduces the model, for its card.

    Raises:
        ConfigError: A setting, a file or the base cannot be used; or torch, transformers and peft are not installed.
        ModelError: The artefact does not answer like the model in training.
    """
    check(settings)
    found = importlib.util.find_spec("datasets")
    if found is not None and found.origin is None:
        # transformers takes any folder of that name on the path for the package, and fails later with an unclear message.
        raise ConfigError(
            "a folder named datasets in the working directory hides the package that transformers looks for; use the hmas command"
        )
    try:
        # The import takes seconds, and only this command needs it.
        from hmas.agents.perception.lm.fitting import fit  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"training on a base needs {error.name or 'torch'}; install the extra: pip install 'h-mas[train]'") from error
    return fit(settings, clock=clock, say=say, command=command)
