"""The tuning file: `hmas tune statera` writes gains to it, and statera reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from hmas.agents.statera.gains import Gains, PlantFit
from hmas.controller.core.errors import ConfigError

EVERY = "*"
"""Key of the gains for every instance without its own."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gains by instance (`EVERY`: all others), and the plants that they were derived from, for reference."""

    version: Literal[1] = 1
    gains: dict[str, Gains] = {}
    plants: dict[str, PlantFit] = {}

    def with_engine(self, name: str, plant: PlantFit, gains: Gains) -> "Tuning":
        """Returns the same tuning with one engine added or replaced."""
        return Tuning(gains=self.gains | {name: gains}, plants=self.plants | {name: plant})


def read_tuning(path: Path) -> Tuning:
    """Reads a tuning file.

    Raises:
        ConfigError: It cannot be read, does not have this format, or has a gain out of its range.
    """
    try:
        tuning = msgspec.json.decode(path.read_bytes(), type=Tuning)
    except OSError as error:
        raise ConfigError(f"statera tuning {path}: {error.strerror}; `hmas tune statera` writes one") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"statera tuning {path}: {error}") from error
    for name, gains in tuning.gains.items():
        if problem := gains.problem():
            raise ConfigError(f"statera tuning {path}: gains of {name!r}: {problem}")
    return tuning


def gains_of(path: str) -> Mapping[str, Gains]:
    """Returns the gains of the configured file; none if no file is configured.

    Raises:
        ConfigError: As `read_tuning`.
    """
    return read_tuning(Path(path).expanduser()).gains if path else {}


def write_tuning(path: Path, tuning: Tuning) -> None:
    """Writes a tuning file.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(tuning), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"statera tuning {path}: {error.strerror}; choose another --out") from error
