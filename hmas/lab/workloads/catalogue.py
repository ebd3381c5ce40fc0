"""Every workload by its name. One text names any of them: `build("poisson:rate=40,duration=600,seed=1")`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from controller.core.errors import TraceError
from hmas.lab.workloads import drawn, hetero, phases, replay, servegen
from hmas.lab.workloads.options import Options, Spec, parse, read_options
from hmas.lab.workloads.table import Workload


class Entry(NamedTuple):
    """One workload of the catalogue.

    Attributes:
        options: What it can be told.
        make: Makes it of its options and its path.
        path: Whether the specification names a file or folder.
        about: A line for listings.
        example: A specification that works.
    """

    options: type[Options]
    make: Callable[[Any, Any], Workload]
    path: Literal["none", "may", "must"]
    about: str
    example: str


WORKLOADS: Mapping[str, Entry] = MappingProxyType(
    {
        "poisson": Entry(drawn.DrawnOptions, drawn.poisson, "none", "Poisson arrivals", "poisson:rate=40,duration=600,seed=1"),
        "gamma": Entry(drawn.GammaOptions, drawn.gamma, "none", "renewal arrivals with a given CV", "gamma:rate=40,cv=3,duration=600"),
        "hetero": Entry(hetero.HeteroOptions, hetero.hetero, "none", "HeteroServe's load", "hetero:rate=49.8,count=10000,seed=0"),
        "phases": Entry(phases.PhaseOptions, phases.phases, "none", "H-MAS Eq. 13: steady, surge, on-off", "phases:rate=40"),
        "semantic": Entry(
            phases.SemanticOptions, phases.semantic, "may", "H-MAS's shift of task types", "semantic:conv.csv?rate=4,phase=200"
        ),
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
)


def build(spec: str | Spec) -> Workload:
    """Makes a workload.

    Args:
        spec: `NAME`, `NAME:option=value,...`, `NAME:PATH`, `NAME:PATH?option=value,...`, or a JSON object with `name`, `path` and
            the options.

    Raises:
        TraceError: No such workload or option, a value out of its range, or a file that cannot be used.
    """
    parsed = parse(spec) if isinstance(spec, str) else spec
    entry = WORKLOADS.get(parsed.name)
    if entry is None:
        raise TraceError(f"workload is {parsed.name!r}; allowed: {', '.join(WORKLOADS)}")
    if parsed.path is None and entry.path == "must":
        raise TraceError(f"{parsed.name} names no file or folder; allowed: as in {entry.example}")
    if parsed.path is not None and entry.path == "none":
        raise TraceError(f"{parsed.name} reads no file, but {str(parsed.path)!r} is given; allowed: as in {entry.example}")
    return entry.make(read_options(parsed, entry.options), parsed.path)
