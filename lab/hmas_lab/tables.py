"""Tables of results: head and rows of text, the same for the terminal and for a documentation page. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A table with the sentence that stands above it."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def markdown(table: Table) -> str:
    """A table for a page, under its sentence."""
    return f"{table.title}:\n\n{grid(table.head, table.rows)}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Head and rows in Markdown; what is empty is a dash."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell or "-" for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def plus_minus(value: Mapping[str, Any], digits: int) -> str:
    """A `mean` with half the width of its confidence interval (`half`), where there is one."""
    half = value.get("half")
    return f"{value['mean']:.{digits}f}" + (f" ± {half:.{digits}f}" if half else "")


def cell(value: float | None, digits: int) -> str:
    """A figure; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def min_max(value: Mapping[str, Any], digits: int) -> str:
    """The `min` and the `max` of repeated runs."""
    return f"{value['min']:.{digits}f}..{value['max']:.{digits}f}"
