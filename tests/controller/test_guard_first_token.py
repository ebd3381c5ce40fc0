"""The guard sends no stream behind so many prompts that its first token would come too late."""

from collections.abc import Iterable, Sequence

import pytest
from typing_kit import of_type

from hmas.controller.core.placement import Choice, InstanceState, Routable, Router
from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.model_queue import PROMPTS
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings


def build(router: Router | None = None) -> Scheduler:
    """An engine that takes a millisecond for each token of a prompt, and has one of 2,000 to compute."""
    made = Scheduler(
        settings=SchedulerSettings(tpot_guard=0.5, overdue="demote"),
        instances=[InstanceSpec(name="i0", capacity_n_run=64)],
        router=router or make_router("least-loaded"),
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
    assert (waiting.blocked == PROMPTS) != joins


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


class Uncached:
    """A router that expects nothing to be cached."""

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterable[Choice]:
        return [Choice(one.name, "so", (), 0) for one in instances]


@pytest.mark.parametrize("at_once", [1, 4, 16])
def test_prompts_of_one_step_do_not_seem_free(at_once: int):
    """A step computes that many prompts of 20 ms each; their first tokens come at its end."""
    made = build(Uncached())
    now_s = 2.0
    made.progress("ahead", 1, now_s)
    made.end("ahead", OutcomeKind.COMPLETED, now_s)
    for step in range(200):
        names = [f"{step}-{index}" for index in range(at_once)]
        for name in names:
            submit(made, name, prompt=200)
        assert len(made.dispatch(now_s)) == at_once
        now_s += 0.02 * at_once
        for name in names:
            made.progress(name, 1, now_s)
            made.end(name, OutcomeKind.COMPLETED, now_s)
    assert made.instances["i0"].pace.computed_ms(200, 0, 0.0) == pytest.approx(20.0, rel=0.5)
