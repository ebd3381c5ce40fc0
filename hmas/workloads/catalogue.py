"""Every workload by its name. One text specifies any of them: `build("poisson:rate=40,duration=600,seed=1")`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hmas.controller.config.plugins import ExtensionPoint, declared, unknown
from hmas.controller.core.errors import TraceError
from hmas.workloads import drawn, hetero, phases, replay, servegen, session_loads
from hmas.workloads.options import Options, Spec, parse, read_options
from hmas.workloads.sessions import SessionPlan
from hmas.workloads.table import Workload


class Entry(NamedTuple):
    """One workload of the catalogue.

    Attributes:
        options: Type of its options.
        make: Makes the workload from options and path.
        path: Whether the specification names a file or folder.
        about: A line for listings.
        example: A valid specification.
    """

    options: type[Options]
    make: Callable[[Any, Any], Workload]
    path: Literal["none", "may", "must"]
    about: str
    example: str


WORKLOADS: dict[str, Entry] = {
    "poisson": Entry(drawn.DrawnOptions, drawn.poisson, "none", "Poisson arrivals", "poisson:rate=40,duration=600,seed=1"),
    "gamma": Entry(drawn.GammaOptions, drawn.gamma, "none", "renewal arrivals with a given CV", "gamma:rate=40,cv=3,duration=600"),
    "hetero": Entry(hetero.HeteroOptions, hetero.hetero, "none", "HeteroServe's load", "hetero:rate=49.8,count=10000,seed=0"),
    "phases": Entry(phases.PhaseOptions, phases.phases, "none", "H-MAS Eq. 13: steady, surge, on-off", "phases:rate=40"),
    "semantic": Entry(phases.SemanticOptions, phases.semantic, "may", "H-MAS's shift of task types", "semantic:conv.csv?rate=4,phase=200"),
    "burst": Entry(phases.BurstOptions, phases.burst, "none", "H-MAS's fast slice: short bursts", "burst:rate=40,height=4"),
    "drift": Entry(phases.DriftOptions, phases.drift, "none", "H-MAS's medium slice: the mix drifts", "drift:rate=40,last=0.5"),
    "shift": Entry(phases.ShiftOptions, phases.shift, "none", "H-MAS's slow slice: a lasting change", "shift:rate=40,before=0.5"),
    "azure": Entry(replay.ReplayOptions, replay.azure, "must", "Azure's traces", "azure:conv.csv.gz?rate=40,duration=600,laps=2"),
    "mooncake": Entry(
        replay.ReplayOptions, replay.mooncake, "must", "Mooncake's traces with prompt blocks", "mooncake:trace.jsonl?speed=2"
    ),
    "servegen": Entry(
        servegen.ServeGenOptions, servegen.servegen, "must", "client mixtures after ServeGen", "servegen:arrivals?model=m-large,rate=40"
    ),
    "file": Entry(replay.FileOptions, replay.from_file, "must", "a workload file (CSV or JSONL)", "file:mine.csv?rate=10"),
}
"""Workloads by name: the built-in ones, then those of plugins."""


class SessionEntry(NamedTuple):
    """One closed-loop workload: type of its options, function that makes it, a line for listings, and an example."""

    options: type[Options]
    make: Callable[[Any, Any], SessionPlan]
    about: str
    example: str


SESSIONS: Mapping[str, SessionEntry] = MappingProxyType(
    {
        "text2sql": SessionEntry(
            session_loads.Text2SqlOptions, session_loads.text2sql, "text-to-SQL workflows", "text2sql:hexgen_text2sql.jsonl.gz?rate=0.5"
        ),
        "tools": SessionEntry(
            session_loads.ToolOptions, session_loads.tools, "agents with tools", "tools:tool_sessions.jsonl.gz?rate=0.2,source=agentcgroup"
        ),
    }
)


def add_workload(name: str, entry: Any) -> None:
    """Adds a plugin's workload.

    Raises:
        TraceError: It is no `Entry`, or a workload of sessions has its name.
    """
    if not isinstance(entry, Entry) or name in SESSIONS:
        raise TraceError(
            f"workload {name!r} is {entry!r}; allowed: a hmas.workloads.catalogue.Entry, and none of the names {', '.join(SESSIONS)}"
        )
    WORKLOADS[name] = entry


WORKLOAD_PLUGINS = ExtensionPoint("hmas.workloads", "workload", WORKLOADS, add_workload)


def names() -> tuple[str, ...]:
    """The names of all workloads, those of plugins included; nothing of a plugin is imported."""
    return tuple(dict.fromkeys((*WORKLOADS, *SESSIONS, *declared(WORKLOAD_PLUGINS.group))))


def build_sessions(spec: str | Spec) -> SessionPlan:
    """Makes a workload of sessions, in which later calls depend on when earlier ones end.

    Raises:
        TraceError: As `build`.
    """
    parsed = parse(spec) if isinstance(spec, str) else spec
    entry = SESSIONS.get(parsed.name)
    if entry is None:
        raise TraceError(f"workload of sessions is {parsed.name!r}; allowed: {', '.join(SESSIONS)}")
    if parsed.path is None:
        raise TraceError(f"{parsed.name} names no file; allowed: as in {entry.example}")
    return entry.make(read_options(parsed, entry.options), parsed.path)


def build(spec: str | Spec) -> Workload:
    """Makes a workload.

    Args:
        spec: `NAME`, `NAME:option=value,...`, `NAME:PATH`, `NAME:PATH?option=value,...`, or a JSON object with `name`, `path` and
            the options.

    Raises:
        TraceError: The workload or an option is unknown, a value is out of range, or a file cannot be used.
    """
    parsed = parse(spec) if isinstance(spec, str) else spec
    if parsed.name not in {*WORKLOADS, *SESSIONS}:
        WORKLOAD_PLUGINS.load()
    entry = WORKLOADS.get(parsed.name)
    if parsed.name in SESSIONS:
        raise TraceError(f"workload is {parsed.name!r}, whose calls follow from each other; allowed: {', '.join(WORKLOADS)}")
    if entry is None:
        raise TraceError(f"workload is {parsed.name!r}; {unknown(parsed.name, WORKLOAD_PLUGINS.group, WORKLOADS)}")
    if parsed.path is None and entry.path == "must":
        raise TraceError(f"{parsed.name} names no file or folder; allowed: as in {entry.example}")
    if parsed.path is not None and entry.path == "none":
        raise TraceError(f"{parsed.name} reads no file, but {str(parsed.path)!r} is given; allowed: as in {entry.example}")
    return entry.make(read_options(parsed, entry.options), parsed.path)
