"""HeteroServe's evaluation (section 4): its table, ablations, loads, distributions and cluster sizes, and a thousand devices once."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.planning.backends import Backend
from hmas_lab.hetero.arms import ARMS, CAPACITY, FCFS, LATENCY, PRODUCT, PUBLISHED, UNIFORM
from hmas_lab.hetero.cluster import GPUS
from hmas_lab.hetero.figures import goals, summary
from hmas_lab.hetero.load import DISTRIBUTIONS, SLO_TTFT_MS
from hmas_lab.hetero.published import PAPER_RPS
from hmas_lab.hetero.serving import PROBE_REQUESTS, Row, Task, code, run_task, saturation_rps
from hmas_lab.result_files import VERSION
from hmas_lab.simulated_rows import KeptRows, rows_of

SWEPT = (UNIFORM, CAPACITY, LATENCY, PUBLISHED, FCFS["least-loaded"], FCFS["default"], PRODUCT)
"""Arms at every load and distribution; all of them stand side by side at the paper's own."""
GROWN = (UNIFORM, PUBLISHED, PRODUCT)
"""Arms at every size of the cluster."""
DEVICES = 8
Count = Annotated[int, Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        seeds: Workloads at each place, seeds 0 and up.
        requests: Per run on 8 devices; in proportion to the devices on other clusters.
        loads: Beside 1.0 and 0.9, the loads of the paper's table and ablation.
        sizes: Of the cluster, beside 8.
        large: Devices of the one large cluster, 0 for none, with `large_requests` for each.
        probe: As in `Task`.
    """

    seeds: Annotated[int, Meta(ge=1, le=100)] = 5
    requests: Annotated[int, Meta(ge=8, le=1_000_000)] = 10_000
    loads: tuple[Annotated[float, Meta(gt=0, le=10)], ...] = (0.5, 0.75, 1.25, 1.5, 2.0)
    distributions: tuple[str, ...] = tuple(name for name in DISTRIBUTIONS if name != "lognormal")
    sizes: tuple[Annotated[int, Meta(ge=4, multiple_of=4)], ...] = (4, 16, 32)
    large: Annotated[int, Meta(ge=0, multiple_of=4)] = 1000
    large_requests: Count = 100
    arms: tuple[str, ...] = tuple(ARMS)
    probe: Annotated[int, Meta(ge=8)] = PROBE_REQUESTS


QUICK = Settings(seeds=1, requests=1500, loads=(1.5,), distributions=("bimodal",), sizes=(4, 16), large=64, large_requests=20, probe=800)
"""Minutes' worth: no figure of it is meant to be quoted."""


def tasks_of(settings: Settings) -> Iterator[Task]:
    """Every run, the table's first."""

    def place(arms: Sequence[str], distribution: str, load: float, devices: int = DEVICES) -> Iterator[Task]:
        for arm in arms:
            for seed in range(settings.seeds):
                requests = settings.requests * devices // DEVICES
                yield Task(
                    arm=arm, distribution=distribution, devices=devices, load=load, seed=seed, requests=requests, probe=settings.probe
                )

    swept = [arm for arm in settings.arms if arm in SWEPT]
    grown = [arm for arm in settings.arms if arm in GROWN]
    for load in (1.0, 0.9):
        yield from place(settings.arms, "lognormal", load)
    for load in settings.loads:
        yield from place(swept, "lognormal", load)
    for distribution in settings.distributions:
        for load in (1.0, 0.9):
            yield from place(swept, distribution, load)
    for size in settings.sizes:
        yield from place(grown, "lognormal", 1.0, size)
    if settings.large and PRODUCT in settings.arms:
        requests = settings.large * settings.large_requests
        yield Task(arm=PRODUCT, distribution="lognormal", devices=settings.large, load=0.9, seed=0, requests=requests, probe=settings.probe)


def kept_rows(path: Path | None) -> KeptRows[Task, Row]:
    """Rows that lie there and were made by these very sources.

    Raises:
        StudyError: It cannot be read or written.
    """
    return KeptRows(path, Row, _key_of, resume=True, accept=lambda row: row.code == code())


def _key_of(task: Task) -> str:
    return hashlib.sha256(msgspec.json.encode(task, order="deterministic")).hexdigest()[:24]


def run(
    settings: Settings, backend: Backend, kept: KeptRows[Task, Row], say: Callable[[str], None] | None = None, most: int = 0
) -> dict[str, Any]:
    """Runs what is not there yet.

    Args:
        settings: What.
        backend: Where.
        kept: Rows that are there, and where new ones go.
        say: Told the progress.
        most: Runs at once; 0 for all. With fewer, what is missing is missing in the result.

    Returns:
        JSON-ready: settings, the cluster's saturation, one entry for each place (`summary`), the goals, and every row.
    """
    tasks = list(tasks_of(settings))
    later = [task for task in tasks if kept.row(task) is None][most:] if most else []
    tasks = [task for task in tasks if task not in later]
    known = {place: row for place, task in enumerate(tasks) if (row := kept.row(task)) is not None}
    rows = rows_of(tasks, Row, run_task, backend, known=known, on_row=lambda place, row: kept.keep(tasks[place], row), say=say)
    places = summary(rows)
    by_gpu = {
        name: {gpu.name: saturation_rps(gpu, name, settings.probe) for gpu in GPUS}
        for name in DISTRIBUTIONS
        if any(place["distribution"] == name for place in places)
    }
    return {
        "version": VERSION,
        "code": code(),
        "settings": msgspec.to_builtins(settings),
        "missing": len(later),
        "slo_ttft_ms": SLO_TTFT_MS,
        "paper_rate_rps": PAPER_RPS,
        "saturation_rps": {name: sum(gpu.count * found[gpu.name] for gpu in GPUS) for name, found in by_gpu.items()},
        "saturation_rps_by_gpu": by_gpu,
        "arms": {name: ARMS[name].words for name in settings.arms},
        "summary": places,
        "goals": goals(places),
        "rows": [msgspec.to_builtins(row) for row in rows],
    }
