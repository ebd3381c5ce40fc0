"""The study: speeds and capacity first, then blocks in which every router gets the same requests, in an order that is drawn for it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hmas.demo.calibration import middle_rps
from hmas.planning import StudyError
from hmas_lab.blocks import drawn_order
from hmas_lab.compare import plain
from hmas_lab.frontdoor.arms import PASS_THROUGH, Arm
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.runs import Run, Runs
from hmas_lab.frontdoor.settings import TARGETS, TIGHTER, DoorSettings
from hmas_lab.result_files import VERSION
from hmas_lab.spoilt import rejected, until_quiet
from hmas_lab.unequal.figures import row_of, summary
from hmas_lab.unequal.settings import FAST, OURS, ROUTERS, SLOW, Settings
from hmas_lab.unequal.speeds import Speed, check_alive, ratio, speed_of

ASKED = 3
"""Prompts by which a speed is measured."""
BACKLOG, WINDOW = {FAST: 36, SLOW: 16}, {FAST: 12, SLOW: 4}
"""Requests that are all there at once while an engine's capacity is measured, and how many of them it has at a time."""
BACKLOG_DRAIN_S = 300.0


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured before the first block, by engine: speeds and capacity, and the stretch of all targets that follows."""

    speeds: dict[str, Speed]
    stretch: float
    capacity_rps: dict[str, float]

    @property
    def together_rps(self) -> float:
        """Requests per second that both engines complete."""
        return sum(self.capacity_rps.values())


class Unequal:
    """The blocks on two engines that run.

    Args:
        settings: What is run. `door`: what is asked of which kind of engine, and how capacity is measured.
        load: Where requests come from. `prompts`: for the speeds.
        urls: Addresses of the engines by name. `model`: which they serve.
        folder: Plans, results and logs lie here.
        say: Takes a line for whoever watches.
    """

    def __init__(
        self,
        settings: Settings,
        door: DoorSettings,
        load: DoorLoad,
        *,
        prompts: Sequence[str],
        urls: Mapping[str, str],
        model: str,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._door = door
        self._load = load
        self._prompts = prompts[:ASKED]
        self._urls = urls
        self._model = model
        self._folder = folder
        self._say = say

    async def ground(self) -> Ground:
        """Measures both engines alone.

        The capacity of both together is the sum: no router has a part in it.

        Raises:
            StudyError: An engine does not answer, or the product does not come up.
        """
        speeds = await self._speeds()
        self._load.stretch = max(1.0, round(self._settings.headroom * speeds[SLOW].token_ms / TIGHTER.tpot_ms, 1))
        self._say(f"all targets are stretched by {self._load.stretch:g}")
        capacity = {name: await self._capacity_rps(name) for name in self._urls}
        return Ground(speeds=speeds, stretch=self._load.stretch, capacity_rps=capacity)

    async def block(self, number: int, ground: Ground) -> dict[str, Any]:
        """Every load under every router, and the engines' speeds before.

        Raises:
            StudyError: An engine ends, the product does not come up, or so few requests arrive that none is scored.
        """
        settings = self._settings
        speeds = await self._speeds()
        parts = []
        for place, load in enumerate(settings.loads):
            drawn = number * len(settings.loads) + place
            arrivals = self._load.arrivals(drawn, rps=load * ground.together_rps, seconds=settings.seconds)
            if not arrivals or arrivals[-1].at_s < settings.warmup_s:
                rate = load * ground.together_rps
                raise StudyError(
                    f"at load {load:g} ({rate:.2f} requests/s) no request is scored in {settings.seconds:g} s; use more --seconds"
                )
            order = drawn_order(ROUTERS, seed=settings.seed, number=drawn)
            kept: dict[str, Any] = {}
            spoilt: dict[str, int] = {}
            for name in order:
                label = f"block-{number + 1}-load-{load:g}-{name}"
                made = await self._tries(label, self._arm(name), arrivals)
                await check_alive(self._urls)
                spoilt[name] = sum(summary.noisy for _, summary in made)
                results, last = made[-1]
                if not last.noisy:
                    never_ms = 1000.0 * (settings.seconds + self._door.drain_s)
                    row = row_of(results, warmup_s=settings.warmup_s, never_ms=never_ms)
                    kept[name] = plain(row)
                    self._say(
                        f"{label}: {row.good} good of {row.sent}, TTFT p50 {row.ttft_ms_p50:.0f} ms, p95 {row.ttft_ms_p95:.0f} ms, "
                        f"{row.to_fast:.0%} on the fast engine"
                    )
            parts.append({"load": load, "order": order, "runs": kept, "rejected": {name: count for name, count in spoilt.items() if count}})
        return {"number": number + 1, "speeds": plain(speeds), "ratio": round(ratio(speeds[FAST], speeds[SLOW]), 3), "loads": parts}

    def document(self, ground: Ground, blocks: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
        """Everything so far."""
        settings = self._settings
        return {
            "version": VERSION,
            "settings": msgspec.to_builtins(settings) | {"warmup_s": settings.warmup_s, "drain_s": self._door.drain_s},
            **about,
            "complete": len(blocks) == settings.blocks,
            "speeds": plain(ground.speeds),
            "ratio": round(ratio(ground.speeds[FAST], ground.speeds[SLOW]), 3),
            "stretch": ground.stretch,
            "targets_ms": [[slo.ttft_ms * ground.stretch, slo.tpot_ms * ground.stretch] for slo in (TARGETS, TIGHTER)],
            "capacity_rps": plain(ground.capacity_rps),
            "blocks": blocks,
            "summary": summary(blocks, settings.loads, ROUTERS),
        }

    async def _speeds(self) -> dict[str, Speed]:
        speeds = {name: await speed_of(url, self._model, self._prompts) for name, url in self._urls.items()}
        words = ", ".join(f"{name} {one.first_ms:.0f} ms and {one.token_ms:.1f} ms" for name, one in speeds.items())
        self._say(f"first token and each after it of a request alone: {words}; ratio {ratio(speeds[FAST], speeds[SLOW]):.2f}")
        return speeds

    async def _capacity_rps(self, name: str) -> float:
        """Requests per second that an engine completes of a backlog, in pass-through.

        A load that rises until targets are missed would not do: an answer takes so long that it rises faster than the engine fills.
        """
        config = {**PASS_THROUGH, "scheduler": {**PASS_THROUGH["scheduler"], "n_run": WINDOW[name]}}
        door = msgspec.structs.replace(self._door, drain_s=BACKLOG_DRAIN_S)
        runs = Runs(door, self._load, (f"{self._door.engine}={self._urls[name]}",), self._folder, self._say)
        results, _ = await runs.one(Arm(config=config), f"capacity-{name}", self._load.one_by_one(BACKLOG[name], 0.0))
        found_rps = middle_rps([one.at_s + one.total_ms / 1000.0 for one in results if one.outcome == "completed"])
        if found_rps <= 0.0:
            raise StudyError(f"the {name} engine completes too little of {BACKLOG[name]} requests within {BACKLOG_DRAIN_S:g} s")
        self._say(f"capacity of the {name} engine: {found_rps:.2f} requests/s")
        return found_rps

    def _arm(self, router: str) -> Arm:
        engines = [{"name": name, "kind": self._door.engine, "url": url} for name, url in self._urls.items()]
        # The product's own router is what it comes with: nothing is set.
        return Arm(config={"engines": engines} | ({} if router == OURS else {"scheduler": {"routing": router}}))

    async def _tries(self, label: str, arm: Arm, arrivals: Sequence[Any]) -> list[Run]:
        runs = Runs(self._door, self._load, (), self._folder, self._say)

        def spoilt(run: Run) -> bool:
            if run[1].noisy:
                self._say(rejected(label, run[1].max_gap_s))
            return run[1].noisy

        return await until_quiet(lambda: runs.one(arm, label, arrivals), spoilt, self._settings.retries)
