"""The change-point selector's table: regimes of the long view with their policies; the first match counts. Pure but for file access.

Ranges of figures (`features.FEATURES`) define a regime. `hmas-lab train-meta` found the shipped table on simulated workloads; an operator's
own table has the same JSON format.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hmas.controller.core.errors import ConfigError, PolicyError
from hmas.controller.scheduling.policies.registry import check_parameters
from hmas_lab.meta.features import FEATURES

SHIPPED = Path(__file__).parent / "models" / "regimes.json"
ROWS_MOST = 64
BYTES_MOST = 1 << 18


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One regime.

    Attributes:
        when: The lowest and highest value of each figure, both included; null leaves a side open. All ranges must hold.
        policy, parameters: The best choice in this regime.
        why: An explanation for the operator.
    """

    when: dict[str, tuple[float | None, float | None]]
    policy: str
    parameters: dict[str, float] = {}
    why: str = ""

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Whether these figures belong to the regime."""
        return all(
            (low is None or figures[name] >= low) and (high is None or figures[name] <= high) for name, (low, high) in self.when.items()
        )


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rows: list[Row]
    about: str = ""


def look_up(rows: Sequence[Row], figures: Mapping[str, float]) -> Row | None:
    """Returns the first regime that these figures belong to, or None."""
    return next((row for row in rows if row.holds(figures)), None)


def read_table(path: Path = SHIPPED) -> list[Row]:
    """Reads a table.

    Raises:
        ConfigError: It cannot be read, or a row cannot be used; the message names the JSON path, the value and what is allowed.
    """
    try:
        with path.open("rb") as source:
            data = source.read(BYTES_MOST + 1)
    except OSError as error:
        raise ConfigError(f"agents.meta_model {path}: {error.strerror}; allowed: a JSON file, or empty for the shipped table") from error
    if len(data) > BYTES_MOST:
        raise ConfigError(f"agents.meta_model {path}: more than {BYTES_MOST} bytes; allowed: {ROWS_MOST} rows at most")
    try:
        rows = msgspec.json.decode(data, type=_Document).rows
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"agents.meta_model {path}: {error}") from error
    if len(rows) > ROWS_MOST:
        raise ConfigError(f"agents.meta_model {path}: $.rows has {len(rows)} rows; allowed: {ROWS_MOST} at most")
    for place, row in enumerate(rows):
        _check(row, f"agents.meta_model {path}: $.rows[{place}]")
    return rows


def write_table(rows: Sequence[Row], path: Path, about: str) -> None:
    """Writes a table in the format of `read_table`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_Document(rows=list(rows), about=about)), indent=2) + b"\n")


def _check(row: Row, where: str) -> None:
    for name, (low, high) in row.when.items():
        if name not in FEATURES:
            raise ConfigError(f"{where}.when has {name!r}; allowed: {', '.join(FEATURES)}")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"{where}.when.{name} is [{low:g}, {high:g}]; allowed: the least first")
    try:
        check_parameters(row.policy, row.parameters)
    except PolicyError as error:
        raise ConfigError(f"{where}: {error}") from error
