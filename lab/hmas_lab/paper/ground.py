"""What each model and scenario stands on: capacity, calibrated targets, the load, the windows that suit the tuned baselines."""

from collections.abc import Callable, Sequence

import msgspec

from hmas.controller.core.types import Slo
from hmas.demo.calibration import Calibration, best_window, operating_point
from hmas.planning import StudyError
from hmas.planning.fleet import read_fleet
from hmas.workloads import build
from hmas_lab.paper.arms import ARMS, DEFAULT
from hmas_lab.paper.placing import Placed, Site, anchor_of, place
from hmas_lab.paper.rows import Row, Task
from hmas_lab.paper.scenarios import SCENARIOS, Scenario
from hmas_lab.paper.settings import PaperSettings
from hmas_lab.simulated_rows import caps_of, curve_of

MIXED = "mixed"
TUNING_SEED = 0
BACKLOG_S = 300.0
Make = Callable[[Sequence[Task]], list[Row]]
"""Has tasks made into rows, in their order."""


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario on a model.

    Attributes:
        capacity_rps: For requests like these, all instances together, at the best window.
        placed: The load over it, and how it was found.
        slo_scale: Factor on Table 6; one for all scenarios of a model, as the paper keeps its targets.
        rate_rps: Mean arrival rate. `span_s`: length of the arrivals.
        tried: By tuned arm, goodput rate by window on the workload that is not scored. `windows`: the best of each.
    """

    model: str
    scenario: str
    capacity_rps: float
    placed: Placed
    slo_scale: float
    rate_rps: float
    span_s: float
    tried: dict[str, dict[int, float]] = {}
    windows: dict[str, int] = {}

    @property
    def warmup_s(self) -> float:
        """What arrives before it is not scored."""
        return self.span_s / 10.0


class Grounds:
    """Works them out; `make` runs what has to be simulated."""

    def __init__(self, settings: PaperSettings, make: Make, say: Callable[[str], None]) -> None:
        """Checks what can be checked without a simulation.

        Raises:
            ConfigError: A fleet cannot be read, or no window is left to try.
        """
        self._settings = settings
        self._make = make
        self._say = say
        self._caps = {name: caps_of(read_fleet(settings.fleet(name)), settings.caps) for name in settings.models}

    def find(self) -> list[Ground]:
        """All of them, model by model.

        Raises:
            StudyError: A run failed.
        """
        settings = self._settings
        sites = [Site(model, name) for model in settings.models for name in settings.scenarios_of(model)]
        points = {model: self._capacities(model, settings.scenarios_of(model)) for model in settings.models}

        def at(site: Site, placed: Placed) -> Ground:
            """The ground of a site at a load."""
            mine = points[site.model]
            capacity_rps = mine[SCENARIOS[site.scenario].mix].capacity_rps
            return Ground(
                model=site.model,
                scenario=site.scenario,
                capacity_rps=capacity_rps,
                placed=placed,
                slo_scale=mine[MIXED].slo_scale,
                rate_rps=placed.load * capacity_rps,
                span_s=settings.span_s(site.scenario),
            )

        def run(tried: Sequence[tuple[Site, float]]) -> list[Row]:
            """The engine default at loads."""
            return self._checked([self.task(at(site, Placed(load=load)), DEFAULT, TUNING_SEED, 0) for site, load in tried])

        anchors = {site: Site(site.model, name) for site in sites if (name := anchor_of(site.scenario))}
        found = place(list(dict.fromkeys(anchors.values())), run)
        for site, placed in found.items():
            self._say(f"{site.model}, {site.scenario}: the engine default fares like the paper's at {placed.load:.2f} of capacity")
        loads = {site: found[anchors[site]] if site in anchors else Placed(load=SCENARIOS[site.scenario].load) for site in sites}
        return self._tuned([at(site, loads[site]) for site in sites])

    def task(self, ground: Ground, arm: str, seed: int, window: int, *, series: bool = False) -> Task:
        """One run of an arm in a scenario."""
        scenario = SCENARIOS[ground.scenario]
        text = scenario.workload(
            rate_rps=ground.rate_rps, span_s=ground.span_s, slo_scale=ground.slo_scale, data=self._settings.data, seed=seed
        )
        return Task(
            model=ground.model,
            fleet=self._settings.fleet(ground.model),
            scenario=ground.scenario,
            workload=text,
            warmup_s=ground.warmup_s,
            name=arm,
            arm=ARMS[arm],
            window=window,
            seed=seed,
            phases=scenario.phases,
            series=series,
        )

    def _capacities(self, model: str, names: Sequence[str]) -> dict[str, Calibration]:
        """By mix, from a backlog of such requests, all there at once, at every window."""
        like = {SCENARIOS[name].mix: SCENARIOS[name] for name in reversed(names)}
        like[MIXED] = Scenario(kind="poisson", words="", load=1.0)
        texts = {mix: self._backlog(model, scenario) for mix, scenario in like.items()}
        tasks = [
            Task(
                model=model,
                fleet=self._settings.fleet(model),
                scenario=mix,
                workload=text,
                warmup_s=0.0,
                name=DEFAULT,
                arm=ARMS[DEFAULT],
                window=cap,
                seed=TUNING_SEED,
                at_once=True,
            )
            for mix, text in texts.items()
            for cap in self._caps[model]
        ]
        rows = self._checked(tasks)
        found = {}
        for mix, text in texts.items():
            curve = curve_of([row for row in rows if row.scenario == mix], f"{model}, {mix}")
            found[mix] = operating_point(curve, load=1.0, headroom=self._settings.tpot_headroom, slos=_targets(text))
            self._say(f"{model}, requests as in {mix}: capacity {found[mix].capacity_rps:.2f} requests/s")
        return found

    def _backlog(self, model: str, scenario: Scenario) -> str:
        rate = self._settings.backlog * read_fleet(self._settings.fleet(model)).size / BACKLOG_S
        return scenario.workload(rate_rps=rate, span_s=BACKLOG_S, slo_scale=1.0, data=self._settings.data, seed=TUNING_SEED)

    def _tuned(self, grounds: Sequence[Ground]) -> list[Ground]:
        """Each tuned arm's best window in each scenario; of equals the smaller one."""
        wanted = [
            (ground, arm, cap)
            for ground in grounds
            if not lender(ground, grounds)
            for arm in self._settings.arms_of(ground.model, ground.scenario)
            if ARMS[arm].tuned
            for cap in self._caps[ground.model]
        ]
        self._say(f"{len(wanted)} runs to find the windows of the tuned baselines, on a workload that is not scored")
        rows = self._checked([self.task(ground, arm, TUNING_SEED, cap) for ground, arm, cap in wanted])
        tried: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
        for (ground, arm, cap), row in zip(wanted, rows, strict=True):
            by_arm = tried.setdefault((ground.model, ground.scenario), {})
            by_arm.setdefault(arm, {})[cap] = row.figures["goodput_rate"]
        tuned = []
        for ground in grounds:
            mine = tried.get((ground.model, lender(ground, grounds) or ground.scenario), {})
            windows = {arm: best_window(rates) for arm, rates in mine.items()}
            tuned.append(msgspec.structs.replace(ground, tried=mine, windows=windows))
        return tuned

    def _checked(self, tasks: Sequence[Task]) -> list[Row]:
        """What failed before the comparison began leaves nothing to stand on."""
        rows = self._make(tasks)
        for row in rows:
            if row.error:
                raise StudyError(f"{row.model}, {row.scenario}, {row.arm}, window {row.window}: {row.error}")
        return rows


def _targets(text: str) -> list[Slo]:
    workload = build(f"{text},seed={TUNING_SEED}")
    pairs = zip(workload.slo_ttft_ms.tolist(), workload.slo_tpot_ms.tolist(), strict=True)
    return [Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms) for ttft_ms, tpot_ms in pairs]


def lender(ground: Ground, grounds: Sequence[Ground]) -> str:
    """The scenario whose trials count for this one, too, empty for none: it must be among those that are run."""
    name = SCENARIOS[ground.scenario].tuned_as
    return name if any((one.model, one.scenario) == (ground.model, name) for one in grounds) else ""
