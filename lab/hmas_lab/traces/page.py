"""The traces as tables, beside the paper's figures, and what the documentation page shows."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hmas_lab import page as pages
from hmas_lab.paper.published import CONTEXT_SHARES, TRACE_FIGURES
from hmas_lab.tables import Table, cell, markdown
from hmas_lab.traces.plots import PLOTS, draw_all
from hmas_lab.traces.statistics import CONTEXTS

KIND = "traces"
Document = Mapping[str, Any]
FIGURES: Mapping[str, tuple[str, int]] = {
    "requests": ("requests", 0),
    "span_s": ("length, s", 0),
    "mean_rps": ("mean rate, requests/s", 2),
    "peak_rps": ("most in a second", 0),
    "step_rps": ("largest change from a second to the next", 0),
    "extra": ("most in 5 s beyond the mean rate", 0),
    "gap_cv": ("coefficient of variation of the gaps", 2),
    "dispersion": ("variance over mean of a second's count", 2),
    "long_range": ("share of long prompts, largest range within 5 minutes", 3),
    "long_step": ("its largest change from a minute to the next", 3),
    "load_p95": ("tokens of a minute over the mean, p95", 2),
    "prompt_p50": ("prompt tokens, median", 0),
    "prompt_p95": ("prompt tokens, p95", 0),
    "output_p50": ("answer tokens, median", 0),
    "output_p95": ("answer tokens, p95", 0),
}
"""Rows of the first table: words and digits."""


def tables(document: Document) -> list[Table]:
    """All that there is; tables without a row are left out."""
    made = (figures_table(document), slow_table(document), tasks_table(document), targets_table(document))
    return [one for one in made if one.rows]


def figures_table(document: Document) -> Table:
    """Section 2's figures of each trace beside those that the paper gives of its own."""
    traces = document["summary"]["traces"]
    rows = [
        (words, *(cell(one[name], digits) for one in traces.values()), cell(TRACE_FIGURES.get(name), digits))
        for name, (words, digits) in FIGURES.items()
    ]
    return Table("Arrivals by the second, the mix by the minute, and lengths", ("", *traces, "the paper's Azure trace"), rows)


def slow_table(document: Document) -> Table:
    """How the share of each class of context lengths moves over days."""
    classes = [f"{low:g} to {high:g}" for low, high in pairwise(CONTEXTS)] + [f"above {CONTEXTS[-1]:g}"]
    rows = [
        (name, f"{one['windows']:g}", *(f"{one[f'least_{place}']:.1%} to {one[f'most_{place}']:.1%}" for place in range(len(classes))))
        for name, one in document["summary"]["weeks"].items()
    ]
    if rows:
        rows.append(("the paper's week", "", *CONTEXT_SHARES))
    return Table(
        "Shares of requests by prompt tokens over windows of six hours (ServeGen's models)",
        ("model", "windows", *classes),
        rows,
    )


def tasks_table(document: Document) -> Table:
    """Lengths of labelled prompts that language models answered."""
    rows = [
        (task, str(one["prompts"]), *(f"{value:.0f}" for key in ("prompt", "output") for value in one[key]))
        for task, one in document["summary"]["tasks"].items()
    ]
    head = ("task type", "prompts", *(f"{key} {level}" for key in ("prompt", "answer") for level in ("p5", "median", "p95")))
    return Table("Lengths in tokens of labelled prompts and of the answers of language models", head, rows)


def targets_table(document: Document) -> Table:
    """Table 6, and the least and the greatest target of the drawn requests by Eq. 14."""
    rows = []
    for task, one in document["summary"]["targets"].items():
        sides = list(zip(*one["points"], strict=True))
        rows.append((task, str(len(one["points"])), *(f"{value:g}" for value in one["base"]), *(_span(side) for side in sides)))
    head = ("task type", "requests", "base TTFT, ms", "base TPOT, ms", "TTFT of the requests, ms", "TPOT of the requests, ms")
    return Table("Targets by task type: Table 6, and those of drawn requests by Eq. 14", head, rows)


def _span(values: tuple[float, ...]) -> str:
    return f"{min(values):g} to {max(values):g}"


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the result into the page, and the plots beside it; returns the kinds that were written.

    Raises:
        StudyError: As `hmas_lab.page.write_page`.
    """

    def body(document: Document) -> str:
        drawn = draw_all(page.parent, document)
        return "\n\n".join([*(f"![{PLOTS[name]}]({name}.svg)" for name in drawn), *map(markdown, tables(document))])

    return pages.write_page(page, results, {KIND: body}, command="hmas-lab traces")
