"""The JSON in which a comparison leaves its results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hmas.controller.core.errors import ConfigError
from hmas.planning import StudyError

VERSION = 1


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all: a long run that is broken off must not leave half a file.

    Raises:
        ConfigError: It cannot be written.
    """
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; choose another --out") from error


def read_result(path: Path, *, command: str) -> dict[str, Any]:
    """A result as it was written by the command.

    Raises:
        StudyError: It cannot be read, or is no result of this version.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise StudyError(f"{path}: {error}") from error
    if document.get("version") != VERSION or "summary" not in document:
        raise StudyError(f"{path}: no result of `{command}`; allowed: version {VERSION} with a summary")
    return document
