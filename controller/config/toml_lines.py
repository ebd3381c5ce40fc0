"""Finds the line of every key in a TOML text that tomllib has accepted; tomllib itself does not report positions."""

import contextlib
import json
from typing import NoReturn

from hmas.controller.config.check import Path

_BLANK = " \t"
_BARE_END = set(" \t\r\n=.,]}#'\"")


def toml_lines(text: str) -> dict[Path, int]:
    """Line number from 1 by path: tables, keys, array items, inline tables.

    Args:
        text: Well-formed TOML. For any other text the result is incomplete; the function still ends and does not raise.
    """
    scanner = _Scanner(text)
    # The lines found so far are still useful; a path without a line gets its parent's line.
    with contextlib.suppress(IndexError, ValueError, _Lost):
        scanner.run()
    return scanner.lines


class _Lost(Exception):
    """The text is not well-formed TOML."""


class _Scanner:
    """Scans the text in one pass; `at` is the position, which every method moves behind the text that it has read."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n"
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._line = 1
        self._counted = 0
        self._arrays: dict[Path, int] = {}

    def run(self) -> None:
        table: Path = ()
        while True:
            self.skip(_BLANK + "\n")
            if self.at >= len(self.text):
                return
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)
            self.skip(_BLANK)

    def header(self) -> Path:
        """Reads `[a.b]` or `[[a.b]]`; returns the path of the table that follows."""
        double = self.text.startswith("[[", self.at)
        self.at += 2 if double else 1
        names = self.key()
        self.expect("]")
        if double:
            self.expect("]")
        path: Path = ()
        for position, name in enumerate(names):
            path = (*path, name)
            last = position == len(names) - 1
            if last and double:
                self._arrays[path] = self._arrays.get(path, -1) + 1
                self.mark(path)
            if path in self._arrays:
                path = (*path, self._arrays[path])
        self.mark(path)
        return path

    def pair(self, table: Path) -> None:
        """Reads `a.b = value`."""
        line = self.line()
        path = (*table, *self.key())
        for length in range(len(table) + 1, len(path) + 1):
            self.lines.setdefault(path[:length], line)
        self.expect("=")
        self.value(path)

    def key(self) -> tuple[str, ...]:
        """Reads a dotted key with bare or quoted parts."""
        parts = []
        while True:
            self.skip(_BLANK)
            first = self.text[self.at]
            if first in "\"'":
                parts.append(self.string())
            else:
                start = self.at
                while self.text[self.at] not in _BARE_END:
                    self.at += 1
                if start == self.at:
                    self.lost()
                parts.append(self.text[start : self.at])
            self.skip(_BLANK)
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += 1

    def value(self, path: Path) -> None:
        self.skip(_BLANK)
        first = self.text[self.at]
        if first == "[":
            self.array(path)
        elif first == "{":
            self.inline(path)
        elif first in "\"'":
            self.string()
        else:
            start = self.at
            while self.text[self.at] not in ",]}#\n":
                self.at += 1
            if self.at == start:
                # There is no value, as in `[}`: the loop over a list would make no progress.
                self.lost()

    def array(self, path: Path) -> None:
        self.at += 1
        position = 0
        while True:
            self.skip(_BLANK + "\n,")
            if self.text[self.at] == "]":
                self.at += 1
                return
            self.mark((*path, position))
            self.value((*path, position))
            position += 1

    def inline(self, path: Path) -> None:
        self.at += 1
        while True:
            self.skip(_BLANK + "\n,")
            if self.text[self.at] == "}":
                self.at += 1
                return
            self.pair(path)

    def string(self) -> str:
        """Reads a string of any of the four kinds; returns its text, which is needed only for keys."""
        quote = self.text[self.at]
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        start = self.at
        self.at += len(mark)
        while not self.text.startswith(mark, self.at):
            if self.at >= len(self.text):
                self.lost()
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(mark)
        if len(mark) == 3:
            # Up to two quotes may precede the closing three.
            while self.text.startswith(quote, self.at):
                self.at += 1
            return ""
        raw = self.text[start : self.at]
        return raw[1:-1] if quote == "'" else _unescaped(raw)

    def skip(self, characters: str) -> None:
        """Skips the given characters, and comments."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                self.at = self.text.index("\n", self.at)
            elif self.text[self.at] in characters:
                self.at += 1
            else:
                return

    def expect(self, character: str) -> None:
        self.skip(_BLANK)
        if self.text[self.at] != character:
            self.lost()
        self.at += 1

    def mark(self, path: Path) -> None:
        self.lines.setdefault(path, self.line())

    def line(self) -> int:
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def lost(self) -> NoReturn:
        raise _Lost


def _unescaped(raw: str) -> str:
    try:
        return str(json.loads(raw))
    except ValueError:  # JSON has no \U00012345; such a key has no line of its own
        return raw[1:-1]
