"""The guard sends no stream behind so many prompts that its first token would come too late."""

import pytest
from typing_kit import of_type

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.model_queue import GUARD
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings


def build() -> Scheduler:
    """An engine that takes a millisecond for each token of a prompt, and has one of 2,000 to compute."""
    made = Scheduler(
        settings=SchedulerSettings(tpot_guard=0.5, overdue="demote"),
        instances=[InstanceSpec(name="i0", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    made.instances["i0"].pace.prefilled(1000.0, 1000)
    submit(made, "ahead", prompt=2000)
    assert [one.instance for one in made.dispatch(0.0)] == ["i0"]
    return made


def submit(made: Scheduler, name: str, *, prompt: int = 1000, ttft_ms: float = 1e6, stream: bool = True) -> QueueEntry:
    request = Request(id=name, tenant="t", model="m", arrival_s=0.0, prompt_tokens=prompt, stream=stream)
    estimates = Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=400.0), output_tokens=41.0, ttft_ms=200.0, tpot_ms=20.0)
    return of_type(QueueEntry, made.submit(request, estimates, 0.0))


@pytest.mark.parametrize(
    ("ttft_ms", "stream", "joins"),
    [
        pytest.param(2800.0, True, False, id="too late behind the other prompt"),
        pytest.param(2950.0, True, True, id="late by less than the estimate tells"),
        pytest.param(3100.0, True, True, id="in time behind it"),
        pytest.param(900.0, True, True, id="too late on any engine"),
        pytest.param(2800.0, False, True, id="its first token is not seen"),
    ],
)
def test_a_stream_waits_while_the_prompts_ahead_would_make_it_late(ttft_ms: float, stream: bool, joins: bool):
    made = build()
    waiting = submit(made, "a", ttft_ms=ttft_ms, stream=stream)
    assert bool(made.dispatch(0.0)) == joins
    assert (waiting.blocked == GUARD) != joins


def test_it_goes_once_the_prompts_ahead_are_computed():
    made = build()
    submit(made, "a", ttft_ms=2800.0)
    assert made.dispatch(1.0) == []
    made.progress("ahead", 1, 1.5)
    assert [one.entry.request.id for one in made.dispatch(1.5)] == ["a"]


def test_whole_answers_are_not_ahead_for_as_long_as_they_run():
    made = build()
    submit(made, "whole", prompt=2000, stream=False)
    assert len(made.dispatch(0.0)) == 1
    submit(made, "a", ttft_ms=3100.0)
    assert len(made.dispatch(0.0)) == 1
