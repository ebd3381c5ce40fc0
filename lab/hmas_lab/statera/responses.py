"""Step, ramp and burst: how the window answers, in overshoot, settling time and steady error, beside AIMD and the best fixed cap."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from hmas.controller.scheduling.settings import SHIPPED
from hmas.engines.sim.profile import Profile, load_profile
from hmas_lab.statera.laws import LAWS, Delayed, Fixed, Statera
from hmas_lab.statera.loop import Course, Reading, Trial, drive
from hmas_lab.statera.plants import steeper

TUNING_SEEDS = (9001, 9002)
"""The best cap is found on these arrivals, which are not reported."""
CAPS = (16, 20, 25, 31, 39, 49, 61, 76, 96, 120, 150, 188, 235)
"""What is tried, a quarter apart."""
GUARDS = {"window alone": 0.0, "with the guard": SHIPPED.tpot_guard}
"""Shares of the gateway's TPOT guard: none, so that the window has to hold TPOT by itself, and what is shipped."""
SMOOTH_S = 5.0
SETTLED_WITHIN = 0.15
"""Share of its final window within which a window counts as settled."""
TAIL_S = 60.0
"""The end of a run, over which the final window is taken."""
SUSTAINED = 0.1
"""Amplitude of the window after settling, as a share of its mean, from which on it counts as oscillating where it is a request or more."""


class ResponseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried.

    Attributes:
        capacity_rps: Rate that the engine completes under the best cap, about: the unit of the rates below.
        tpot_ms, ttft_ms: Targets that every request declares: one target for all is the hardest case, goodput has a cliff there.
        slopes, delays_s: The grid of plants: factors on the slope, and how old a view is when statera gets it.
    """

    profile: str = "a100-qwen3-8b"
    capacity_rps: float = 6.5
    tpot_ms: float = 40.0
    ttft_ms: float = 3000.0
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    slopes: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    delays_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0)
    grid_seeds: tuple[int, ...] = (1, 2)


SHAPES: dict[str, tuple[list[float], list[float]]] = {
    "step": ([0, 60, 240], [0.4, 1.3]),
    "ramp": ([0, 60, *range(70, 181, 10), 240], [0.4, *(0.4 + 0.075 * step for step in range(1, 13)), 1.3]),
    "burst": ([at for lap in range(8) for at in (30.0 * lap, 30.0 * lap + 26.0)] + [240], [0.55, 2.6] * 8),
}
"""Edges in seconds and rates in capacities. A burst of 4 s at 2.6 closes each half minute."""
CHANGE_S = {"step": 60.0, "ramp": 180.0, "burst": 60.0}
"""When the change is complete: what comes before is not scored, and settling counts from here."""


def trial(settings: ResponseSettings, shape: str, seed: int) -> Trial:
    """A shape at the settings' rates."""
    edges, factors = SHAPES[shape]
    rates = [factor * settings.capacity_rps for factor in factors]
    return Trial(edges_s=list(edges), rates=rates, ttft_ms=settings.ttft_ms, tpot_ms=settings.tpot_ms, seed=seed)


def best_cap(profile: Profile, trials: Sequence[Trial], from_s: float, tpot_guard: float = 0.0) -> int:
    """The fixed cap of most goodput on these trials; of equals the smaller."""
    ladder = [cap for cap in CAPS if cap <= profile.max_num_seqs] or [profile.max_num_seqs]

    def goodput(cap: int) -> float:
        return fmean(drive(profile, one, Fixed(), start=cap, from_s=from_s, tpot_guard=tpot_guard).goodput_rps for one in trials)

    found = {cap: goodput(cap) for cap in ladder}
    return max(ladder, key=lambda cap: (found[cap], -cap))


def study(settings: ResponseSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Every shape under every law, without the guard and with it; figures are means over the seeds, traces are those of the first."""
    profile = load_profile(settings.profile)
    start = round(2.0 * profile.max_num_seqs**0.5)
    rows: list[dict[str, Any]] = []
    traces: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {guard: {shape: {} for shape in SHAPES} for guard in GUARDS}
    for (guard, share), shape in product(GUARDS.items(), SHAPES):
        from_s = CHANGE_S[shape]
        cap = best_cap(profile, [trial(settings, shape, seed) for seed in TUNING_SEEDS], from_s, share)
        say(f"{guard}, {shape}: best fixed cap {cap}")
        for law, make in LAWS.items():
            first = cap if law == "fixed" else start
            courses = [
                drive(profile, trial(settings, shape, seed), make(first), start=first, from_s=from_s, tpot_guard=share)
                for seed in settings.seeds
            ]
            figures = [figures_of(course, from_s, best=cap) for course in courses]
            means = {name: _mean([one[name] for one in figures]) for name in figures[0]}
            rows.append({"guard": guard, "shape": shape, "law": law, "best_cap": cap, **means})
            traces[guard][shape][law] = [(reading.at_s, float(reading.n_run)) for reading in courses[0].readings[::5]]
            came_to = f"goodput {means['goodput_rps']:.2f}/s, overshoot {means['overshoot']:.0%}, settled {means['settling_s']} s"
            say(f"{guard}, {shape}, {law}: {came_to}")
    return {"rows": rows, "traces": traces}


def grid(settings: ResponseSettings, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Statera on plants of every slope, told late by every delay, at a step into saturation, without the guard and with it."""
    rows = []
    for (guard, share), slope, delay_s in product(GUARDS.items(), settings.slopes, settings.delays_s):
        profile = steeper(load_profile(settings.profile), slope)
        found = []
        for seed in settings.grid_seeds:
            law = Delayed(Statera(), delay_s)
            course = drive(profile, trial(settings, "step", seed), law, start=32, from_s=CHANGE_S["step"], tpot_guard=share)
            found.append(figures_of(course, CHANGE_S["step"], best=0))
        row = {
            "guard": guard,
            "slope": slope,
            "delay_s": delay_s,
            "amplitude": round(fmean(one["amplitude"] for one in found), 4),
            "window": round(fmean(one["final"] for one in found), 2),
            "goodput_rps": round(fmean(one["goodput_rps"] for one in found), 3),
            "reversals_per_min": round(fmean(one["reversals_per_min"] for one in found), 2),
        }
        rows.append(row)
        say(f"{guard}, slope x{slope:g}, delay {delay_s:g} s: window {row['window']:g}, amplitude {row['amplitude']:.1%}")
    return rows


def oscillates(row: Mapping[str, Any]) -> bool:
    """Whether a row of the grid swings for good: by a tenth of its window and by a request, for windows are whole numbers."""
    return bool(row["amplitude"] >= SUSTAINED and row["amplitude"] * row["window"] >= 1.0)


def figures_of(course: Course, change_s: float, *, best: int) -> dict[str, float]:
    """Step-response figures of a window.

    `final`: mean over the last minute. `overshoot`: how far above it the window went after the change, smoothed over 5 s. `settling_s`:
    from the change until it stays within 15 % of it, smoothed likewise; infinite where it does not. `steady_error`: the final window off
    the best fixed cap. `amplitude`: half the range of the last minute without its slow trend, over its mean. `pressure_p90`: of TPOT over
    target after the change.
    """
    after = [reading for reading in course.readings if reading.at_s >= change_s]
    at, smooth = _smooth(after)
    raw = np.array([float(reading.n_run) for reading in after])
    tail = at >= at[-1] - TAIL_S
    final = float(raw[tail].mean())
    outside = np.flatnonzero(np.abs(smooth - final) > max(1.0, SETTLED_WITHIN * final))
    settling = 0.0 if not len(outside) else float(at[outside[-1]] - change_s)
    trend = np.polyval(np.polyfit(at[tail], smooth[tail], 1), at[tail])
    swing = smooth[tail] - trend
    signs = np.sign(swing[np.abs(swing) > 0.02 * final])
    return {
        "goodput_rps": course.goodput_rps,
        "final": final,
        "overshoot": max(0.0, float(smooth.max()) / final - 1.0),
        "settling_s": settling if settling < at[-1] - change_s - SMOOTH_S else float("inf"),
        "steady_error": final / best - 1.0 if best else 0.0,
        "amplitude": float(swing.max() - swing.min()) / 2.0 / final,
        "reversals_per_min": float(np.count_nonzero(np.diff(signs))) * 60.0 / TAIL_S,
        "pressure_p90": float(np.quantile([reading.pressure for reading in after], 0.9)),
        "tpot_ratio_p95": course.tpot_ratio_p95,
    }


def _smooth(readings: Sequence[Reading]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    at = np.array([reading.at_s for reading in readings])
    raw = np.array([float(reading.n_run) for reading in readings])
    width = max(1, round(SMOOTH_S / float(np.median(np.diff(at)))))
    padded = np.pad(raw, (width // 2, width - 1 - width // 2), mode="edge")
    return at, np.convolve(padded, np.ones(width) / width, mode="valid")


def _mean(values: Sequence[float]) -> float | None:
    """The mean, None where one of them is infinite: it never came to rest."""
    mean = fmean(values)
    return round(mean, 4) if np.isfinite(mean) else None
