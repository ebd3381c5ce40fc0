"""Targets that an engine just keeps, on the model of a GPU: there prompts make up half of the time per token, and sequences cost little."""

import pytest

from hmas.controller.scheduling.settings import SHIPPED
from hmas.engines.sim.profile import load_profile
from hmas.planning.case import PRESETS, Case, SloTarget
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.report import make_report
from hmas.planning.running import run_case

pytestmark = pytest.mark.slow
PROFILE = load_profile("h100-qwen3-14b")
BEST_WINDOW = 64
"""Of those in `lab/benchmarks/guard_study.py --gpu`."""
KIND = Kind(profile=PROFILE, n_run=256, token_budget=PROFILE.max_num_batched_tokens, model="m")


def good(rate_rps: float, admission: str) -> float:
    fleet = Fleet(groups=[Group(kind=KIND, count=1)])
    shipped = admission == "shipped"
    run = run_case(
        Case(
            workload=f"poisson:rate={rate_rps},duration=40,prompt=512,output=128",
            fleet=fleet if shipped else fleet.with_window(BEST_WINDOW),
            policy="robust-edf" if shipped else "fcfs",
            admission=SHIPPED if shipped else PRESETS["shed"],
            slo=SloTarget(ttft_ms=500, tpot_ms=25),
            seed=1,
        )
    )
    assert run.violations == []
    return make_report(run).score.goodput_rate


def test_the_product_leaves_nothing_unused_where_the_targets_are_just_kept():
    assert good(18.0, "shipped") > 0.99


@pytest.mark.parametrize("rate_rps", [20.0, 24.0])
def test_near_and_past_that_it_is_ahead_of_the_best_fixed_window_that_sheds(rate_rps):
    assert good(rate_rps, "shipped") > good(rate_rps, "shed")
