"""Reads a YAML or TOML file into plain data, with the line number of every key and list item."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from hmas.controller.config.check import Path, dotted
from hmas.controller.core.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 32
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
SUFFIXES = (".yaml", ".yml", ".toml", ".json")
"""JSON is YAML."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file.

    Attributes:
        file: Its name as given, for messages.
        data: Its content; an empty file is an empty map.
        lines: Line number from 1 by path.
    """

    file: str
    data: dict[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """Line of a path, or of its nearest parent in the file; 1 if there is none."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(file: str) -> Document:
    """Reads and parses a file by its suffix.

    Raises:
        ConfigError: It cannot be read, is too large, has another suffix, or is not well formed; names the line.
    """
    path = FilePath(file)
    if path.suffix not in SUFFIXES:
        ends = f"ends in {path.suffix}" if path.suffix else "has no ending"
        raise ConfigError(f"{file}: the name {ends}, which tells no format; allowed: {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except OSError as error:
        # In place of a file that is there, the shell would write an empty one first.
        gone = isinstance(error, FileNotFoundError)
        more = f"; `hmas config example > {file}` writes one to start from" if gone else ""
        raise ConfigError(f"{file}: cannot be read: {error.strerror}{more}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{file}: more than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file}:{line}: not UTF-8") from None
    return parse_toml(text, file) if path.suffix == ".toml" else parse_yaml(text, file)


def parse_toml(text: str, file: str) -> Document:
    """Parses TOML 1.0.

    Raises:
        ConfigError: Not well formed; names the line.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = found[1] if found and found[1] else str(text.count("\n") + 1)
        reason = str(error)[: found.start()] if found else str(error)
        raise ConfigError(f"{file}:{line}: not TOML: {reason}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
    return Document(file, data, toml_lines(text))


def parse_yaml(text: str, file: str) -> Document:
    """Parses one YAML document. Duplicate keys, non-standard tags and merge keys are mistakes.

    Raises:
        ConfigError: Not well formed; names the line.
    """
    try:
        return _YamlReader(text, file).read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        reason = " ".join(part for part in (error.context, error.problem) if part)
        hint = "; indent with spaces" if "'\\t'" in reason else ""
        raise ConfigError(f"{file}:{line}: not YAML: {reason}{hint}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ConfigError(f"{file}:{line}: not YAML: {error.reason}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None


class _YamlReader:
    """Walks YAML's nodes, because plain data does not keep their line numbers."""

    def __init__(self, text: str, file: str) -> None:
        self._loader = yaml.SafeLoader(text)
        self._file = file
        self._lines: dict[Path, int] = {}
        self._count = 0

    def read(self) -> Document:
        try:
            node = self._loader.get_single_node()
            data = {} if node is None else self._value(node, ())
        finally:
            self._loader.dispose()
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise ConfigError(
                f"{self._file}:{node.start_mark.line + 1 if node else 1}: the file holds {type(data).__name__}; allowed: a map of settings"
            )
        return Document(self._file, data, self._lines)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        # An alias repeats its node, so a small file can expand into a huge document.
        self._count += 1
        if self._count > MAX_NODES or len(path) > MAX_DEPTH:
            raise self._mistake(node, path, "too many or too deeply nested values")
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise self._mistake(node, path, f"not YAML that is allowed here: tag {node.tag!r}")
        if isinstance(node, yaml.MappingNode):
            return self._map(node, path)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for position, item in enumerate(node.value):
                self._lines[(*path, position)] = item.start_mark.line + 1
                items.append(self._value(item, (*path, position)))
            return items
        try:
            return self._loader.construct_object(node)
        except ValueError as error:  # such as a date with month 13
            raise self._mistake(node, path, str(error)) from None

    def _map(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._mistake(key_node, path, "a key must be a plain text")
            # Keys are taken as written: `on` and `1` are texts here, not a truth value and a number.
            key = str(key_node.value)
            if key in data:
                first = self._lines[(*path, key)]
                raise self._mistake(key_node, (*path, key), f"the key stands twice; first on line {first}")
            self._lines[(*path, key)] = key_node.start_mark.line + 1
            data[key] = self._value(value_node, (*path, key))
        return data

    def _mistake(self, node: yaml.Node, path: Path, message: str) -> ConfigError:
        where = dotted(path)
        return ConfigError(f"{self._file}:{node.start_mark.line + 1}: {where + ': ' if where else ''}{message}")


_ENDS = re.compile(r"""]|'''|\"{3}""")
"""What the last line of a statement of several lines contains."""


def toml_lines(text: str) -> dict[Path, int]:
    """Line number from 1 at which the statement of each table and key begins; tomllib itself reports no positions.

    Each statement is parsed by itself: lines are collected until they are a document of their own.

    Args:
        text: Well-formed TOML. For any other text the result is incomplete.
    """
    lines: dict[Path, int] = {}
    newest: dict[Path, int] = {}
    table: Path = ()
    statement: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        statement.append(line)
        if len(statement) > 1 and not _ENDS.search(line):
            continue
        try:
            data = tomllib.loads("\n".join(statement))
        except ValueError:
            continue
        if statement[0].lstrip().startswith("["):
            table = _table_path(data, newest)
            found = [table[:length] for length in range(1, len(table) + 1)]
        else:
            found = [(*table, *path) for path in _key_paths(data)]
        for path in found:
            lines.setdefault(path, number - len(statement) + 1)
        statement = []
    return lines


def _table_path(data: Any, newest: dict[Path, int]) -> Path:
    """The path of a header's table; `newest` has the number of the newest item of every array of tables so far."""
    path: Path = ()
    while data:
        ((name, data),) = data.items()
        path = (*path, name)
        if isinstance(data, list):
            newest[path] = newest.get(path, -1) + 1
            data = data[0]
        if path in newest:
            path = (*path, newest[path])
    return path


def _key_paths(data: dict[str, Any]) -> Iterator[Path]:
    for name, value in data.items():
        yield (name,)
        if isinstance(value, dict):
            yield from ((name, *path) for path in _key_paths(value))
