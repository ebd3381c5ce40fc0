"""The output of commands: results on stdout, as text or as JSON; everything else on stderr."""

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from hmas.controller.core.errors import ConfigError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def say(text: str) -> None:
    """Writes a line of result."""
    click.echo(text)


def say_json(document: Any) -> None:
    """Writes a result as one JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def show(document: Any, text: Callable[[Any], str], *, as_json: bool) -> None:
    """Writes a result: as JSON, or as the text that `text` makes of it."""
    if as_json:
        say_json(document)
    else:
        say(text(document))


def example(*lines: str) -> str:
    """The epilog of a command's help with one example or more."""
    return "\b\n" + "\n  ".join(["Example:" if len(lines) == 1 else "Examples:", *lines])


def complain(text: str) -> None:
    """Writes a diagnostic."""
    click.echo(f"hmas: {text}" if "\n" not in text else f"hmas:\n{text}", err=True)


def exit_where_broken(ctx: click.Context, broken: Sequence[str]) -> None:
    """Prints each violation; if there is any, ends the command with exit code 1."""
    for text in broken:
        complain(f"broken: {text}")
    if broken:
        ctx.exit(EXIT_FAILED)


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Makes a ConfigError of an error of writing to what `option` names."""
    try:
        yield
    except OSError as error:
        allowed = "a place where this user may write, with room left"
        raise ConfigError(f"{option} is {str(path)!r}, which cannot be written: {error.strerror}; allowed: {allowed}") from error


def check_writable(path: Path, option: str = "--out", *, folder: bool = False) -> None:
    """Finds out before the work starts whether a result can be written; makes the folder.

    Raises:
        ConfigError: It cannot be written.
    """
    home = path if folder else path.parent
    with writing(path, option):
        home.mkdir(parents=True, exist_ok=True)
        if not folder and path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=home).close()


def hint(text: str) -> None:
    """Writes a note that is not part of the result."""
    click.echo(text, err=True)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with headings; numbers are aligned to the right, texts to the left. Empty cells are shown as a hyphen."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(_is_number(row[column]) for row in cells) and bool(cells) for column in range(len(head))]
    widths = [max([len(head[column]), *(len(row[column]) for row in cells)]) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = [text.rjust(width) if end else text.ljust(width) for text, width, end in zip(row, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(list(head)), *(line(row) for row in cells)])


def duration_words(seconds: float) -> str:
    """A duration as text: `45 s`, `1.5 min`, `12 min`, `3.5 h`, `2 d`."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def pair_words(pairs: Mapping[str, float]) -> str:
    """Names and their numbers as text: `prefix=0.5, load=1`."""
    return ", ".join(f"{name}={value:g}" for name, value in pairs.items())


def clock_words(at_s: float) -> str:
    """A time as text, UTC, to the second."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.rstrip("%").replace(".", "", 1).lstrip("-").isdigit()
