"""H-MAS's non-stationary workloads: the time-varying stress test (Eq. 13), the semantic shift (D.2), and slices of one time scale (4.2).

The paper gives Eq. 13 and the order of the semantic regimes in full. It describes the three slices only in words; their numbers here are
this project's own, taken from the paper's description of the Azure trace if it has them (see docs/workloads.md).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.loadgen.arrivals import piecewise_times, poisson_times
from hmas.loadgen.dataset import Mixture, load_mixture
from hmas.loadgen.requests import Floats, Regime, draw_requests, whole_mixture
from hmas.loadgen.streams import stream
from hmas.workloads.drawn import lengths_for
from hmas.workloads.options import Options, Positive
from hmas.workloads.replay import ReplayOptions, replay
from hmas.workloads.table import Workload, annotate

PHASES = 3
INTERACTIVE = (TaskType.QA, TaskType.DIALOGUE, TaskType.TRANSLATION)
"""Latency-sensitive tasks, which H-MAS E.5 calls interactive."""
LONG = (
    TaskType.LETTER_DRAFTING,
    TaskType.MATH_REASONING,
    TaskType.ESSAY_GENERATION,
    TaskType.LONG_FORM_GENERATION,
    TaskType.RESEARCH_AND_COMMUNICATION,
)
"""Throughput-intensive tasks, long-form and reasoning: the rows of Table 6 with a TTFT target of 8 s or more."""

Share = Annotated[float, Meta(ge=0, le=1)]


class PhaseOptions(Options, frozen=True, kw_only=True):
    """Options of the stress test.

    Attributes:
        rate: lambda_0, requests per second; also the mean over all three phases.
        phase: Length of one of the three phases, seconds.
        lengths, kind: As in `DrawnOptions`.
    """

    rate: Positive = 40.0
    phase: Positive = 200.0
    lengths: str = "mixed"
    kind: str = ""


def phases(options: PhaseOptions, _path: Path | None) -> Workload:
    """Eq. 13: a steady phase at 0.6 of the rate, a surge at 1.4, then ten seconds at 1.8 and ten at 0.2 in turn."""
    duration_s = PHASES * options.phase
    swings = np.arange(2 * options.phase, duration_s, 10.0)
    edges = np.concatenate(([0.0, options.phase], swings, [duration_s]))
    factors = np.concatenate(([0.6, 1.4], np.where(np.arange(len(swings)) % 2 == 0, 1.8, 0.2)))
    at_s = piecewise_times(edges, factors * options.rate, stream(options.seed, "arrivals"))
    return annotate("phases", at_s, lengths_for(len(at_s), options.seed, options.lengths, options.kind), options, duration_s=duration_s)


class SemanticOptions(Options, frozen=True, kw_only=True):
    """Options of the semantic shift.

    Attributes:
        rate: Mean rate, requests per second.
        phase: Length of one of the three regimes, seconds.
        laps: As in `ReplayOptions`, if the times come from a trace.
    """

    rate: Positive = 40.0
    phase: Positive = 200.0
    laps: Annotated[int, Meta(ge=1, le=1000)] = 1


def semantic(options: SemanticOptions, path: Path | None) -> Workload:
    """Interactive requests, then long generations, then both mixed with code, at one rate: only the tasks change.

    The times are those of an Azure trace if one is named, as in the paper, else Poisson.
    """
    duration_s = PHASES * options.phase
    if path is None:
        at_s = poisson_times(options.rate, duration_s, stream(options.seed, "arrivals"))
    else:
        at_s = replay("azure", path, ReplayOptions(rate=options.rate, duration=duration_s, laps=options.laps, seed=options.seed)).at_s
    mixture, _ = load_mixture()
    which = np.minimum(PHASES - 1, at_s // options.phase).astype(np.int64)
    both = Regime(kinds=whole_mixture(mixture).kinds, tasks={"conv": _even_halves(mixture)})
    regimes = [conversation(mixture, INTERACTIVE), conversation(mixture, LONG), both]
    return annotate("semantic", at_s, draw_requests(mixture, len(at_s), options.seed, regimes, which), options, duration_s=duration_s)


class SliceOptions(Options, frozen=True, kw_only=True):
    """Options of every slice: mean rate in requests per second, and length in seconds."""

    rate: Positive = 40.0
    duration: Positive = 600.0


class BurstOptions(SliceOptions, frozen=True, kw_only=True):
    """Options of the fast slice.

    Attributes:
        height: Rate within a burst, as a multiple of the mean. The Azure trace's peak second has 3.9 times its mean (H-MAS section 2).
        burst: Length of a burst, seconds. With that height, 1.3 s add as many requests as 3.8 s at the mean; the trace's largest burst adds
            3.7 s of them (167 requests at 45.15 per second).
        period: From one burst to the next, seconds.
    """

    height: Positive = 3.9
    burst: Positive = 1.3
    period: Positive = 20.0


def burst(options: BurstOptions, _path: Path | None) -> Workload:
    """The fast slice: short bursts on a lowered base rate, which keeps the long-run mean; the mix does not change.

    Raises:
        TraceError: The bursts alone exceed the mean.
    """
    share = options.burst / options.period
    rest = (1.0 - options.height * share) / (1.0 - share) if share < 1.0 else -1.0
    if rest < 0.0:
        raise TraceError(
            f"burst: height * burst / period is {options.height * share:g}; allowed: up to 1, with burst below period, to keep the mean"
        )
    starts = np.arange(0.0, options.duration, options.period)
    # A burst is at the end of its period, so that a run begins with the base rate for comparison.
    edges = np.column_stack((starts, starts + options.period - options.burst)).ravel()
    factors = np.tile([rest, options.height], len(starts))[edges < options.duration]
    edges = np.append(edges[edges < options.duration], options.duration)
    at_s = piecewise_times(edges, factors * options.rate, stream(options.seed, "arrivals"))
    mixture, _ = load_mixture()
    requests = draw_requests(mixture, len(at_s), options.seed, [whole_mixture(mixture)])
    return annotate("burst", at_s, requests, options, duration_s=options.duration)


class DriftOptions(SliceOptions, frozen=True, kw_only=True):
    """Options of the medium slice: the share of long generations at its beginning and its end; the rest is interactive."""

    first: Share = 0.1
    last: Share = 0.7


def drift(options: DriftOptions, _path: Path | None) -> Workload:
    """The medium slice: steady Poisson arrivals whose mix shifts linearly from interactive requests to long generations."""
    at_s = poisson_times(options.rate, options.duration, stream(options.seed, "arrivals"))
    long_share = options.first + (options.last - options.first) * at_s / options.duration
    return _with_long_share("drift", at_s, long_share, options)


class ShiftOptions(SliceOptions, frozen=True, kw_only=True):
    """Options of the slow slice.

    Attributes:
        before: Rate in the first half, as a multiple of the mean; that of the second half follows from the mean.
        first, last: Share of long generations in the first and in the second half.
    """

    before: Annotated[float, Meta(gt=0, lt=2)] = 0.6
    first: Share = 0.1
    last: Share = 0.5


def shift(options: ShiftOptions, _path: Path | None) -> Workload:
    """The slow slice: half-way both the arrival rate and the mix change permanently; the mean over both halves is `rate`."""
    half_s = options.duration / 2.0
    rates = np.array([options.before, 2.0 - options.before]) * options.rate
    at_s = piecewise_times([0.0, half_s, options.duration], rates, stream(options.seed, "arrivals"))
    return _with_long_share("shift", at_s, np.where(at_s < half_s, options.first, options.last), options)


def conversation(mixture: Mixture, tasks: Sequence[TaskType]) -> Regime:
    """Conversation requests of certain task types only, by their own weights."""
    kind = mixture.kinds["conv"]
    return Regime(kinds={"conv": 1.0}, tasks={"conv": {task: kind.tasks[task].weight for task in tasks}})


def _even_halves(mixture: Mixture) -> dict[TaskType, float]:
    """Interactive and long tasks with the same total weight, which gives the widest spread."""
    weights = {task: mixture.kinds["conv"].tasks[task].weight for task in (*INTERACTIVE, *LONG)}
    totals = {group: sum(weights[task] for task in group) for group in (INTERACTIVE, LONG)}
    return {task: weight / totals[INTERACTIVE if task in INTERACTIVE else LONG] for task, weight in weights.items()}


def _with_long_share(name: str, at_s: Floats, long_share: Floats, options: SliceOptions) -> Workload:
    mixture, _ = load_mixture()
    which = (stream(options.seed, "regimes").random(len(at_s)) < long_share).astype(np.int64)
    regimes = [conversation(mixture, INTERACTIVE), conversation(mixture, LONG)]
    return annotate(name, at_s, draw_requests(mixture, len(at_s), options.seed, regimes, which), options, duration_s=options.duration)
