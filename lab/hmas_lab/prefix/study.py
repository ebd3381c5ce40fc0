"""The study: every router on every workload, from little load to more than the fleet can serve, and with an instance away."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.planning import StudyError
from hmas.planning.backends import Backend
from hmas_lab.prefix.arms import ARMS, EXACT, PEERS, PRODUCT, ROUND_ROBIN
from hmas_lab.prefix.load import WORDS, WORKLOADS, there
from hmas_lab.prefix.serving import INSTANCES, PROFILE, Row, Task, code, run_task
from hmas_lab.result_files import VERSION
from hmas_lab.simulated_rows import KeptRows, rows_of

HIT_POINTS = 0.03
"""How far below the endless cache's the hit rate may be."""
CHATS = "chats"
GOOD_SHARE = 0.9
GOOD_NOISE, TTFT_NOISE = 0.003, 0.03
"""By how much goodput (a share) and TTFT (a ratio) may be worse than the best peer's, which is taken for each figure by itself."""
FIRST_RPS, STEP, MOST_RPS = 1.0, 1.25, 500.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        seeds: Runs of each place, seeds 0 and up.
        requests: Per run; chats have four times as many.
        loads: Over the capacity (`capacity_rps`).
        away_load: Load of the chats during which one instance takes no requests for a twentieth of the time; 0: left out.
    """

    seeds: Annotated[int, Meta(ge=1, le=100)] = 2
    requests: Annotated[int, Meta(ge=100, le=1_000_000)] = 6000
    loads: tuple[Annotated[float, Meta(gt=0, le=10)], ...] = (0.1, 0.5, 0.9, 1.3)
    away_load: Annotated[float, Meta(ge=0, le=10)] = 0.7
    workloads: tuple[str, ...] = WORKLOADS
    arms: tuple[str, ...] = tuple(ARMS)


QUICK = Settings(seeds=1, requests=3000, loads=(0.5,))
"""A minute's worth: no figure of it is meant to be quoted."""


def tasks_of(settings: Settings, capacity: Mapping[str, float]) -> Iterator[Task]:
    """Every run on the workloads whose capacity, requests per second, is given."""
    places = [(workload, load, False) for workload in capacity for load in settings.loads]
    if settings.away_load and CHATS in capacity:
        places.append((CHATS, settings.away_load, True))
    for workload, load, away in places:
        rate_rps = load * capacity[workload]
        for arm in settings.arms:
            for seed in range(settings.seeds):
                yield Task(arm=arm, workload=workload, rate_rps=rate_rps, load=load, seed=seed, requests=settings.requests, away=away)


def capacity_rps(workload: str, requests: int, kept: KeptRows[Task, Row]) -> float:
    """The rate at which `round-robin` at arrival, which knows no caches, still serves `GOOD_SHARE` of the requests in time.

    It is looked for upwards, in steps of `STEP`, and between the last two of them on the line through their shares.

    Raises:
        StudyError: Even `MOST_RPS` are served in time, because there are too few requests for a queue.
    """
    rate_rps, before = FIRST_RPS, 1.0
    while rate_rps < MOST_RPS:
        task = Task(arm=ROUND_ROBIN, workload=workload, rate_rps=rate_rps, seed=0, requests=requests)
        row = kept.row(task)
        if row is None:
            row = msgspec.json.decode(run_task(msgspec.json.encode(task)), type=Row)
            kept.keep(task, row)
        good = row.figures["good"]
        if good < GOOD_SHARE:
            part = (before - GOOD_SHARE) / max(1e-9, before - good)
            return rate_rps * (1.0 - (1.0 - part) * (1.0 - 1.0 / STEP))
        rate_rps, before = rate_rps * STEP, good
    raise StudyError(f"requests is {requests}; allowed for {workload}: more, since so few are served in time at any rate")


def kept_rows(path: Path | None) -> KeptRows[Task, Row]:
    """Rows that lie there and were made by these very sources.

    Raises:
        StudyError: It cannot be read or written.
    """
    return KeptRows(path, Row, _key_of, resume=True, accept=lambda row: row.code == code())


def _key_of(task: Task) -> str:
    return hashlib.sha256(msgspec.json.encode(task, order="deterministic")).hexdigest()[:24]


def run(settings: Settings, backend: Backend, kept: KeptRows[Task, Row], say: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Runs what is not there yet.

    Returns:
        JSON-ready: settings, one entry for each place with the means of every arm's figures, the goals, and every row.
    """
    capacity = {name: capacity_rps(name, settings.requests, kept) for name in settings.workloads if there(name)}
    tasks = list(tasks_of(settings, capacity))
    known = {place: row for place, task in enumerate(tasks) if (row := kept.row(task)) is not None}
    rows = rows_of(tasks, Row, run_task, backend, known=known, on_row=lambda place, row: kept.keep(tasks[place], row), say=say)
    places = summary(rows)
    return {
        "version": VERSION,
        "code": code(),
        "settings": msgspec.to_builtins(settings),
        "profile": PROFILE,
        "instances": INSTANCES,
        "capacity_rps": capacity,
        "missing": [name for name in settings.workloads if not there(name)],
        "workloads": {name: WORDS[name] for name in settings.workloads},
        "arms": {name: ARMS[name].words for name in settings.arms},
        "summary": places,
        "goals": goals(places),
        "rows": [msgspec.to_builtins(row) for row in rows],
    }


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry for each workload and load, in the order of the rows: means over seeds of every arm's figures."""
    found: dict[tuple[str, float, bool], dict[str, list[Row]]] = {}
    for row in rows:
        task = row.task
        found.setdefault((task.workload, task.load, task.away), {}).setdefault(task.arm, []).append(row)
    return [
        {
            "workload": workload,
            "load": load,
            "away": away,
            "arms": {arm: {name: _mean([row.figures[name] for row in mine]) for name in mine[0].figures} for arm, mine in arms.items()},
        }
        for (workload, load, away), arms in found.items()
    ]


def _mean(values: Sequence[float]) -> float | None:
    """Of a time that is infinite in some run (-1), there is no mean."""
    return None if min(values) < 0.0 else fmean(values)


def goals(places: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At each place, for the product with and without exact knowledge: hit rate beside the endless cache, goodput and TTFT beside peers.

    A ratio of TTFT is None where the product's is infinite, because it refused too many.
    """
    found = []
    for place in places:
        arms = place["arms"]
        peers = [arms[name] for name in PEERS if name in arms]
        for arm in (PRODUCT, EXACT):
            if arm not in arms or not peers:
                continue
            ours = arms[arm]
            over = {name: _over(ours[name], [one[name] for one in peers]) for name in ("ttft_ms_p50", "ttft_ms_p95")}
            good = max(one["good"] for one in peers)
            found.append(
                {
                    "workload": place["workload"],
                    "load": place["load"],
                    "away": place["away"],
                    "arm": arm,
                    "hit_below_best": ours["hit_at_best"] - ours["hit"],
                    "good_over_peers": ours["good"] - good,
                    "ttft_p50_over_peers": over["ttft_ms_p50"],
                    "ttft_p95_over_peers": over["ttft_ms_p95"],
                    "reached": ours["hit_at_best"] - ours["hit"] <= HIT_POINTS
                    and ours["good"] >= good - GOOD_NOISE
                    and all(one is not None and one <= 1.0 + TTFT_NOISE for one in over.values()),
                }
            )
    return found


def _over(ours: float | None, peers: Sequence[float | None]) -> float | None:
    return None if ours is None else ours / min((one for one in peers if one is not None), default=math.inf)
