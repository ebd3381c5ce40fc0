"""One engine model under a law for its window, with everything about the loop written down as it goes."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from hmas.agents.qos.agent import make_agent
from hmas.controller.config.schema import Config
from hmas.controller.core.messages import ShortView
from hmas.controller.core.types import Controls, Estimates, Request
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import Periodic, SimulationResult, simulate
from hmas.engines.sim.profile import Profile
from hmas.loadgen.arrivals import piecewise_times
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.requests import draw_requests, whole_mixture
from hmas.loadgen.streams import stream
from hmas.planning.case import PRESETS, Case
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.running import build
from hmas.workloads.options import Options
from hmas.workloads.table import Workload, annotate
from hmas_lab.statera.laws import Law

KIND = "conv"


class Reading(msgspec.Struct, frozen=True):
    """The loop in one cycle: window, in flight, waiting, and TPOT pressure (90 % quantile over its target)."""

    at_s: float
    n_run: int
    in_flight: int
    queued: int
    pressure: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives: rates between edges (seconds, requests per second), targets for all, and the seed of the draws."""

    edges_s: list[float]
    rates: list[float]
    ttft_ms: Annotated[float, Meta(gt=0)] = 3000.0
    tpot_ms: Annotated[float, Meta(gt=0)] = 40.0
    seed: int = 1

    @property
    def duration_s(self) -> float:
        """Length of the arrivals."""
        return self.edges_s[-1]


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial went: readings by cycle; goodput in requests per second; TPOT p95 over its target, of what was served."""

    readings: list[Reading]
    goodput_rps: float
    completed_rps: float
    tpot_ratio_p95: float


def workload(trial: Trial) -> Workload:
    """Arrivals of the trial's rates with the lengths of conversations; all declare the trial's targets."""
    at_s = piecewise_times(trial.edges_s, trial.rates, stream(trial.seed, "arrivals"))
    mixture, _ = load_mixture()
    requests = draw_requests(mixture, len(at_s), trial.seed, [whole_mixture(mixture, KIND)])
    options = Options(seed=trial.seed, ttft_ms=trial.ttft_ms, tpot_ms=trial.tpot_ms)
    return annotate("trial", at_s, requests, options, duration_s=trial.duration_s)


def drive(profile: Profile, trial: Trial, law: Law, *, start: int, from_s: float = 0.0, tpot_guard: float = 0.0) -> Course:
    """Simulates a trial: first come first served, shedding, no fence; without a guard the window alone decides.

    Args:
        profile: The engine.
        trial: What arrives.
        law: Who sets the window, each cycle of the gateway's tick.
        start: Window to begin with.
        from_s: Arrivals before this are not scored.
        tpot_guard: Share of the gateway's TPOT guard, 0 for none.
    """
    kind = Kind(profile=profile, n_run=profile.max_num_seqs, token_budget=profile.max_num_batched_tokens, model=profile.model)
    admission = msgspec.structs.replace(PRESETS["shed"], tpot_guard=tpot_guard)
    case = Case(workload="", fleet=Fleet(groups=[Group(kind=kind, count=1)]), policy="fcfs", admission=admission)
    scheduler, engines = build(case)
    (name,) = engines
    scheduler.set_controls(name, Controls(n_run=start))
    config, history, readings = Config(), History(), list[Reading]()
    qos = make_agent(config).model

    def on_end(ended: Ended, now_s: float) -> None:
        completion = completion_of(ended, now_s)
        history.learn(completion)
        qos.complete(completion, now_s)

    def estimate(request: Request, _now_s: float) -> Estimates:
        return history.estimate(request)

    def cycle(now_s: float, scheduler: Scheduler, _engines: object) -> None:
        for view in qos.observe(scheduler.snapshot(now_s, "lab"), now_s):
            if isinstance(view, ShortView):
                for instance, n_run in law.observe(view, now_s).items():
                    scheduler.set_controls(instance, Controls(n_run=n_run))
                seen = view.instances[0]
                readings.append(Reading(now_s, seen.n_run, seen.in_flight, view.queued, seen.tpot_pressure))

    arrivals = workload(trial).arrivals(model=profile.model, estimate=estimate)
    control = Periodic(every_s=config.scheduler.tick_s, run=cycle)
    made = simulate(arrivals, engines, scheduler, controls=[control], on_end=on_end)
    return _course(made, readings, trial, from_s)


def _course(made: SimulationResult, readings: Sequence[Reading], trial: Trial, from_s: float) -> Course:
    scored = [record for record in made.records if record.arrival_s >= from_s]
    span_s = trial.duration_s - from_s
    ratios = [record.tpot_ms / trial.tpot_ms for record in scored if record.tpot_ms > 0.0]
    return Course(
        readings=[reading for reading in readings if reading.at_s <= trial.duration_s],
        goodput_rps=sum(record.slo_met for record in scored) / span_s,
        completed_rps=len(ratios) / span_s,
        tpot_ratio_p95=float(np.quantile(ratios, 0.95)) if ratios else 0.0,
    )
