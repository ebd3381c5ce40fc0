"""The TPOT guard where prompts take a good part of an engine's time: the pace holds their stops already."""

import pytest

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

STOP_MS, PACE_MS = 75.0, 26.0


def submit(made: Scheduler, number: int, now_s: float) -> None:
    request = Request(id=str(number), tenant="t", model="m", arrival_s=now_s, prompt_tokens=128)
    made.submit(request, Estimates(slo=Slo(ttft_ms=60_000, tpot_ms=30), output_tokens=32, ttft_ms=STOP_MS, tpot_ms=PACE_MS), now_s)


@pytest.mark.parametrize(("share", "admitted"), [(0.0, False), (0.15, False), (0.4, True)])
def test_a_prefill_as_usual_is_not_charged_to_a_pace_that_holds_it(share, admitted):
    made = Scheduler(
        settings=SchedulerSettings(tpot_guard=0.5),
        instances=[InstanceSpec(name="a", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    pace = made.instances["a"].pace
    for _ in range(200):
        pace.prefilled(STOP_MS, 128)
        pace.decoded(PACE_MS, 2.0, 32.0, quiet=False)
    pace.stops.share, pace.stops.ms = share, STOP_MS
    submit(made, 0, 0.0)
    assert len(made.dispatch(0.0)) == 1
    made.progress("0", 1, 0.075)
    submit(made, 1, 0.075)
    # Its room is 31 x 4 = 124 ms, half of which is less than a prefill of 75 ms. With one of the stops that the pace holds it is 199.
    assert (len(made.dispatch(0.075)) == 1) is admitted
