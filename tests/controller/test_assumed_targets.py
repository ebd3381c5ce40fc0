"""Targets that a request did not declare are brought within what its engines can do."""

from typing import Literal

import msgspec
import pytest

from hmas.controller.config.derived import scheduler_settings
from hmas.controller.config.schema import Config
from hmas.controller.config.section import SloConfig
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

TABLE = Slo(ttft_ms=2000.0, tpot_ms=90.0)


def scheduler(headroom: float, token_ms: dict[str, float]) -> Scheduler:
    """Instances that have shown these times per token, and 1 ms a prompt token each."""
    made = Scheduler(
        settings=SchedulerSettings(headroom=headroom),
        instances=[InstanceSpec(name=name, capacity_n_run=8) for name in token_ms],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    for name, took_ms in token_ms.items():
        made.set_controls(name, Controls(n_run=8))
        pace = made.instances[name].pace
        if took_ms:
            pace.decoded(took_ms)
            pace.prefilled(100.0, 100)
    return made


def entry(made: Scheduler, *, declared: Slo | None = None, half: Literal["", "ttft", "tpot"] = "", prompt_tokens: int = 100) -> QueueEntry:
    request = Request(
        id="r", tenant="t", model="m", arrival_s=0.0, prompt_tokens=prompt_tokens, declared_slo=declared, half_declared=half
    )  # fmt: skip
    taken = made.submit(request, Estimates(slo=declared or TABLE), 0.0)
    assert isinstance(taken, QueueEntry)
    return taken


@pytest.mark.parametrize(
    ("headroom", "token_ms", "prompt_tokens", "expected"),
    [
        (3.0, {"slow": 60.0}, 100, Slo(ttft_ms=4000.0, tpot_ms=180.0)),
        (3.0, {"slow": 60.0}, 2000, Slo(ttft_ms=6000.0, tpot_ms=180.0)),
        (3.0, {"fast": 20.0}, 100, TABLE),
        (3.0, {"fast": 20.0}, 1000, Slo(ttft_ms=3000.0, tpot_ms=90.0)),
        (3.0, {"slow": 60.0, "fast": 36.0}, 100, Slo(ttft_ms=2400.0, tpot_ms=108.0)),
        (3.0, {"new": 0.0}, 1000, TABLE),
        (0.0, {"slow": 60.0}, 1000, TABLE),
    ],
)
def test_an_assumed_target_leaves_room_for_what_the_fastest_engine_takes(
    headroom: float, token_ms: dict[str, float], prompt_tokens: int, expected: Slo
):
    assert entry(scheduler(headroom, token_ms), prompt_tokens=prompt_tokens).estimates.slo == expected


def test_what_is_slow_is_judged_by_the_installations_table():
    assert scheduler_settings(Config(slo=SloConfig(scale=2.0))).usual_tpot_ms == 2.0 * SchedulerSettings().usual_tpot_ms


def test_a_declared_target_stands():
    declared = Slo(ttft_ms=500.0, tpot_ms=20.0)
    assert entry(scheduler(3.0, {"slow": 60.0}), declared=declared).estimates.slo == declared


@pytest.mark.parametrize(("half", "expected"), [("ttft", Slo(ttft_ms=2000.0, tpot_ms=180.0)), ("tpot", Slo(ttft_ms=4000.0, tpot_ms=90.0))])
def test_of_two_targets_only_the_undeclared_one_is_raised(half: Literal["ttft", "tpot"], expected: Slo):
    made = scheduler(3.0, {"slow": 60.0})
    taken = entry(made, declared=TABLE, half=half, prompt_tokens=1000)
    assert taken.estimates.slo == expected
    made.revise("r", Estimates(slo=TABLE), 0.1)
    assert taken.estimates.slo == expected, "an agent's answer is raised likewise"


def test_a_completion_tells_whether_its_ttft_target_was_declared():
    def told(declared: Slo | None, half: Literal["", "ttft", "tpot"] = "") -> bool:
        made = scheduler(3.0, {"slow": 60.0})
        entry(made, declared=declared, half=half)
        return completion_of(made.end("r", OutcomeKind.CANCELLED, 1.0), 1.0).ttft_declared

    assert [told(TABLE), told(TABLE, "ttft"), told(TABLE, "tpot"), told(None)] == [True, True, False, False]


def test_a_cost_that_comes_later_does_not_stretch_a_target_twice():
    made = scheduler(3.0, {"slow": 60.0})
    taken = entry(made)
    for wait_s in (0.1, 0.2):
        made.revise("r", msgspec.structs.replace(taken.estimates, ttft_ms=50.0 + wait_s), wait_s)
    assert made.dispatch(0.3)
    made.revise("r", msgspec.structs.replace(taken.estimates, ttft_ms=70.0), 0.4)
    assert (taken.estimates.slo, taken.estimates.ttft_ms) == (Slo(ttft_ms=4000.0, tpot_ms=180.0), 70.0)


@pytest.mark.parametrize("running", [False, True])
def test_an_agents_answer_is_stretched_too(running: bool):
    made = scheduler(3.0, {"slow": 60.0})
    taken = entry(made)
    if running:
        assert made.dispatch(0.0)
    made.revise("r", Estimates(slo=Slo(ttft_ms=1500.0, tpot_ms=80.0), output_tokens=7.0), 0.1)
    assert taken.estimates.slo == Slo(ttft_ms=3000.0, tpot_ms=180.0)
    assert taken.estimates.output_tokens == 7.0
