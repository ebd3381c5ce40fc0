"""Writes results into a documentation page, between markers, from what lies on disk: no figure is typed by hand."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hmas.lab.policies.tables import Table, live_table, live_verdict, matrix, simulated_verdicts, wins_table
from hmas.lab.studies.errors import StudyError

LIVE, SIMULATED = "live", "simulated"
KINDS = (LIVE, SIMULATED)
SHOWN = ("goodput", "fairness", "short", "long", "ttft_p99")
"""Measures of the simulation that the page shows; all of them are in the result."""


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page, and their plots beside it.

    Args:
        page: Markdown with `<!-- live:begin -->` and `<!-- live:end -->`, and likewise `simulated`.
        results: Folder with live.json, simulated.json and the plots.

    Returns:
        The kinds that were written.

    Raises:
        StudyError: There are no results, a result cannot be read, or the page lacks a pair of markers.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(f"{page}: {error.strerror}") from error
    written = []
    for kind in KINDS:
        path = results / f"{kind}.json"
        if not path.exists():
            continue
        body = _body(kind, read_result(path))
        plot = results / f"{kind}.svg"
        if plot.exists():
            name = f"policies-{kind}.svg"
            shutil.copyfile(plot, page.parent / name)
            body += f"\n\n![Goodput of every policy over first come first served]({name})"
        text = _between(text, kind, body, page)
        written.append(kind)
    if not written:
        raise StudyError(f"{results} holds neither live.json nor simulated.json; run `hmas lab policies` first")
    page.write_text(text, encoding="utf-8")
    return written


def read_result(path: Path) -> dict[str, Any]:
    """A result as it was written.

    Raises:
        StudyError: It cannot be read, or is no result of this version.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise StudyError(f"{path}: {error}") from error
    if document.get("version") != 1 or "summary" not in document:
        raise StudyError(f"{path}: no result of `hmas lab policies`; allowed: version 1 with a summary")
    return document


def _body(kind: str, document: Mapping[str, Any]) -> str:
    if kind == LIVE:
        return "\n\n".join([_markdown(live_table(document)), "In words: " + live_verdict(document)])
    verdicts = "\n".join(f"- {line}" for line in simulated_verdicts(document))
    return "\n\n".join([_markdown(wins_table(document)), verdicts, *(_markdown(matrix(document, name)) for name in SHOWN)])


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell or "-" for cell in cells) + " |"

    return "\n".join([f"{table.title}:", "", line(table.head), line(["---"] * len(table.head)), *map(line, table.rows)])


def _between(text: str, kind: str, body: str, page: Path) -> str:
    begin, end = f"<!-- {kind}:begin -->", f"<!-- {kind}:end -->"
    found = re.findall(re.escape(begin) + ".*?" + re.escape(end), text, re.DOTALL)
    if len(found) != 1:
        raise StudyError(f"{page}: {len(found)} pairs of {begin} and {end}; allowed: one")
    return text.replace(found[0], f"{begin}\n{body}\n{end}")
