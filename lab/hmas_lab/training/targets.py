"""How far the targets that perception assigns are from those of the true task type (H-MAS Table 5, rows `ttft` and `tpot`).

Perception names a task type and an importance, and Table 6 with Eq. 14 makes targets of both. No public data labels importance: what the
prompt's own words say of it counts as true. So a target is wrong where the type is, and where what comes along with a prompt changes the
importance that is read.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from hmas.agents.perception.importance import importance_of
from hmas.agents.perception.reading import PromptView, Reader
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.evaluation import read_soundly
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import Slo, TaskType

UNKNOWN_BELOW = AgentsConfig().perception_min_confidence
"""Confidence below which a request goes without a type, unless configured otherwise."""


class TargetErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of assigned targets against those of the true types, at a scale of 1 (`slo.scale`).

    Attributes:
        n: Prompts.
        ttft_mae_ms, tpot_mae_ms: Mean absolute errors.
        exact: Share of prompts with both targets right; several types of Table 6 share a target.
        stricter, looser: Share with a TTFT target below and above the true one: served too early, or too late.
    """

    n: int
    ttft_mae_ms: float
    tpot_mae_ms: float
    exact: float
    stricter: float
    looser: float


def evaluate_targets(reader: Reader | None, rows: Sequence[Row], *, features_only: bool = False) -> TargetErrors:
    """The errors of a reader on prompts as clients send them: real bodies, read by the gateway's own parser.

    Args:
        reader: Any reader; None for none, so that every request is `unknown` and has the table's middle row.
        rows: Labelled rows.
        features_only: Whether prompts stay in the gateway.
    """
    views = [row.view(features_only=features_only) for row in rows]
    tasks = [TaskType.UNKNOWN] * len(rows) if reader is None else [task for _, task in read_soundly(reader, views, UNKNOWN_BELOW)]
    return errors_of(rows, views, tasks)


def errors_of(rows: Sequence[Row], views: Sequence[PromptView], tasks: Sequence[TaskType]) -> TargetErrors:
    """Errors of the targets that follow from these types.

    Args:
        rows: Prompts with their true types.
        views: What perception saw of each, in whatever shape of request.
        tasks: What it takes each for.
    """
    said = [slo_for(task, importance_of(view.excerpt, has_tools=view.has_tools)) for task, view in zip(tasks, views, strict=True)]
    true = [_true(row, view) for row, view in zip(rows, views, strict=True)]
    ttft = np.array([one.ttft_ms - other.ttft_ms for one, other in zip(said, true, strict=True)])
    tpot = np.array([one.tpot_ms - other.tpot_ms for one, other in zip(said, true, strict=True)])
    return TargetErrors(
        n=len(rows),
        ttft_mae_ms=float(np.abs(ttft).mean()),
        tpot_mae_ms=float(np.abs(tpot).mean()),
        exact=float(((ttft == 0.0) & (tpot == 0.0)).mean()),
        stricter=float((ttft < 0.0).mean()),
        looser=float((ttft > 0.0).mean()),
    )


def _true(row: Row, view: PromptView) -> Slo:
    return slo_for(row.task, importance_of(row.prompt, has_tools=view.has_tools))
