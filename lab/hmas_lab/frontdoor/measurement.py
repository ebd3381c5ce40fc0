"""The measurement from beginning to end: capacity, every load as often as time allows, each agent left out in turn; and its document."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.runtime.clock import Clock
from hmas.loadgen.results import Result
from hmas_lab.blocks import drawn_order
from hmas_lab.compare import plain
from hmas_lab.frontdoor.arms import Arm, arm_of, capped, without
from hmas_lab.frontdoor.capacity import CapacityPoint
from hmas_lab.frontdoor.cells import cell_of, figures, grouped, ms_words, ratio
from hmas_lab.frontdoor.goals import ByLoad, outcomes, quick_failures
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.runs import Runs, most_good_rps
from hmas_lab.frontdoor.settings import PASS, PLAIN, PRODUCT, STRONG, DoorSettings
from hmas_lab.result_files import VERSION

LONGER = 1.5
Say = Callable[[str], None]
Kept = dict[float, dict[str, list[Result]]]
Keep = Callable[[dict[str, Any]], None]


def _ignore(_document: dict[str, Any]) -> None:
    """Nobody wants the document before its end."""


class Measurement:
    """One measurement.

    Args:
        settings: What is measured.
        load: Where requests come from.
        runs: Makes the runs.
        clock: Bounds the whole: what no longer fits into `budget_s` is left out and said so.
        say: Takes a line for whoever watches.
        keep: Given the document after each load of each repetition, so that a measurement which is broken off leaves what it has.
    """

    def __init__(self, settings: DoorSettings, load: DoorLoad, runs: Runs, clock: Clock, say: Say, *, keep: Keep = _ignore) -> None:
        self._settings = settings
        self._load = load
        self._runs = runs
        self._clock = clock
        self._say = say
        self._keep = keep
        self._until_s = clock.now_s() + settings.budget_s
        self._longest_s = 0.0
        self._by_load: Kept = {}
        self._worth: list[Kept] = []
        self._caps: dict[float, int] = {}
        self._tuning: list[dict[str, Any]] = []
        self._runs_made: list[dict[str, Any]] = []
        self._gaps: dict[str, float] = {}
        self._left_out: list[str] = []

    async def run(self) -> dict[str, Any]:
        """Makes all runs; the document.

        Raises:
            StudyError: A stack did not come up, or nothing good comes out of pass-through.
        """
        settings = self._settings
        points = await self._runs.capacity()
        capacity_rps = settings.capacity_rps or most_good_rps(points)
        self._say(f"capacity: {capacity_rps:.2f} good requests/s")
        if STRONG in settings.arms:
            for load in settings.loads:
                await self._tune(load, capacity_rps)
        for repeat in range(settings.repeats):
            for load in settings.loads:
                await self._one(self._by_load, load, repeat, settings.arms, capacity_rps)
                self._keep(self._document(points, capacity_rps))
            if not repeat:
                for load in settings.worth_loads:
                    await self._leave_out(load, capacity_rps)
        return self._document(points, capacity_rps)

    async def _tune(self, load: float, capacity_rps: float) -> None:
        """Finds the best window of the strong baseline at a load, on requests that no other run has."""
        settings = self._settings
        if len(settings.caps) == 1:
            self._caps[load] = settings.caps[0]
            return
        number = len(settings.loads) * settings.repeats + settings.loads.index(load)
        arrivals = self._load.arrivals(number, rps=load * capacity_rps, seconds=settings.seconds)
        tried = {f"cap-{cap}": capped(cap, self._load.stretch) for cap in settings.caps}
        made = await self._runs.side_by_side(tried, f"load-{load:g}-tuning", arrivals)
        good = {cap: figures(results).good for cap, (results, _) in zip(settings.caps, made.values(), strict=True)}
        self._caps[load] = max(good, key=good.__getitem__)
        self._tuning.append({"load": load, "sent": len(arrivals), "good": {str(cap): count for cap, count in good.items()}})
        self._say(f"load {load:g}, {STRONG}: good requests by window {good}; it has {self._caps[load]}")

    def _arm(self, name: str, load: float) -> Arm:
        return capped(self._caps[load], self._load.stretch) if name == STRONG else arm_of(name)

    async def _leave_out(self, load: float, capacity_rps: float) -> None:
        """Runs the product without each agent in turn, each time beside the whole: what disturbs the machine disturbs both."""
        beside = max(1, self._settings.at_once - 1)
        for first in range(0, len(AGENT_NAMES), beside):
            kept: Kept = {}
            await self._one(kept, load, 0, [PRODUCT, *map(without, AGENT_NAMES[first : first + beside])], capacity_rps)
            self._worth.append(kept)

    async def _one(self, kept: Kept, load: float, repeat: int, arms: Sequence[str], capacity_rps: float) -> None:
        settings, name = self._settings, f"load {load:g}, run {repeat + 1}"
        began_s = self._clock.now_s()
        if began_s + self._longest_s > self._until_s:
            self._left_out.append(f"{name}: {', '.join(arms)}")
            return
        # The same number of a load and a repetition gives the same requests to the arms that leave an agent out.
        number = settings.loads.index(load) + len(settings.loads) * repeat
        arrivals = self._load.arrivals(number, rps=load * capacity_rps, seconds=settings.seconds * (LONGER if load < 0.5 else 1.0))
        order = drawn_order(arms, seed=settings.seed, number=number)
        drawn = {arm: self._arm(arm, load) for arm in order}
        made = await self._runs.side_by_side(drawn, f"load-{load:g}-run-{repeat + 1}", arrivals)
        good: dict[str, int] = {}
        for arm in arms:
            answered, summary = made[arm]
            results = [one for one in answered if one.at_s >= settings.warmup_s]
            kept.setdefault(load, {}).setdefault(arm, []).extend(results)
            self._gaps[f"{name}, {arm}"] = round(summary.max_gap_s, 3)
            found = figures(results)
            good[arm] = found.good
            self._say(
                f"{name}, {arm}: {found.good} good of {found.sent}, {found.unanswered} unanswered, "
                f"TTFT p50 {ms_words(found.ttft_ms_p50)}, p95 {ms_words(found.ttft_ms_p95)}, TPOT p95 {found.tpot_ms_p95:.1f} ms"
            )
        if kept is self._by_load:
            self._runs_made.append({"load": load, "run": repeat + 1, "good": good})
        self._longest_s = max(self._longest_s, self._clock.now_s() - began_s)

    def _document(self, points: Sequence[CapacityPoint], capacity_rps: float) -> dict[str, Any]:
        goals = [msgspec.to_builtins(one) | {"verdict": one.verdict} for one in outcomes(self._by_load)]
        return {
            "version": VERSION,
            "settings": msgspec.to_builtins(self._settings),
            "capacity_rps": round(capacity_rps, 3),
            "stretch": self._load.stretch,
            "capacity": plain(points),
            "summary": {"loads": loads_summary(self._by_load), "goals": goals, "worth": worth_summary(self._worth)},
            "tuning": self._tuning,
            "runs": self._runs_made,
            "quick_failures": quick_failures(self._by_load),
            "left_out": self._left_out,
            "longest_gaps_s": self._gaps,
        }


def loads_summary(by_load: ByLoad) -> list[dict[str, Any]]:
    """Figures and ratios of each load, of all its requests and cell by cell."""
    found = []
    for load, arms in by_load.items():
        by_cell = {name: grouped(results, cell_of) for name, results in arms.items()}
        cells = [{**cell._asdict(), **compared({name: by_cell[name].get(cell, []) for name in arms})} for cell in sorted(by_cell[PRODUCT])]
        rivals = {name: msgspec.to_builtins(ratio(arms[PRODUCT], results)) for name, results in arms.items() if name != PRODUCT}
        found.append({"load": load, **compared(arms), "rivals": rivals, "cells": cells})
    return found


def compared(arms: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """Figures of each arm, and the product's goodput over that of the others."""
    ours = arms[PRODUCT]
    others = [(over, name) for over, name in (("over_pass", PASS), ("over_plain", PLAIN)) if name in arms]
    return {
        "arms": {name: msgspec.to_builtins(figures(results)) for name, results in arms.items()},
        **{over: msgspec.to_builtins(ratio(ours, arms[name])) for over, name in others},
    }


def worth_summary(worth: Sequence[ByLoad]) -> list[dict[str, Any]]:
    """What each agent is worth: goodput with all agents over that without it, on the same requests, side by side.

    Args:
        worth: Runs of the product and, beside it, of it without some of its agents.
    """
    return [
        {"load": load, "agent": agent, "good": figures(theirs).good, "with": msgspec.to_builtins(ratio(arms[PRODUCT], theirs))}
        for runs in worth
        for load, arms in runs.items()
        for agent in AGENT_NAMES
        if (theirs := arms.get(without(agent))) is not None
    ]
