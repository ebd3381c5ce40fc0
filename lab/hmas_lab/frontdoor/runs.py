"""The runs: arms side by side on the same requests, and the capacity that loads are measured by."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hmas.loadgen.process import LoadSpec, Progress, run_process, write_plan
from hmas.loadgen.results import Result, RunSummary, read_results
from hmas.loadgen.workload import Arrival
from hmas.planning import StudyError
from hmas_lab.as_it_comes import Stack
from hmas_lab.frontdoor.arms import Arm, arm_of, running_arm
from hmas_lab.frontdoor.capacity import CapacityPoint, capacity_points, mean_points
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.settings import PASS, TIGHTER, DoorSettings

SETTLE_S = 2.0
"""Between a stack's readiness and its first request: agents report for work."""
CAPACITY_DRAIN_S = 30.0
LEAST_GOOD_RPS = 0.05
ALONE, ALONE_EVERY_S = 8, 4.0
"""Requests sent one by one, and the seconds between them."""
WHOLE_LEAST = 16
"""Tokens of an answer that is not streamed and shows the pace."""
Run = tuple[list[Result], RunSummary]


class Runs:
    """Runs of one measurement.

    Args:
        settings: What is measured.
        load: Where requests come from.
        engines: What each stack's `--engine` is given.
        folder: Plans, results and logs lie here.
        say: Takes a line for whoever watches.
    """

    def __init__(self, settings: DoorSettings, load: DoorLoad, engines: Sequence[str], folder: Path, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._load = load
        self._engines = engines
        self._folder = folder
        self._say = say

    async def capacity(self) -> list[CapacityPoint]:
        """Good requests per second through pass-through, under a load that rises beyond what the engines serve.

        Nothing where the settings name the capacity: only targets are stretched then.

        Raises:
            StudyError: The stack did not come up.
        """
        folder = self._folder / "capacity"
        async with running_arm(arm_of(PASS), self._engines, folder) as stack:
            if self._settings.headroom:
                await self._stretch(stack, folder)
            if self._settings.capacity_rps:
                return []
            low, high = (rate / self._load.stretch for rate in self._settings.ramp)
            ramps = [self._load.ramp(low, high, self._settings.ramp_s, number) for number in range(self._settings.ramps)]
            made = [await self._send(stack, arrivals, folder, drain_s=CAPACITY_DRAIN_S) for arrivals in ramps]
        points = mean_points([capacity_points(results) for results, _ in made])
        for point in points:
            self._say(f"{point.rps:.2f} requests/s arrive: {point.good_share:.0%} of them good")
        return points

    async def _stretch(self, stack: Stack, folder: Path) -> None:
        """Stretches all targets to what the engine can do: see `DoorSettings.headroom`.

        Raises:
            StudyError: It answered no request.
        """
        results, _ = await self._send(stack, self._load.one_by_one(ALONE, ALONE_EVERY_S), folder)
        alone_ms = sorted(r.tpot_ms for r in results if r.tpot_ms > 0.0)
        if not alone_ms:
            # Where nobody streams: with the prompt, which is a small part of it.
            alone_ms = sorted(r.total_ms / r.tokens_each for r in results if r.outcome == "completed" and r.output_tokens >= WHOLE_LEAST)
        if not alone_ms:
            raise StudyError("the engine answered no request of those sent to it one by one")
        tpot_ms = alone_ms[len(alone_ms) // 2]
        self._load.stretch = max(1.0, round(self._settings.headroom * tpot_ms / TIGHTER.tpot_ms, 1))
        self._say(f"TPOT of a request alone is {tpot_ms:.0f} ms: all targets are stretched by {self._load.stretch:g}")

    async def side_by_side(self, arms: Mapping[str, Arm], label: str, arrivals: Sequence[Arrival]) -> dict[str, Run]:
        """The arms by name, in the mapping's order and at most `at_once` of them at a time, on the same requests.

        Raises:
            StudyError: A stack did not come up.
        """
        made: dict[str, Run] = {}
        names = list(arms)
        for first in range(0, len(names), self._settings.at_once):
            group = names[first : first + self._settings.at_once]
            async with AsyncExitStack() as exits:
                folders = [self._folder / f"{label}-{name}" for name in group]
                # One after another: stacks that start at the same time take each other's processor, and so their time to get ready.
                stacks = [
                    await exits.enter_async_context(running_arm(arms[name], self._engines, folder))
                    for name, folder in zip(group, folders, strict=True)
                ]
                await asyncio.sleep(SETTLE_S)
                runs = await asyncio.gather(*(self._send(stack, arrivals, folder) for stack, folder in zip(stacks, folders, strict=True)))
            made |= dict(zip(group, runs, strict=True))
        return made

    async def one(
        self, arm: Arm, label: str, arrivals: Sequence[Arrival], beside: Callable[[Stack], Coroutine[Any, Any, None]] | None = None
    ) -> Run:
        """One configuration by itself, and what is done beside the load.

        Raises:
            StudyError: The stack did not come up.
        """
        folder = self._folder / label
        async with running_arm(arm, self._engines, folder) as stack:
            await asyncio.sleep(SETTLE_S)
            async with asyncio.TaskGroup() as group:
                run = group.create_task(self._send(stack, arrivals, folder, api_keys=dict(arm.keys)))
                if beside is not None:
                    group.create_task(beside(stack))
            return run.result()

    async def _send(self, stack: Stack, arrivals: Sequence[Arrival], folder: Path, **spec: object) -> Run:
        load = LoadSpec(
            url=stack.url,
            model=stack.model,
            length_channel=self._settings.engine if self._settings.forced else "none",
            **{"drain_s": self._settings.drain_s, **spec},  # type: ignore[arg-type]  # fields of LoadSpec
        )
        plan, results = folder / "plan.jsonl", folder / "results.jsonl"
        write_plan(plan, arrivals, load, results)
        summary = await run_process(plan, _ignore)
        return read_results(results), summary


def most_good_rps(points: Sequence[CapacityPoint]) -> float:
    """The capacity: the most good requests per second of a rising load.

    Raises:
        StudyError: Nothing good came out of it.
    """
    found = max((point.good_rps for point in points), default=0.0)
    if found < LEAST_GOOD_RPS:
        raise StudyError(f"pass-through serves {found:.3f} good requests/s; needed: at least {LEAST_GOOD_RPS:g}")
    return found


def _ignore(_progress: Progress) -> None:
    """Progress of single runs is of no use where several run at once."""
