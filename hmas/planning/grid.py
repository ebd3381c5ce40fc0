"""A grid over settings, and the cases in it."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.controller.core.errors import ConfigError
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.planning.case import Case, SloTarget, read_admission, read_agents, read_policy, read_slo
from hmas.planning.fleet import read_fleet
from hmas.planning.loads import states_seed

MAX_CASES = 100_000
AXES = ("fleet", "load", "policy", "n_run", "router", "admission", "agents", "seed")


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every combination of the lists, each value as on the command line of `hmas simulate`.

    Attributes:
        n_run: Windows of all instances; 0 for the fleet's own.
    """

    workload: str
    fleet: tuple[str, ...]
    load: tuple[Annotated[float, Meta(gt=0, le=1e6)], ...] = (1.0,)
    policy: tuple[str, ...] = (DEFAULT_POLICY,)
    n_run: tuple[Annotated[int, Meta(ge=0)], ...] = (0,)
    router: tuple[str, ...] = ("least-loaded",)
    admission: tuple[str, ...] = ("gateway",)
    agents: tuple[str, ...] = ("none",)
    seed: tuple[Annotated[int, Meta(ge=0)], ...] = (1,)
    slo: str = ""
    model: str = ""
    duration_s: Annotated[float, Meta(ge=0)] = 0.0
    limit: Annotated[int, Meta(ge=0)] = 0
    warmup_s: Annotated[float, Meta(ge=0)] = 0.0


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One case of a grid and its value on every axis."""

    case: Case
    axes: dict[str, Any]


def points_of(grid: Grid) -> list[Point]:
    """All cases of a grid, the last axis fastest, each checked.

    Raises:
        ConfigError: A value cannot be used, an axis is empty, or there are too many cases.
    """
    values = [getattr(grid, axis) for axis in AXES]
    count = 1
    for axis, chosen in zip(AXES, values, strict=True):
        if not chosen or len(set(chosen)) != len(chosen):
            raise ConfigError(f"grid: {axis} is {chosen}; allowed: one value or more, each once")
        count *= len(chosen)
    if count > MAX_CASES:
        raise ConfigError(f"grid: {count} cases; allowed: {MAX_CASES} at most")
    if len(grid.seed) > 1 and states_seed(grid.workload):
        raise ConfigError(f"grid: seed is {grid.seed} and the workload names its own; allowed: one of the two")
    slo = read_slo(grid.slo)[0] if grid.slo else SloTarget()
    points = []
    for chosen in itertools.product(*values):
        axes = dict(zip(AXES, chosen, strict=True))
        policy, parameters = read_policy(axes["policy"])
        fleet = read_fleet(axes["fleet"])
        fields = {
            "workload": grid.workload,
            "fleet": fleet.with_window(axes["n_run"]) if axes["n_run"] else fleet,
            "load": axes["load"],
            "duration_s": grid.duration_s,
            "limit": grid.limit,
            "warmup_s": grid.warmup_s,
            "model": grid.model,
            "policy": policy,
            "parameters": parameters,
            "router": axes["router"],
            "admission": read_admission(axes["admission"]),
            "agents": read_agents(axes["agents"]),
            "slo": slo,
            "seed": axes["seed"],
        }
        case = Case(**fields)
        case.check()
        points.append(Point(case=case, axes=axes))
    return points


def read_grid(path: Path) -> Iterator[tuple[str, Any]]:
    """Reads the settings of a grid file, JSON; a single value counts as a list of one.

    Raises:
        ConfigError: The file cannot be read or is not a JSON object.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"grid file {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"grid file {path}: {error}") from error
    for name, value in document.items():
        yield name, [value] if name in AXES and not isinstance(value, list) else value


def make_grid(settings: dict[str, Any]) -> Grid:
    """Makes a grid from plain settings.

    Raises:
        ConfigError: A setting is missing, unknown or of the wrong type; the error names it.
    """
    try:
        return msgspec.convert(settings, Grid, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"grid: {error}") from error
