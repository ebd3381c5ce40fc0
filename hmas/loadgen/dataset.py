"""The project's own workload data from datasets/: length distributions, task mixes and prompt templates."""

import itertools
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.engines.model_shape import DATASETS_ENV, datasets_dir

T = TypeVar("T")


Share = Annotated[float, Meta(gt=0, le=1)]
Quantiles = Annotated[list[tuple[Annotated[float, Meta(ge=0, le=1)], Annotated[float, Meta(ge=0)]]], Meta(min_length=2)]
Lines = Annotated[list[str], Meta(min_length=1)]


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Frequency and lengths of a task type; levels are in standard deviations around the kind's median."""

    weight: Share
    prompt_level: float
    output_level: float


class KindSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of traffic.

    Attributes:
        share: Share of all requests.
        max_tokens: The cap that clients of this kind declare; no output is longer.
        prompt_tokens, output_tokens: Quantile tables [[quantile, tokens], ...] from 0 to 1, ascending, linear in between.
        tenants: Its tenants with their shares.
        tasks: Its task types with weights and levels.
    """

    share: Share
    max_tokens: Annotated[int, Meta(ge=1)]
    prompt_tokens: Quantiles
    output_tokens: Quantiles
    tenants: dict[str, Share]
    tasks: dict[TaskType, TaskSpec]


class Mixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload's distributions (datasets/mixed.json).

    Attributes:
        prompts: File of the prompt templates, in the same folder.
        level_spread: Standard deviation of a request's length score around its task type's level.
        long_total_tokens: Prompt and output tokens together above which a request counts as long in the report.
    """

    version: int
    name: str
    about: str
    licence: str
    prompts: str
    level_spread: Annotated[float, Meta(gt=0)]
    long_total_tokens: int
    kinds: dict[str, KindSpec]


class TaskPrompts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Templates of one task type: beginnings and ends of a prompt, the pool of its body, and complete short prompts."""

    body: str
    open: Lines
    close: Lines
    short: Lines


class PromptData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prompt templates (datasets/prompts.json); `{name}` in a line is filled from `slots`."""

    version: int
    name: str
    licence: str
    about: str
    slots: dict[str, Lines]
    pools: dict[str, Lines]
    tasks: dict[TaskType, TaskPrompts]


def load_mixture(path: Path | None = None) -> tuple[Mixture, PromptData]:
    """Reads a mixture and its prompt templates; datasets/mixed.json by default.

    Raises:
        TraceError: A file is missing or invalid; the error names the file and the field.
    """
    source = path or datasets_dir() / "mixed.json"
    mixture = _decode(source, Mixture)
    for name, kind in mixture.kinds.items():
        for field in ("prompt_tokens", "output_tokens"):
            _check_table(f"{source}: kinds.{name}.{field}", getattr(kind, field))
    return mixture, _decode(source.parent / mixture.prompts, PromptData)


def quantile(table: Quantiles, u: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Values of a quantile table at `u` (0 to 1), rounded to whole tokens, at least 1."""
    points = np.asarray(table, dtype=float)
    values: npt.NDArray[np.float64] = np.rint(np.interp(u, points[:, 0], points[:, 1]))
    return np.maximum(1.0, values).astype(np.int64)


def rank(table: Quantiles, tokens: float) -> float:
    """The inverse of `quantile`: the share of values at or below `tokens`, clipped to exclude 0 and 1."""
    points = np.asarray(table, dtype=float)
    return float(np.clip(np.interp(tokens, points[:, 1], points[:, 0]), 1e-4, 1 - 1e-4))


def _check_table(where: str, table: Quantiles) -> None:
    if table[0][0] != 0 or table[-1][0] != 1 or any(b[0] <= a[0] or b[1] < a[1] for a, b in itertools.pairwise(table)):
        raise TraceError(f"{where}: quantiles must rise from 0 to 1 and their values must not fall")


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); set {DATASETS_ENV} to the project's datasets folder") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {error}") from error
