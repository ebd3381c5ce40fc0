"""An instance that was flooded at the start does not stay so, whatever agents do."""

import pytest

from hmas.planning.case import Case
from hmas.planning.fleet import read_fleet
from hmas.planning.report import make_report
from hmas.planning.running import run_case

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [21, 22])
def test_a_fleet_recovers_from_a_flood_at_its_start(seed):
    """At a quarter more than capacity. With seed 21 the first second floods one of two: it never showed its best pace, was taken for slow,
    and given all that the other could not take; half of the requests were late for as long as the load lasted."""
    fleet = read_fleet("2xa100-qwen3-8b")
    run = run_case(
        Case(workload="poisson:rate=19.3,duration=60.0,slo_scale=0.848", fleet=fleet, warmup_s=10.0, seed=seed, policy="edf"),
    )
    assert run.violations == []
    assert make_report(run).score.goodput_rate > 0.75
