"""Where the traces come from: the public data, or any workload of the catalogue."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.loadgen.traces import records
from hmas.workloads import Workload, build
from hmas_lab.agents.asked import ANSWERED, TYPED
from hmas_lab.paper.scenarios import TRACE
from hmas_lab.traces.statistics import Floats

RECORDED: Mapping[str, str] = MappingProxyType(
    {
        "Azure conversation": f"azure:{{data}}/{TRACE}",
        "Azure code": "azure:{data}/arrivals/azure_llm_2023_code.csv.gz",
        "Mooncake conversation": "mooncake:{data}/arrivals/mooncake_conversation.jsonl.gz",
    }
)
"""Traces with a time and both lengths of every request."""
WEEKS = Path("arrivals/servegen_length_hist.csv.gz")
"""Histograms of lengths over days, by model."""
PROMPTS = "input_tokens"
FEWEST_WINDOWS = 8
"""Windows below which a model's histograms show no slow change."""
Histogram = tuple[Floats, Floats, Floats]
"""Lower and upper edges of bins, and the requests in each."""


def recorded(data: Path) -> dict[str, Workload]:
    """The traces of the public data by name.

    Raises:
        TraceError: A file is missing or bad.
    """
    return {name: build(text.format(data=data)) for name, text in RECORDED.items()}


def named(workloads: Sequence[str]) -> dict[str, Workload]:
    """Workloads of the catalogue by their text.

    Raises:
        TraceError: There is no such workload, or it cannot be made.
    """
    return {text: build(text) for text in workloads}


def weeks(data: Path) -> dict[str, dict[float, Histogram]]:
    """Prompt lengths by model and by the beginning of the window, seconds, for models with windows enough.

    Raises:
        TraceError: The file is missing or bad; names the row.
    """
    rows: dict[str, dict[float, list[tuple[float, float, float]]]] = {}
    for number, row in records(data / WEEKS):
        try:
            if row["field"] == PROMPTS:
                one = (float(row["bin_lo"]), float(row["bin_hi"]), float(row["est_requests"]))
                rows.setdefault(row["model"], {}).setdefault(float(row["t_s"]), []).append(one)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{data / WEEKS}, row {number}: {error}; wanted: model, field, t_s, bin_lo, bin_hi, est_requests") from error
    return {
        model: {at_s: _histogram(found) for at_s, found in sorted(windows.items())}
        for model, windows in sorted(rows.items())
        if len(windows) >= FEWEST_WINDOWS
    }


def _histogram(rows: Sequence[tuple[float, float, float]]) -> Histogram:
    low, high, weight = np.array(rows, np.float64).T
    return low, np.maximum(high, low + 1.0), weight


def by_task(data: Path) -> dict[str, tuple[Floats, Floats]]:
    """Prompt and output lengths of the labelled prompts that language models answered, by task type.

    Raises:
        TraceError: The file is missing or bad; names the row.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for number, row in records(data / TYPED):
        try:
            if str(row["output_origin"]).startswith(ANSWERED) and row["output_tokens"]:
                found.setdefault(row["task_type"], []).append((float(row["prompt_tokens"]), float(row["output_tokens"])))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{data / TYPED}, row {number}: {error}") from error
    pairs = {task: np.array(rows, np.float64) for task, rows in sorted(found.items())}
    return {task: (rows[:, 0], rows[:, 1]) for task, rows in pairs.items()}
