"""What the documentation page shows of the comparison, and its plots beside it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hmas_lab import page as pages
from hmas_lab.page import LIVE, SIMULATED, Body
from hmas_lab.policies.tables import live_table, live_verdict, matrix, simulated_verdicts, wins_table
from hmas_lab.tables import markdown

SHOWN = ("goodput", "fairness", "short", "long", "ttft_p99")
"""Measures of the simulation that the page shows; all of them are in the result."""


def simulated_body(document: Mapping[str, Any]) -> str:
    """The simulated comparison for the page."""
    verdicts = "\n".join(f"- {line}" for line in simulated_verdicts(document))
    return "\n\n".join([markdown(wins_table(document)), verdicts, *(markdown(matrix(document, name)) for name in SHOWN)])


def live_body(document: Mapping[str, Any]) -> str:
    """The live comparison for the page."""
    return "\n\n".join([markdown(live_table(document)), f"In words: {live_verdict(document)}"])


BODIES: Mapping[str, Body] = MappingProxyType({LIVE: live_body, SIMULATED: simulated_body})


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page, and their plots beside it; returns their kinds.

    Raises:
        StudyError: As `hmas_lab.page.write_page`.
    """

    def with_plot(kind: str, body: Body) -> Body:
        def whole(document: Mapping[str, Any]) -> str:
            text, plot = body(document), results / f"{kind}.svg"
            if not plot.exists():
                return text
            name = f"policies-{kind}.svg"
            shutil.copyfile(plot, page.parent / name)
            return f"{text}\n\n![Goodput of every policy over first come first served]({name})"

        return whole

    return pages.write_page(page, results, {kind: with_plot(kind, body) for kind, body in BODIES.items()}, command="hmas-lab policies")
