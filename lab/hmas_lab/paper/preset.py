"""The preset `paper` beside the default configuration in simulation, and what each part of the difference is worth.

A part is a group of settings. It is switched over from both ends: ours with one part as the paper has it, and the paper's with one part of
ours. Where the two differ, parts act on each other. Perception and prediction take no part in a simulation, so their settings are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.controller.config.derived import scheduler_settings
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.planning import StudyError
from hmas.planning.backends import Backend
from hmas.planning.case import AGENTS, Case
from hmas.planning.fleet import Fleet, read_fleet
from hmas.planning.report import make_report
from hmas.planning.running import run_case
from hmas_lab.simulated_rows import rows_of

PAPER, OURS = "paper", "default"
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "order": ("scheduler.policy", "scheduler.parameters"),
        "late requests": (
            "scheduler.overdue",
            "scheduler.late_service_share",
            "scheduler.late_confidence",
            "scheduler.evict_lower_ranked",
        ),
        "TPOT guard": ("scheduler.tpot_guard",),
        "fence": (
            "scheduler.fence",
            "scheduler.fence_overcommit",
            "scheduler.fence_in_bypass",
            "scheduler.idle_relief",
        ),
        "statera": ("agents.statera_law",),
        "meta": (
            "agents.meta_selector",
            "agents.meta_policies",
            "agents.meta_judge",
            "agents.meta_guards",
            "agents.meta_agree",
            "agents.meta_dwell_s",
            "agents.meta_switches_per_hour",
        ),
    }
)
"""The parts: settings that are switched over together."""
NOT_SIMULATED = (
    "scheduler.n_run",
    "slo.ttft_most_ms",
    "slo.headroom",
    "agents.set_aside",
    "agents.perception_unknown",
    "agents.ask_sample_rps",
)
"""Settings of the preset that no simulation uses: every request there declares its targets, and no agent reads it. `n_run` is the same."""
WORKLOADS: Mapping[str, str] = MappingProxyType(
    {
        "phases": "phases:rate=10.3,phase={third},slo_scale=0.625",
        "burst": "burst:rate=10.3,duration={whole},slo_scale=0.625",
        "semantic": "semantic:rate=8.7,phase={third},slo_scale=0.625",
    }
)
"""Eq. 13, the fast slice of Table 1 and the semantic shift, at about the capacity of one A100 with Qwen3-8B."""


class PresetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared.

    Attributes:
        fleet: As `hmas simulate` takes it.
        seeds: Workloads of each kind, seeds 1 and up.
        span_s: Length of the arrivals; a tenth of it is not scored.
        workloads: Of `WORKLOADS`.
    """

    fleet: str = "1xa100-qwen3-8b"
    seeds: Annotated[int, Meta(ge=1, le=100)] = 2
    span_s: Annotated[float, Meta(ge=30, le=86_400)] = 120.0
    workloads: tuple[str, ...] = tuple(WORKLOADS)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    arm: str
    workload: str
    seed: int
    case: Case


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    arm: str
    workload: str
    seed: int
    figures: dict[str, float]
    violations: list[str]


def run_task(data: bytes) -> bytes:
    """One task, encoded, to its row, encoded: a plain function, so that any process can take it."""
    task = msgspec.json.decode(data, type=Task)
    run = run_case(task.case)
    scored = make_report(run).score
    figures = {
        "good": scored.goodput_rate,
        "goodput_rps": scored.goodput_rps,
        "esg_rate": scored.esg_rate,
        "ttft_compliance": scored.ttft_compliance,
        "tpot_compliance": scored.tpot_compliance,
        "ttft_s_p95": scored.ttft_ms_started.p95 / 1000.0,
        "tpot_ms_p95": scored.tpot_ms.p95,
        "switches": float(len(run.changes)),
    }
    row = Row(arm=task.arm, workload=task.workload, seed=task.seed, figures=figures, violations=list(run.violations))
    return msgspec.json.encode(row)


def configurations() -> dict[str, Config]:
    """The configuration of every arm by its name: both ends, and each part switched over from either end."""
    ours, paper = (msgspec.to_builtins(load_config(None, {"HMAS_PRESET": name})) for name in (OURS, PAPER))
    found = {OURS: ours, PAPER: paper}
    for part in PARTS:
        found[f"{OURS}, {part} of the paper"] = _switched(ours, paper, part)
        found[f"{PAPER}, {part} of ours"] = _switched(paper, ours, part)
    return {name: msgspec.convert(document, Config) for name, document in found.items()}


def _switched(document: Mapping[str, Any], other: Mapping[str, Any], part: str) -> dict[str, Any]:
    mixed = {name: dict(value) if isinstance(value, dict) else value for name, value in document.items()}
    for path in PARTS[part]:
        section, name = path.split(".")
        mixed[section][name] = other[section][name]
    return mixed


def case_of(config: Config, *, workload: str, fleet: Fleet, warmup_s: float, seed: int) -> Case:
    """The case of a configuration's scheduler and control agents."""
    return Case(
        workload=workload,
        fleet=fleet,
        policy=config.scheduler.policy,
        parameters=dict(config.scheduler.parameters),
        admission=msgspec.structs.replace(scheduler_settings(config), headroom=0.0),
        agents=AGENTS,
        meta=agents_of(config),
        warmup_s=warmup_s,
        seed=seed,
    )


def agents_of(config: Config) -> dict[str, Any]:
    """The settings of agents that differ from the shipped ones."""
    usual = AgentsConfig()
    return {name: value for name in usual.__struct_fields__ if (value := getattr(config.agents, name)) != getattr(usual, name)}


def compared(settings: PresetSettings, backend: Backend, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs every arm on every workload and seed. The same settings give the same document.

    Raises:
        StudyError: The independent checker objects to a run.
    """
    fleet = read_fleet(settings.fleet)
    tasks = [
        Task(
            arm=arm,
            workload=name,
            seed=seed,
            case=case_of(
                config,
                workload=WORKLOADS[name].format(third=f"{settings.span_s / 3.0:g}", whole=f"{settings.span_s:g}"),
                fleet=fleet,
                warmup_s=settings.span_s / 10.0,
                seed=seed,
            ),
        )
        for name in settings.workloads
        for seed in range(1, settings.seeds + 1)
        for arm, config in configurations().items()
    ]
    rows = rows_of(tasks, Row, run_task, backend, known={}, on_row=lambda _place, _row: None, say=say)
    for row in rows:
        if row.violations:
            raise StudyError(f"{row.arm}, {row.workload}, seed {row.seed}: the checker objects: {row.violations[0]}")
    return {
        "version": 1,
        "settings": msgspec.to_builtins(settings),
        "summary": {name: summary(rows, name) for name in settings.workloads},
        "rows": msgspec.to_builtins(rows),
    }


def summary(rows: Sequence[Row], workload: str) -> dict[str, dict[str, float]]:
    """Mean figures by arm on a workload, over its seeds."""
    found = {}
    for arm in dict.fromkeys(row.arm for row in rows):
        mine = [row.figures for row in rows if (row.arm, row.workload) == (arm, workload)]
        if mine:
            found[arm] = {name: round(fmean(one[name] for one in mine), 4) for name in mine[0]}
    return found
