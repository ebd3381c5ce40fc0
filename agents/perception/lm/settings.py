"""Settings of a training run, checked before anything is loaded."""

import math
from pathlib import Path

import msgspec

from hmas.agents.perception.lm.answers import EXCERPT_CHARS
from hmas.controller.core.errors import ConfigError

KINDS = ("auto", "causal", "encoder")
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank: an adapter of rank 20 is served with 32."""


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
        rank, alpha, dropout: Of the adapter. vLLM serves ranks 16 and 32 without further settings.
        targets: `auto` (by architecture), `all-linear`, or names of modules separated by commas.
        excerpt_chars: Characters of a prompt that the model sees, head and tail.
        max_tokens: Most tokens of one row; the excess is cut out of the excerpt's middle.
        eval_every: Steps between two validations, each with a checkpoint; 0 for five per epoch.
        patience: Validations without a better loss after which training stops early.
        limit: Most rows used, chosen evenly over tasks and sources; 0 for all.
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
    seed: int = 0
    threads: int = 0
    gradient_checkpointing: bool = False


_RANGES: dict[str, tuple[float, float]] = {
    "epochs": (0.01, 1000),
    "batch": (1, 4096),
    "accumulate": (1, 4096),
    "learning_rate": (1e-7, 1.0),
    "rank": (1, 512),
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
