"""Writes results into a documentation page, between markers, from what lies on disk: no figure is typed by hand."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from hmas.lab.agents.tables import live_table, live_verdict, markdown, short_table, simulated_tables, simulated_verdicts
from hmas.lab.studies.errors import StudyError

LIVE, SIMULATED = "live", "simulated"
VERSION = 1


def simulated_body(document: Mapping[str, Any]) -> str:
    """The simulated ablation for the page."""
    about = "\n".join(f"- `{name}`: {words}" for name, words in document["about"].items())
    verdicts = "\n".join(f"- {line}" for line in simulated_verdicts(document))
    return "\n\n".join([markdown(short_table(document)), verdicts, about, *map(markdown, simulated_tables(document))])


def live_body(document: Mapping[str, Any]) -> str:
    """The live ablation for the page."""
    return "\n\n".join([markdown(live_table(document)), f"In words: {live_verdict(document)}"])


BODIES: Mapping[str, Callable[[Mapping[str, Any]], str]] = MappingProxyType({LIVE: live_body, SIMULATED: simulated_body})
"""By kind of result, which is the name of its file: what the page shows."""


def write_page(page: Path, results: Path, bodies: Mapping[str, Callable[[Mapping[str, Any]], str]] = BODIES) -> list[str]:
    """Puts the results that are there into the page.

    Args:
        page: Markdown with `<!-- KIND:begin -->` and `<!-- KIND:end -->` for each kind.
        results: Folder with a KIND.json for each kind that there is.
        bodies: What to show of each kind.

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
    for kind, body in bodies.items():
        path = results / f"{kind}.json"
        if path.exists():
            text = between(text, kind, body(read_result(path)), page)
            written.append(kind)
    if not written:
        raise StudyError(f"{results} holds none of {', '.join(f'{kind}.json' for kind in bodies)}; make them first")
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
    if document.get("version") != VERSION:
        raise StudyError(f"{path}: version is {document.get('version')!r}; allowed: {VERSION}")
    return document


def between(text: str, kind: str, body: str, page: Path) -> str:
    """The text with the body between the kind's markers.

    Raises:
        StudyError: There is not exactly one pair.
    """
    begin, end = f"<!-- {kind}:begin -->", f"<!-- {kind}:end -->"
    found = re.findall(re.escape(begin) + ".*?" + re.escape(end), text, re.DOTALL)
    if len(found) != 1:
        raise StudyError(f"{page}: {len(found)} pairs of {begin} and {end}; allowed: one")
    return text.replace(found[0], f"{begin}\n{body}\n{end}")
