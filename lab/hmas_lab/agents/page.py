"""What the documentation page shows of the ablation."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hmas_lab import page as pages
from hmas_lab.agents.plots import masking_plot
from hmas_lab.agents.tables import (
    live_table,
    live_verdict,
    masking_table,
    paper_table,
    short_table,
    simulated_tables,
    simulated_verdicts,
)
from hmas_lab.page import LIVE, SIMULATED, Body
from hmas_lab.result_files import read_result
from hmas_lab.tables import markdown


def simulated_body(document: Mapping[str, Any]) -> str:
    """The simulated ablation for the page."""
    about = "\n".join(f"- `{name}`: {words}" for name, words in document["about"].items())
    verdicts = "\n".join(f"- {line}" for line in simulated_verdicts(document))
    return "\n\n".join([markdown(short_table(document)), verdicts, about, *map(markdown, simulated_tables(document))])


def live_body(document: Mapping[str, Any]) -> str:
    """The live ablation for the page."""
    return "\n\n".join([markdown(live_table(document)), f"In words: {live_verdict(document)}"])


BODIES: Mapping[str, Body] = MappingProxyType({LIVE: live_body, SIMULATED: simulated_body})


COMMAND = "hmas-lab agents"
PAPER_ROW = "paper-row"
"""Of the section with Table 2's last row and latency masking, which a run of a few ways and beliefs gives, too."""
MASKING_PLOT = "agents-masking.svg"


def write_paper_row(page: Path, results: Path) -> list[str]:
    """Puts Table 2's last row and latency masking into their section of the page, and the plot beside it; returns the section's name.

    Raises:
        StudyError: The results or the page cannot be read, or the page lacks the section's markers.
    """
    document = read_result(results / f"{SIMULATED}.json", command=COMMAND)
    settings = document["settings"]
    about = (
        f"{document['fleet']}, {settings['seeds']} seeds of {settings['duration_s']:g} s in bursts of {settings['high']:g} and "
        f"{settings['low']:g}; capacity {document['grounds'][0]['calibration']['capacity_rps']:.2f} requests/s."
    )
    beliefs = "\n".join(f"- `{name}`: {words}" for name, words in document["about"].items())
    parts = [about, beliefs, markdown(paper_table(document)), markdown(short_table(document)), markdown(masking_table(document))]
    masking_plot(page.parent / MASKING_PLOT, document)
    pages.write_section(page, PAPER_ROW, "\n\n".join([*parts, f"![Share of dispatches with the agents' answer]({MASKING_PLOT})"]))
    return [PAPER_ROW]


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page; returns their kinds.

    Raises:
        StudyError: As `hmas_lab.page.write_page`.
    """
    return pages.write_page(page, results, BODIES, command=COMMAND)
