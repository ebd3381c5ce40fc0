"""docs/paper.md names the place of each of the paper's items: every equation, table and figure, in files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "paper.md"
FILE = re.compile(r"`((?:agents|controller|docs|engines|hmas|lab|tests)/[A-Za-z0-9_./-]+)`")


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").partition("<!-- paper-preset:begin -->")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[1] not in {"file", "setting or file", "---"}]


def test_every_file_that_the_page_names_exists():
    named = FILE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_row_names_a_file():
    assert [row[0] for row in rows() if not FILE.search(row[1])] == []


def test_every_equation_table_and_figure_has_a_row():
    items = [row[0] for row in rows()]
    for kind, last in (("Eq.", 14), ("Table", 6), ("Fig.", 13)):
        found = {int(number) for item in items if item.startswith(kind) for number in re.findall(r"\d+", item)}
        assert set(range(1, last + 1)) <= found, kind


def test_the_page_is_short():
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 200
