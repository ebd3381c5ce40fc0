"""Recorded traffic: Azure's traces with times and lengths, Mooncake's traces also with prompt blocks, and workload files."""

from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from hmas.controller.core.errors import TraceError
from hmas.loadgen.arrivals import MAX_ROWS
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.requests import Floats, kind_of, requests_of
from hmas.loadgen.streams import stream
from hmas.loadgen.traces import MOONCAKE_TICK_MS, Trace, TraceFormat, read_trace, ticks_of
from hmas.workloads.files import read_workload
from hmas.workloads.options import Count, NotNegative, Options, Positive
from hmas.workloads.table import Blocks, Workload, annotate, span_s


class FileOptions(Options, frozen=True, kw_only=True):
    """Options of a workload file.

    Attributes:
        rate: Mean rate to scale the times to, requests per second; 0 keeps the recorded one.
        speed: Times are divided by this; with `rate` given it must be 1.
        start, duration: The part to use, in seconds after scaling; a duration of 0 for all from `start` on.
    """

    rate: NotNegative = 0.0
    speed: Positive = 1.0
    start: NotNegative = 0.0
    duration: NotNegative = 0.0


class ReplayOptions(FileOptions, frozen=True, kw_only=True):
    """Options of a recorded trace.

    Attributes:
        laps: How often the trace is repeated, one lap after the other.
        limit: Use this many first rows of the file; 0 for all (a million at most).
        kind: Kind of traffic that gives task types, tenants and caps: `conv` or `code`; by default chosen by the trace's outputs.
    """

    laps: Annotated[int, Meta(ge=1, le=1000)] = 1
    limit: Count = 0
    kind: str = ""


def from_file(options: FileOptions, path: Path) -> Workload:
    """A workload file with its own SLOs, tasks and tenants.

    Raises:
        TraceError: The file cannot be used, or an option that would annotate it is given.
    """
    for field in ("slo_scale", "ttft_ms", "tpot_ms", "context"):
        if getattr(options, field) != getattr(FileOptions(), field):
            raise TraceError(
                f"file: {field} is {getattr(options, field)}, but a workload file has its own targets and lengths; allowed: none"
            )
    return fit_times(read_workload(path), options)


def azure(options: ReplayOptions, path: Path) -> Workload:
    """An Azure trace: times and lengths as recorded, scaled in time."""
    return replay("azure", path, options)


def mooncake(options: ReplayOptions, path: Path) -> Workload:
    """A Mooncake trace with its block hashes. Requests of a 3 s tick are spread over it at random, in their order (seeded)."""
    return replay("mooncake", path, options)


def replay(name: TraceFormat, path: Path, options: ReplayOptions) -> Workload:
    """Reads a trace and makes a workload from it.

    Raises:
        TraceError: The file cannot be used: a bad row, rows out of order, no times.
    """
    trace = read_trace(path, format_name=name, limit=options.limit, as_recorded=True)
    if len(trace.rows) * options.laps > MAX_ROWS:
        raise TraceError(f"{name}: {len(trace.rows)} rows in {options.laps} laps; allowed: up to {MAX_ROWS:,} rows")
    at_s, duration_s = laps(_times(trace, options.seed), options.laps)
    mixture, _ = load_mixture()
    rows = [(row.prompt_tokens or 0, row.output_tokens or 0) for row in trace.rows]
    lengths = np.tile(np.array(rows, np.int64), (options.laps, 1))
    kind = options.kind or kind_of(mixture, lengths[:, 1])
    requests = requests_of(mixture, kind, options.seed, lengths[:, 0], lengths[:, 1])
    whole = annotate(
        name,
        at_s,
        requests,
        options,
        duration_s=duration_s,
        block_hashes=_blocks(trace, options.laps),
    )
    return fit_times(whole, options)


def fit_times(workload: Workload, options: FileOptions) -> Workload:
    """Scales the workload to the wanted rate or speed, and cuts it to the wanted part.

    Raises:
        TraceError: Both rate and speed are given, or the part does not exist.
    """
    if options.rate and options.speed != 1.0:
        raise TraceError(f"{workload.name}: rate is {options.rate:g} and speed is {options.speed:g}; allowed: one of them")
    scaled = workload
    if options.rate or options.speed != 1.0:
        scaled = workload.scaled(options.rate or workload.rate_rps * options.speed)
    if not options.start and not options.duration:
        return scaled
    end_s = options.start + options.duration if options.duration else scaled.duration_s
    if not options.start < end_s <= scaled.duration_s:
        raise TraceError(
            f"{workload.name}: start is {options.start:g} and duration is {options.duration:g}, but it lasts {scaled.duration_s:g} s "
            f"at {scaled.rate_rps:g} requests/s; allowed: a part of that, a lower rate, or more laps of a trace"
        )
    return scaled.window(options.start, end_s if options.duration else None)


def laps(at_s: Floats, count: int) -> tuple[Floats, float]:
    """Repeats the times, each lap a mean gap after the last arrival of the lap before; returns them and the total length."""
    lap_s = span_s(at_s)
    starts = np.repeat(np.arange(count) * lap_s, len(at_s))
    return np.tile(at_s, count) + starts, lap_s * count


def _times(trace: Trace, seed: int) -> Floats:
    known = [row.at_s for row in trace.rows if row.at_s is not None]
    if len(known) < len(trace.rows):
        raise TraceError(f"{trace.source}: rows without a time; allowed: a time for each, or another workload with lengths={trace.source}")
    ticks = ticks_of(trace.rows) if trace.format == "mooncake" else None
    if ticks is None:
        return np.array(known)
    # Times within a tick are sorted, so that rows keep the file's order: a request comes after an earlier one whose prefix it shares.
    tick = np.array(ticks)
    places = stream(seed, "ticks").random(len(tick))
    order = np.lexsort((places, tick))
    return (tick + places[order]) * (MOONCAKE_TICK_MS / 1000.0)


def _blocks(trace: Trace, count: int) -> Blocks | None:
    blocks = tuple(row.blocks for row in trace.rows)
    if not any(blocks):
        return None
    # The prompts of a later lap get new ids; with the same ids they would be cache hits that did not occur.
    step = 1 + max(max(ids) for ids in blocks if ids)
    return tuple(tuple(i + lap * step for i in ids) if lap else ids for lap in range(count) for ids in blocks)
