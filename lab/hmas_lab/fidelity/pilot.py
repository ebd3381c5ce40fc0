"""LLM-Pilot's deployments: fitted at some user counts, predicted at all others that the files hold."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence

import msgspec

from hmas_lab.fidelity.pilot_data import Deployment, Measured, PilotRun
from hmas_lab.fidelity.pilot_fit import fit_deployment
from hmas_lab.fidelity.pilot_model import Deployed, errors, predict

DEFAULT_FIT = (1, 4, 32, 128)
"""User counts to fit: both ends, and two between. What lies between these is predicted."""

PREDICT_SECONDS = 120.0


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One run that was predicted and not fitted.

    Attributes:
        fitted: User counts that its deployment was fitted to.
        errors: Signed relative errors by quantity: `tpot`, `throughput`, `ttft`.
        covered: As in `PilotRun`.
    """

    deployment: Deployment
    users: int
    fitted: tuple[int, ...]
    measured: Measured
    predicted: Measured
    errors: dict[str, float]
    covered: float


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment, the user counts to fit, and those to predict."""

    runs: tuple[PilotRun, ...]
    fit: tuple[int, ...]
    hold: tuple[int, ...]


def split(runs: Mapping[int, PilotRun], fit: Sequence[int]) -> Job | None:
    """Fits the counts in `fit` that are there, predicts all others; None where fewer than two can be fitted or none is left.

    A run whose log is not whole is not fitted: its figures are not those of its load.
    """
    seen = tuple(users for users in sorted(runs) if users in fit and _fittable(runs[users]))
    held = tuple(users for users in sorted(runs) if users not in fit and runs[users].measured is not None)
    return Job(runs=tuple(runs.values()), fit=seen, hold=held) if len(seen) >= 2 and held else None


def leave_out(runs: Mapping[int, PilotRun]) -> list[Job]:
    """One job per user count: it is predicted from all the others. The least and the greatest are extrapolations."""
    counts = [users for users in sorted(runs) if _fittable(runs[users])]
    if len(counts) < 3:
        return []
    return [Job(runs=tuple(runs.values()), fit=tuple(c for c in counts if c != users), hold=(users,)) for users in counts]


def _fittable(run: PilotRun) -> bool:
    return run.measured is not None and bool(run.lengths) and run.whole


def run_job(job: Job) -> tuple[Deployed, list[Held]]:
    """Fits and predicts."""
    runs = {run.users: run for run in job.runs}
    what = fit_deployment([runs[users] for users in job.fit])
    found = []
    for users in job.hold:
        run = with_lengths(runs[users], runs)
        assert run.measured is not None, "only runs with figures are held out"
        predicted = predict(what, run, seconds=min(PREDICT_SECONDS, run.seconds))
        found.append(
            Held(
                deployment=run.deployment,
                users=users,
                fitted=job.fit,
                measured=run.measured,
                predicted=predicted,
                errors={name: round(value, 5) for name, value in errors(predicted, run.measured).items()},
                covered=round(run.covered, 4),
            )
        )
    return what, found


def run_jobs(
    jobs: Sequence[Job], *, processes: int = 1, on_done: Callable[[int, int], None] | None = None
) -> list[tuple[Deployed, list[Held]]]:
    """All jobs, in their order; `on_done` hears how many of how many are done."""
    done: list[tuple[Deployed, list[Held]]] = []
    if processes <= 1:
        for job in jobs:
            done.append(run_job(job))
            if on_done is not None:
                on_done(len(done), len(jobs))
        return done
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for result in pool.imap(run_job, jobs):
            done.append(result)
            if on_done is not None:
                on_done(len(done), len(jobs))
    return done


def with_lengths(run: PilotRun, others: Mapping[int, PilotRun]) -> PilotRun:
    """The run itself, or, where its requests are not in the files, with the lengths of the run of the nearest number of users."""
    if run.lengths:
        return run
    nearest = min((other for other in others.values() if other.lengths), key=lambda other: (abs(other.users - run.users), other.users))
    return msgspec.structs.replace(run, lengths=nearest.lengths)
