"""From a wrong start, meta reaches the shipped policy and windows within a minute of overload, also where replays are slow."""

import pytest

from hmas.controller.control.resolve import Received
from hmas.controller.core.messages import MetaDecision
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.planning.case import Case
from hmas.planning.fleet import read_fleet
from hmas.planning.running import run_case
from hmas.planning.steering import AgentSteering

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
OVERLOAD = "poisson:rate=12,duration=65"
"""1.3 times what one A100 with Qwen3-8B serves in time."""
WITHIN_S = 60.5
"""Meta evaluates every 10 s, the first time a moment after the start."""
BUSY_MS = 2.0
"""What the replay of one request takes in plain Python where both cores are busy: a round of three candidates then covers 20 s."""


class WrongStart(AgentSteering):
    """The agents of a case, whose meta may have decided for a window before the overload, and whose replays are slow."""

    def __init__(self, case: Case, window: int) -> None:
        super().__init__(case)
        self.decisions: list[MetaDecision] = []
        assert self.twin is not None
        assert self.meta is not None
        self.twin.request_ms = BUSY_MS
        if window:
            before = MetaDecision(sent_s=0.0, decision_id="m-1", policy=case.policy, previous=case.policy, n_run=window, reason="a test")
            self.meta.model.restore([before], 0.0)
            self._heard_meta = Received(0.0, before)

    def decisions_on(self, views, now_s):
        found = super().decisions_on(views, now_s)
        self.decisions += found
        return found


@pytest.mark.parametrize(("policy", "window"), [("fcfs", 0), ("rr", 0), (DEFAULT_POLICY, 4)])
def test_a_wrong_start_is_left_within_a_minute_of_overload(policy: str, window: int):
    case = Case(workload=OVERLOAD, fleet=read_fleet("1xa100-qwen3-8b"), policy=policy, agents=("statera", "meta"), seed=1)
    steering = WrongStart(case, window)
    run_case(case, steering=steering)
    first = steering.decisions[0]
    assert (first.policy, first.n_run) == (policy, window)
    left = next(one for one in steering.decisions if (one.policy, one.n_run) != (policy, window))
    assert left.sent_s <= WITHIN_S, left.reason
    assert (left.policy, left.n_run) == (DEFAULT_POLICY, 0), left.reason
