"""What the documentation page shows of the ablation."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hmas_lab import page as pages
from hmas_lab.agents.tables import live_table, live_verdict, short_table, simulated_tables, simulated_verdicts
from hmas_lab.page import LIVE, SIMULATED, Body
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


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page; returns their kinds.

    Raises:
        StudyError: As `hmas_lab.page.write_page`.
    """
    return pages.write_page(page, results, BODIES, command="hmas-lab agents")
