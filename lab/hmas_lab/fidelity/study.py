"""The fidelity report: every source of measurements that is there, the errors on what was held out, and where it fails."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hmas.controller.core.errors import TraceError
from hmas_lab.fidelity import energy
from hmas_lab.fidelity.energy_data import Point, Sweep, read_energy
from hmas_lab.fidelity.pilot import DEFAULT_FIT, Held, Job, leave_out, run_jobs, split
from hmas_lab.fidelity.pilot_data import COVERED, by_deployment, read_pilot
from hmas_lab.fidelity.plain import is_compiled, report_from_sources

REQUESTS = "profiles/llm_pilot_requests.csv.gz"
SUMMARY = "profiles/llm_pilot_summary.csv"
ENERGY = "profiles/ml_energy_llm.csv"
GOALS: Mapping[str, float] = {"tpot": 0.07, "throughput": 0.07, "ttft": 0.12}
WORST = 12

Tell = Callable[[str], None]


def report(
    data_dir: Path | None,
    plots: Path | None = None,
    *,
    more: Sequence[Path] = (),
    fit_users: Sequence[int] = DEFAULT_FIT,
    cross_validate: bool = False,
    gpu: str = "H100",
    processes: int = 1,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Fits and predicts everything that the data folder holds. Where the engine model is compiled, a process without that does it.

    Args:
        data_dir: Folder with LLM-Pilot's logs (`profiles/llm_pilot_*.csv*`) and ML.ENERGY's sweeps (`profiles/ml_energy_llm.csv`); what is
            not there is left out. None takes `more` alone.
        plots: Folder for `fidelity-pilot.svg` and `fidelity-batch.svg`; None for no plots.
        more: Further files of LLM-Pilot's form; their runs are added to those of the folder.
        fit_users: User counts to fit; every other count is predicted.
        cross_validate: Predicts besides each user count from all others, in turn.
        gpu: Whose sweeps of ML.ENERGY are taken.
        processes: Deployments fitted at once.
        tell: Hears about progress.

    Returns:
        JSON-able: `llm_pilot` (`split`, and `leave_out` where asked for) and `ml_energy`, each with medians of absolute relative errors,
        the held-out runs and the worst of them.

    Raises:
        TraceError: A file cannot be read, or nothing is there to compare with; names file, row and column.
    """
    if is_compiled():
        options = ["--fit-users", ",".join(map(str, fit_users)), "--gpu", gpu, "--processes", str(processes)]
        options += ["--data", str(data_dir)] if data_dir is not None else []
        options += ["--out", str(plots)] if plots is not None else []
        options += [word for path in more for word in ("--llm-pilot", str(path))] + ["--cross-validate"] * cross_validate
        return report_from_sources(options)
    say = tell or (lambda _text: None)
    document: dict[str, Any] = {"goals": dict(GOALS)}
    files = [path for path in (data_dir / REQUESTS, data_dir / SUMMARY) if path.is_file()] if data_dir is not None else []
    files += more
    if files:
        document["llm_pilot"] = _pilot(files, fit_users, cross_validate=cross_validate, processes=processes, plots=plots, say=say)
    if data_dir is not None and (data_dir / ENERGY).is_file():
        document["ml_energy"] = _energy(data_dir / ENERGY, gpu, plots=plots, say=say)
    if len(document) == 1:
        raise TraceError(f"{data_dir}: nothing to compare with; wanted {REQUESTS} with {SUMMARY}, or {ENERGY}")
    return document


def _pilot(
    files: Sequence[Path], fit_users: Sequence[int], *, cross_validate: bool, processes: int, plots: Path | None, say: Tell
) -> dict[str, Any]:
    deployments = list(by_deployment(read_pilot(files)))
    jobs = [job for _, runs in deployments if (job := split(runs, fit_users)) is not None]
    if not jobs:
        users = sorted({count for _, runs in deployments for count in runs})
        raise TraceError(f"no deployment has two of the user counts {list(fit_users)} to fit and another to predict; there are: {users}")
    held = _held(jobs, processes, say)
    document: dict[str, Any] = {"fit_users": list(fit_users), "split": _errors_of(held)}
    if cross_validate:
        document["leave_out"] = _errors_of(_held([job for _, runs in deployments for job in leave_out(runs)], processes, say))
    if plots is not None:
        _pilot_plot(plots / "fidelity-pilot.svg", held)
    return document


def _held(jobs: Sequence[Job], processes: int, say: Tell) -> list[Held]:
    done = run_jobs(jobs, processes=processes, on_done=lambda number, of: say(f"LLM-Pilot: {number} of {of} fits"))
    return [one for _, held in done for one in held]


def _errors_of(every: Sequence[Held]) -> dict[str, Any]:
    """Errors over the runs whose logs are whole; the others stand by themselves."""
    held = [one for one in every if one.covered >= COVERED]
    broken = [one for one in every if one.covered < COVERED]
    worst = sorted(held, key=lambda one: -max(abs(one.errors[name]) / GOALS[name] for name in GOALS))[:WORST]
    return {
        "runs": len(held),
        "median": {name: _median(abs(one.errors[name]) for one in held) for name in GOALS},
        "p90": {name: _quantile((abs(one.errors[name]) for one in held), 0.9) for name in GOALS},
        "by_users": {
            str(users): {name: _median(abs(one.errors[name]) for one in held if one.users == users) for name in GOALS}
            for users in sorted({one.users for one in held})
        },
        "median_of_all": {name: _median(abs(one.errors[name]) for one in every) for name in GOALS},
        "worst": [_row(one) | {"why": why(one)} for one in worst],
        "not_whole": [_row(one) | {"why": why(one)} for one in broken],
        "held_out": [_row(one) for one in held],
    }


def why(one: Held) -> str:
    """What is known to stand behind a large error, in words; empty where nothing is."""
    reasons = []
    if one.covered < COVERED:
        reasons.append(f"the log's requests fill {one.covered:.0%} of the users' time: the others failed or did not end, and left no row")
    if one.users < min(one.fitted) or one.users > max(one.fitted):
        reasons.append("outside the user counts that were fitted")
    if one.measured.sampled:
        reasons.append("no summary row: the figures are of sampled requests")
    if abs(one.errors["ttft"]) > GOALS["ttft"] and one.users <= 4:
        reasons.append("with so few users a TTFT hangs on which prompts happen to meet")
    return "; ".join(reasons)


def _row(one: Held) -> dict[str, Any]:
    model, gpu, gpus = one.deployment
    return {
        "model": model,
        "gpu": gpu,
        "n_gpus": gpus,
        "users": one.users,
        "fitted": list(one.fitted),
        "errors": one.errors,
        "measured": _figures(msgspec.to_builtins(one.measured)),
        "predicted": _figures(msgspec.to_builtins(one.predicted)),
    }


def _figures(measured: Mapping[str, Any]) -> dict[str, float]:
    return {name: round(float(measured[name]), 3) for name in ("tpot_ms", "ttft_ms", "tokens_per_s")}


def _energy(path: Path, gpu: str, *, plots: Path | None, say: Tell) -> dict[str, Any]:
    sweeps = read_energy(path, gpu=gpu)
    found = energy.study(sweeps, energy.every_other) + energy.study(sweeps, lambda points: energy.every_other(points, odd=True))
    found.sort(key=lambda one: (one.sweep, one.batch))
    sparse = energy.study(sweeps, energy.all_but_three)
    composed = energy.unfitted(sweeps)
    say(f"ML.ENERGY: {len(found)} batch sizes of {len({one.sweep for one in found})} sweeps on {gpu} predicted")
    if plots is not None:
        _energy_plot(plots / "fidelity-batch.svg", sweeps, found)
    worst = sorted(found, key=lambda one: -abs(one.error))[:WORST]
    return {
        "gpu": gpu,
        "runs": len(found),
        "sweeps": len({one.sweep for one in found}),
        "median": {"tpot": _median(abs(one.error) for one in found)},
        "p90": {"tpot": _quantile((abs(one.error) for one in found), 0.9)},
        "three_points": {"runs": len(sparse), "median": {"tpot": _median(abs(one.error) for one in sparse)}},
        "composed": {
            "runs": len(composed),
            "profiles": sorted({name for one in composed if (name := energy.ready_profile(one.sweep)) is not None}),
            "median": {"tpot": _median(abs(one.error) for one in composed)},
            "held_out": [_energy_row(one) for one in composed],
        },
        "by_task": {
            task: _median(abs(one.error) for one in found if one.sweep.task == task) for task in sorted({one.sweep.task for one in found})
        },
        "worst": [_energy_row(one) for one in worst],
        "held_out": [_energy_row(one) for one in found],
    }


def _energy_row(one: energy.Prediction) -> dict[str, Any]:
    sweep = one.sweep
    return {
        "model": sweep.model,
        "n_gpus": sweep.gpus,
        "tp": sweep.tp,
        "ep": sweep.ep,
        "task": sweep.task,
        "batch": one.batch,
        "itl_ms": round(one.itl_ms, 3),
        "predicted_ms": round(one.predicted_ms, 3),
        "error": round(one.error, 5),
    }


def _pilot_plot(path: Path, held: Sequence[Held]) -> None:
    # matplotlib takes half a second to import, and only plots need it.
    from hmas_lab.fidelity.plots import Cloud, against  # noqa: PLC0415

    fields = {"tpot": ("TPOT, ms", "tpot_ms"), "throughput": ("throughput, tokens/s", "tokens_per_s"), "ttft": ("TTFT, ms", "ttft_ms")}
    panels = {
        title: [
            Cloud(f"{users} users", [(getattr(one.measured, field), getattr(one.predicted, field)) for one in held if one.users == users])
            for users in sorted({one.users for one in held})
        ]
        for title, field in fields.values()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    against(path, panels, {fields[name][0]: goal for name, goal in GOALS.items()})


def _energy_plot(path: Path, sweeps: Mapping[Sweep, Sequence[Point]], found: Sequence[energy.Prediction]) -> None:
    from hmas_lab.fidelity.plots import sweeps as draw_sweeps  # noqa: PLC0415 - as above

    predicted_sweeps = sorted({one.sweep for one in found})
    tasks = [sweep.task for sweep in predicted_sweeps]
    # One task's sweeps make a picture that can still be read.
    shown = max(sorted(set(tasks)), key=tasks.count, default="")
    lines = {}
    for sweep in (one for one in predicted_sweeps if one.task == shown):
        measured = [(float(point.batch), point.itl_ms) for point in sweeps[sweep]]
        predicted = [(float(one.batch), one.predicted_ms) for one in found if one.sweep == sweep]
        lines[f"{sweep.model.rsplit('/', 1)[-1]}, {sweep.gpus} x {sweep.gpu}"] = (measured, predicted)
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_sweeps(path, lines)


def _median(values: Iterable[float]) -> float | None:
    return _quantile(values, 0.5)


def _quantile(values: Iterable[float], share: float) -> float | None:
    """Rounded as the report has it; None where there is nothing to take it of."""
    listed = list(values)
    return round(float(np.quantile(listed, share)), 5) if listed else None
