"""The features of the learned selectors: figures of a long view that do not depend on the fleet's size, and the active policy. Pure."""

from collections.abc import Callable, Mapping
from math import isfinite, log1p
from types import MappingProxyType

from hmas.agents.meta.selectors.rules import long_backlog_share
from hmas.controller.core.messages import LongView

SHORT_LIST = ("fcfs", "robust-edf", "sjf", "two-lane", "wfq")
"""Policies among which the learned selectors choose: one of each kind (H-MAS C.2)."""

_FIGURES: Mapping[str, Callable[[LongView], float]] = MappingProxyType(
    {
        "violation_rate": lambda view: view.violation_rate,
        "ttft_violation_rate": lambda view: view.ttft_violation_rate,
        "tpot_violation_rate": lambda view: view.tpot_violation_rate,
        "deadline_miss_share": lambda view: view.deadline_miss_share,
        "late_service": lambda view: view.late_service,
        "mismatch": lambda view: view.mismatch,
        "mismatch_p95": lambda view: view.mismatch_p95,
        "arrival_cv": lambda view: view.arrival_cv,
        "log_dispersion": lambda view: log1p(max(0.0, view.arrival_dispersion)),
        "log_burst_ratio": lambda view: log1p(max(0.0, view.burst_ratio)),
        "total_cv": lambda view: view.total_cv,
        "prompt_cv": lambda view: view.prompt_tokens.cv,
        "output_cv": lambda view: view.output_tokens.cv,
        "log_prompt": lambda view: log1p(max(0.0, view.prompt_mean)),
        "log_output": lambda view: log1p(max(0.0, view.output_mean)),
        "long_share": lambda view: view.long_share,
        "long_backlog_share": long_backlog_share,
        # The queue in seconds of arrivals: its length, independent of the fleet's size.
        "log_queued_s": lambda view: log1p(view.queued / max(0.1, view.arrival_rps)),
        "log_ttft_ms_p99": lambda view: log1p(max(0.0, view.ttft_ms.p99)),
        "log_tpot_ms_p50": lambda view: log1p(max(0.0, view.tpot_ms.p50)),
        "fairness": lambda view: view.fairness,
    }
)
FEATURES = (*_FIGURES, *(f"runs_{name}" for name in SHORT_LIST))
"""Names of the columns."""
MOST = 1e6


def features_of(view: LongView, current: str) -> list[float]:
    """Returns one row, in the order of `FEATURES`.

    Args:
        view: The newest long view.
        current: The active policy; for one that is not on the short list all policy columns are 0.
    """
    figures = [figure(view) for figure in _FIGURES.values()]
    # A broken figure in telemetry must not break the model's input.
    row = [min(MOST, max(-MOST, figure)) if isfinite(figure) else 0.0 for figure in figures]
    return row + [float(name == current) for name in SHORT_LIST]
