"""What the documentation page shows of the evaluation, and its plots beside it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmas.lab import page as pages
from hmas.lab.paper import tables
from hmas.lab.tables import markdown

KIND = "hmas"
"""Of the result, and the name of its file."""
PLOTS = {
    "hmas-ratios": "Goodput of H-MAS over the best fixed policy, the strong baseline and the engine default",
    "hmas-load": "Load scaling",
    "hmas-time": "The stress tests over time",
    "hmas-esg": "Parts of ESG",
}


def body(document: Mapping[str, Any]) -> str:
    """The evaluation for the page, without its plots."""
    about = "\n".join(f"- `{name}`: {words}" for name, words in document["arms"].items() if not name.startswith("fixed:"))
    left_out = ", ".join(document["left_out"])
    parts = [
        markdown(tables.goals_table(document)),
        markdown(tables.hindsight_table(document)),
        *([f"Left out, because the public data was not there: {left_out}."] if left_out else []),
        f"Arms (`fixed:POLICY` is the gateway's default admission with that policy and no agents):\n\n{about}",
        *(
            markdown(make(document))
            for make in (
                tables.slices_table,
                tables.ablation_table,
                tables.robustness_table,
                tables.decomposition_table,
                tables.low_table,
                tables.grounds_table,
            )
        ),
        *map(markdown, tables.place_tables(document)),
    ]
    return "\n\n".join(parts)


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page, and their plots beside it; returns their kinds.

    Raises:
        StudyError: As `hmas.lab.page.write_page`.
    """

    def whole(document: Mapping[str, Any]) -> str:
        shown = []
        for name, words in PLOTS.items():
            plot = results / f"{name}.svg"
            if plot.exists():
                shutil.copyfile(plot, page.parent / plot.name)
                shown.append(f"![{words}]({plot.name})")
        return "\n\n".join([*shown, body(document)])

    return pages.write_page(page, results, {KIND: whole}, command="hmas lab paper")
