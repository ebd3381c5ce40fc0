"""Writes results into a documentation page, between markers, from what lies on disk: no figure is typed by hand."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hmas.planning import StudyError
from hmas_lab.result_files import read_result

LIVE, SIMULATED = "live", "simulated"
"""Kinds of result, and the names of their files."""
Body = Callable[[Mapping[str, Any]], str]


def write_page(page: Path, results: Path, bodies: Mapping[str, Body], *, command: str) -> list[str]:
    """Puts the results that are there into the page.

    Args:
        page: Markdown with `<!-- KIND:begin -->` and `<!-- KIND:end -->` for each kind.
        results: Folder with a KIND.json for each kind that there is.
        bodies: By kind, what to show of it.
        command: What makes the results, for whoever lacks them.

    Returns:
        The kinds that were written.

    Raises:
        StudyError: There are no results, a result cannot be read, or the page lacks a pair of markers.
    """
    text = _read(page)
    written = []
    for kind, body in bodies.items():
        path = results / f"{kind}.json"
        if path.exists():
            text = between(text, kind, body(read_result(path, command=command)), page)
            written.append(kind)
    if not written:
        raise StudyError(f"{results} holds none of {', '.join(f'{kind}.json' for kind in bodies)}; run `{command}` first")
    page.write_text(text, encoding="utf-8")
    return written


def write_section(page: Path, kind: str, body: str) -> None:
    """Puts one body between the kind's markers of the page.

    Raises:
        StudyError: The page cannot be read or written, or lacks the pair of markers.
    """
    text = between(_read(page), kind, body, page)
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StudyError(f"{page}: {error.strerror}") from error


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(f"{page}: {error.strerror}") from error


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
