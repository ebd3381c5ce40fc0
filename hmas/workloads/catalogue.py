"""Every workload by its name. One text specifies any of them: `build("poisson:rate=40,duration=600,seed=1")`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from hmas.controller.config.plugins import ExtensionPoint, declared, unknown
from hmas.controller.core.errors import TraceError
from hmas.workloads import drawn, phases, replay, session_files
from hmas.workloads.options import Options, Spec, parse, read_options
from hmas.workloads.sessions import SessionPlan
from hmas.workloads.table import Workload

Made = TypeVar("Made", Workload, SessionPlan)


class Entry(NamedTuple, Generic[Made]):
    """One workload of the catalogue; `path` tells whether its specification names a file or folder, as in the valid `example`."""

    options: type[Options]
    make: Callable[[Any, Any], Made]
    path: Literal["none", "may", "must"]
    example: str


WORKLOADS: dict[str, Entry[Workload]] = {
    "poisson": Entry(drawn.DrawnOptions, drawn.poisson, "none", "poisson:rate=40,duration=600,seed=1"),
    "gamma": Entry(drawn.GammaOptions, drawn.gamma, "none", "gamma:rate=40,cv=3,duration=600"),
    "phases": Entry(phases.PhaseOptions, phases.phases, "none", "phases:rate=40"),
    "semantic": Entry(phases.SemanticOptions, phases.semantic, "may", "semantic:conv.csv?rate=4,phase=200"),
    "burst": Entry(phases.BurstOptions, phases.burst, "none", "burst:rate=40,height=4"),
    "drift": Entry(phases.DriftOptions, phases.drift, "none", "drift:rate=40,last=0.5"),
    "shift": Entry(phases.ShiftOptions, phases.shift, "none", "shift:rate=40,before=0.5"),
    "azure": Entry(replay.ReplayOptions, replay.azure, "must", "azure:conv.csv.gz?rate=40,duration=600,laps=2"),
    "mooncake": Entry(replay.ReplayOptions, replay.mooncake, "must", "mooncake:trace.jsonl?speed=2"),
    "file": Entry(replay.FileOptions, replay.from_file, "must", "file:mine.csv?rate=10"),
}
"""Workloads by name: the built-in ones, then those of plugins."""
SESSIONS: Mapping[str, Entry[SessionPlan]] = MappingProxyType(
    {
        "text2sql": Entry(session_files.Text2SqlOptions, session_files.text2sql, "must", "text2sql:hexgen_text2sql.jsonl.gz?rate=0.5"),
        "tools": Entry(session_files.ToolOptions, session_files.tools, "must", "tools:tool_sessions.jsonl.gz?rate=0.2,source=agentcgroup"),
    }
)
"""Closed-loop workloads, in which later calls depend on when earlier ones end."""


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
    """Makes a workload of sessions; as `build`."""
    return _build(spec, SESSIONS)


def build(spec: str | Spec) -> Workload:
    """Makes a workload.

    Args:
        spec: `NAME`, `NAME:option=value,...`, `NAME:PATH` or `NAME:PATH?option=value,...`.

    Raises:
        TraceError: The workload or an option is unknown, a value is out of range, or a file cannot be used.
    """
    return _build(spec, WORKLOADS)


def _build(spec: str | Spec, catalogue: Mapping[str, Entry[Made]]) -> Made:
    parsed = parse(spec) if isinstance(spec, str) else spec
    entry = catalogue.get(parsed.name)
    if entry is None and parsed.name not in {*WORKLOADS, *SESSIONS}:
        WORKLOAD_PLUGINS.load()
        entry = catalogue.get(parsed.name)
    if entry is None:
        linked = ", whose calls follow from each other" if parsed.name in SESSIONS else ""
        known = catalogue if parsed.name in {*WORKLOADS, *SESSIONS} else [*WORKLOADS, *SESSIONS]
        raise TraceError(f"workload is {parsed.name!r}{linked}; {unknown(parsed.name, WORKLOAD_PLUGINS.group, known)}")
    if parsed.path is None and entry.path == "must":
        raise TraceError(f"{parsed.name} names no file or folder; allowed: as in {entry.example}")
    if parsed.path is not None and entry.path == "none":
        raise TraceError(f"{parsed.name} reads no file, but {str(parsed.path)!r} is given; allowed: as in {entry.example}")
    return entry.make(read_options(parsed, entry.options), parsed.path)
