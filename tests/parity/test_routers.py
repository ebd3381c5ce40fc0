"""Every router decides alike in the simulation and in the live gateway: their prompts share beginnings, so affinity counts."""

from collections import Counter
from typing import Literal

import msgspec
import pytest
from hmas_lab.parity.live import run_live
from hmas_lab.parity.log import first_difference
from hmas_lab.parity.scenario import Scenario
from hmas_lab.parity.simulated import run_simulated

from hmas.controller.routing.registry import ROUTERS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("routing", [name for name in ROUTERS if name not in {"least-loaded", "round-robin"}])
def test_every_router_is_decided_alike(routing: str):
    scenario = Scenario(policy="edf", then="sjf", routing=routing, requests=150, seed=5)
    simulated, live = run_simulated(scenario), run_live(scenario)
    at = first_difference(simulated, live)
    assert at is None, f"entry {at}: {simulated[at]} and {live[at]}"
    assert len(Counter(entry.instance for entry in simulated if entry.kind == "dispatched")) == 2


@pytest.mark.parametrize("routing", list(ROUTERS))
@pytest.mark.parametrize(("policy", "overdue"), [("edf", "demote"), pytest.param("wfq", "shed", marks=pytest.mark.long)])
def test_every_router_binds_alike_at_arrival(routing: str, policy: str, overdue: Literal["demote", "shed"]):
    # A request is relieved by an engine's report; whether a tick or the report comes first where both fall on one moment is chance.
    scenario = Scenario(
        policy=policy, then="sjf", overdue=overdue, routing=routing, requests=150, seed=6, binding="arrival", idle_relief=False
    )
    simulated, live = run_simulated(scenario), run_live(scenario)
    at = first_difference(simulated, live)
    assert at is None, f"entry {at}: {simulated[at]} and {live[at]}"
    assert len(Counter(entry.instance for entry in simulated if entry.kind == "dispatched")) == 2
    assert simulated != run_simulated(msgspec.structs.replace(scenario, binding="central"))


def test_routers_differ():
    logs = {name: [(entry.request, entry.instance) for entry in run_simulated(Scenario(routing=name, requests=100))] for name in ROUTERS}
    assert len({str(log) for log in logs.values()}) >= 5
