"""Who may pass whom: fence, patience, windows, models, demoted requests."""

from collections.abc import Sequence

import pytest
from heap_kit import HeapWork

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.placement import Choice, InstanceState, Routable
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.dispatch import LOOK_AHEAD, PATIENCE
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot


def request(number, *, at_s=0.0, prompt=100, model="m", tenant="a", priority=0):
    return Request(id=f"{number:06d}", tenant=tenant, model=model, arrival_s=at_s, prompt_tokens=prompt, priority=priority)


def believed(ttft_slo_ms=60_000.0, upper=1.0, output=1.0):
    return Estimates(slo=Slo(ttft_ms=ttft_slo_ms, tpot_ms=100), output_tokens=output, output_tokens_upper=upper, ttft_ms=100, tpot_ms=10)


def build(specs: Sequence[InstanceSpec], *, n_run=8, policy="fcfs", **more) -> Scheduler:
    made = Scheduler(
        settings=SchedulerSettings(fence_margin=0.0, **more), instances=specs, router=make_router("least-loaded"), policy=policy
    )
    for spec in specs:
        made.set_controls(spec.name, Controls(n_run=n_run))
    return made


def spec(name="i0", kv=1001, **more):
    return InstanceSpec(name=name, capacity_n_run=64, kv_capacity_tokens=kv, kv_bytes_per_token=3, **more)


def numbers(dispatches) -> list[int]:
    return [int(one.entry.request.id) for one in dispatches]


def test_small_ones_pass_a_large_one_that_the_fence_holds_back_but_not_for_ever():
    made = build([spec()])
    made.submit(request(0, prompt=500), believed(), 0.0)
    made.dispatch(0.0)
    made.submit(request(1, prompt=900), believed(), 0.0)
    passed = 0
    for number in range(2, 100):
        made.submit(request(number, prompt=50), believed(), 0.0)
        sent = numbers(made.dispatch(0.0))
        if not sent:
            break
        assert sent == [number]
        passed += 1
        made.end(f"{number:06d}", OutcomeKind.COMPLETED, 0.0, 1)
    assert passed == PATIENCE
    # From now on the instance is kept free for it; when the first one ends its turn comes.
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    assert numbers(made.dispatch(1.0))[0] == 1


def test_the_instance_that_is_kept_free_is_one_that_can_hold_the_request():
    made = build([spec("large", kv=1001), spec("small", kv=301)])
    made.submit(request(0, prompt=800), believed(), 0.0)
    assert [one.instance for one in made.dispatch(0.0)] == ["large"]
    made.submit(request(1, prompt=900), believed(), 0.0)
    for number in range(2, 2 + PATIENCE + 10):
        made.submit(request(number, prompt=5), believed(), 0.0)
        assert [(one.entry.request.id, one.instance) for one in made.dispatch(0.0)] == [(f"{number:06d}", "small")], "it has more room"
        made.end(f"{number:06d}", OutcomeKind.COMPLETED, 0.0, 1)
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    assert [(one.entry.request.id, one.instance) for one in made.dispatch(1.0)] == [("000001", "large")]


def test_while_one_instance_is_kept_free_the_others_go_on():
    made = build([spec("roomy", kv=1001), spec("tight", kv=601)])
    made.submit(request(0, prompt=200), believed(), 0.0)
    made.submit(request(1, prompt=590), believed(), 0.0)
    assert {one.instance for one in made.dispatch(0.0)} == {"roomy", "tight"}
    made.submit(request(2, prompt=950), believed(), 0.0)
    places = []
    for number in range(3, 3 + PATIENCE + 10):
        made.submit(request(number, prompt=5), believed(), 0.0)
        (sent,) = made.dispatch(0.0)
        places.append(sent.instance)
        made.end(sent.entry.request.id, OutcomeKind.COMPLETED, 0.0, 1)
    # The one with the most room is kept free, the small ones go on through the other.
    assert places == ["roomy"] * PATIENCE + ["tight"] * 10
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    assert [(d.entry.request.id, d.instance) for d in made.dispatch(1.0)] == [("000002", "roomy")]


def test_the_look_ahead_is_bounded():
    made = build([spec()])
    made.submit(request(0, prompt=900), believed(), 0.0)
    made.dispatch(0.0)
    for number in range(1, LOOK_AHEAD + 2):
        made.submit(request(number, prompt=800), believed(), 0.0)
    made.submit(request(50, prompt=10), believed(), 0.0)
    assert made.dispatch(0.0) == []
    made.end("000001", OutcomeKind.CANCELLED, 0.0)
    assert numbers(made.dispatch(0.0)) == [50]


class CountingRouter:
    def __init__(self):
        self.asked = 0

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Sequence[Choice]:
        self.asked += 1
        return [Choice(instances[0].name, "first")]


def test_with_full_windows_a_dispatch_touches_no_waiting_request(heap_work: HeapWork):
    router = CountingRouter()
    made = Scheduler(settings=SchedulerSettings(), instances=[spec()], router=router, policy="edf")
    made.set_controls("i0", Controls(n_run=1))
    for number in range(2000):
        made.submit(request(number), believed(), 0.0)
    assert len(made.dispatch(0.0)) == 1
    before, asked = heap_work.moves, router.asked
    for _ in range(100):
        assert made.dispatch(0.0) == []
    assert (heap_work.moves, router.asked) == (before, asked)


def test_a_model_whose_instance_is_full_or_gone_holds_up_no_other():
    made = build([spec("a", models=frozenset({"x"})), spec("b", models=frozenset({"y"}))], n_run=1)
    for number in range(20):
        made.submit(request(number, model="x"), believed(), 0.0)
    for number in range(20, 40):
        made.submit(request(number, model="nobody"), believed(), 0.0)
    made.submit(request(40, model="y"), believed(), 0.0)
    assert [(int(d.entry.request.id), d.instance) for d in made.dispatch(0.0)] == [(0, "a"), (40, "b")]
    made.observe(EngineSnapshot(engine="a", taken_s=1.0, healthy=False))
    made.submit(request(41, model="y"), believed(), 1.0)
    made.end("000000", OutcomeKind.FAILED, 1.0)
    made.end("000040", OutcomeKind.COMPLETED, 1.0, 1)
    assert numbers(made.dispatch(1.0)) == [41]


def test_an_instance_that_learns_a_model_takes_what_waited_for_it():
    made = build([spec("a", models=frozenset({"x"}))])
    made.submit(request(0, model="y"), believed(), 0.0)
    made.submit(request(1, model="y"), believed(ttft_slo_ms=10.0), 0.0)
    assert made.dispatch(5.0) == []
    made.set_models("a", frozenset({"x", "y"}))
    made.check_conservation()
    assert numbers(made.dispatch(5.0)) == [0]
    made.end("000000", OutcomeKind.COMPLETED, 6.0, 1)
    assert numbers(made.dispatch(6.0)) == [1]


def test_requests_of_models_that_share_an_instance_take_turns():
    both, one = spec("both", models=frozenset({"x", "y"})), spec("one", models=frozenset({"x"}))
    made = build([both, one], n_run=3)
    made.set_draining("one", True)
    for number in range(10):
        made.submit(request(number, model="x"), believed(), 0.0)
    for number in range(10, 20):
        made.submit(request(number, model="y"), believed(), 0.0)
    assert sorted(d.entry.request.model for d in made.dispatch(0.0)) in (["x", "x", "y"], ["x", "y", "y"])


def test_draining_and_unhealthy_instances_get_nothing():
    made = build([spec("a"), spec("b")])
    made.set_draining("a", True)
    made.observe(EngineSnapshot(engine="b", taken_s=0.0, healthy=False))
    made.submit(request(0), believed(), 0.0)
    assert made.dispatch(0.0) == []
    made.observe(EngineSnapshot(engine="b", taken_s=1.0, healthy=True))
    assert [d.instance for d in made.dispatch(1.0)] == ["b"]


def test_demoted_requests_leave_room_while_others_come_in_time():
    made = build([spec(kv=0)], n_run=16, overdue="demote", late_share=0.25)
    for number in range(8):
        made.submit(request(number), believed(), 0.0)
    assert len(made.dispatch(0.0)) == 8
    for number in range(8, 20):
        made.submit(request(number), believed(ttft_slo_ms=10.0 if number >= 10 else 9000.0), 0.0)
    assert numbers(made.dispatch(0.5)) == [8, 9]
    for number in range(10):
        made.end(f"{number:06d}", OutcomeKind.COMPLETED, 1.0, 1)
    sent = made.dispatch(1.0)
    assert numbers(sent) == [10, 11, 12]
    assert "overdue" in sent[0].reason
    made.submit(request(30, at_s=2.0), believed(), 2.0)
    assert numbers(made.dispatch(2.0)) == [30]
    assert made.dispatch(3.0) == []
    # Nobody has come in time for a while: the whole window is theirs.
    assert numbers(made.dispatch(7.5)) == list(range(13, 20))


def test_new_estimates_bring_a_demoted_request_back():
    made = build([spec(kv=0)], n_run=1, overdue="demote")
    made.submit(request(0), believed(ttft_slo_ms=10.0), 0.0)
    made.submit(request(1), believed(), 0.0)
    assert made.snapshot(1.0, "g").overdue == 1
    assert made.position("000000") == 1
    assert made.revise("000000", believed(ttft_slo_ms=5000.0), 1.0)
    assert made.snapshot(1.0, "g").overdue == 0
    assert made.position("000000") == 0
    assert numbers(made.dispatch(1.0)) == [0]


def test_a_retried_request_stands_where_it_stood_and_excludes_its_instance():
    made = build([spec("a"), spec("b")], n_run=1)
    for number in range(4):
        made.submit(request(number), believed(), 0.0)
    first, second = made.dispatch(0.0)
    assert made.retry(first.entry.request.id, 0.5)
    assert made.position(first.entry.request.id) == 0
    # The instance it may go to is taken: the one that failed it serves the next in line, it stays first.
    (third,) = made.dispatch(0.5)
    assert (int(third.entry.request.id), third.instance) == (2, first.instance)
    made.end(second.entry.request.id, OutcomeKind.COMPLETED, 1.0, 1)
    (again,) = made.dispatch(1.0)
    assert (again.entry, again.instance) == (first.entry, second.instance)


@pytest.mark.parametrize(("away_s", "forgiven"), [(0.1, False), (30.0, True)])
def test_an_instance_that_is_back_after_an_outage_takes_what_it_failed_once_more(away_s, forgiven):
    made = build([spec("a"), spec("b")], n_run=1)
    for name in "ab":
        made.observe(EngineSnapshot(engine=name, taken_s=0.0, healthy=True))
    for number in range(2):
        made.submit(request(number), believed(), 0.0)
    failed, _ = made.dispatch(0.0)
    for at_s in (0.5, 0.5 + away_s / 2):
        made.observe(EngineSnapshot(engine=failed.instance, taken_s=at_s, healthy=False))
    assert made.retry(failed.entry.request.id, 0.5)
    made.observe(EngineSnapshot(engine=failed.instance, taken_s=0.5 + away_s, healthy=True))
    again = made.dispatch(0.5 + away_s)
    assert [one.instance for one in again] == [failed.instance] * forgiven, "after a shorter gap it may fail the same request at once"
    assert not forgiven or not made.retry(failed.entry.request.id, 31.0), "there is no third try"


def test_no_retry_after_the_first_token_or_with_nowhere_else_to_go():
    made = build([spec("a"), spec("b")])
    made.submit(request(0), believed(), 0.0)
    (sent,) = made.dispatch(0.0)
    other = "b" if sent.instance == "a" else "a"
    made.set_draining(other, True)
    assert not made.retry("000000", 0.1)
    made.set_draining(other, False)
    made.progress("000000", 1, 0.2)
    assert not made.retry("000000", 0.3)
    assert not made.retry("nobody", 0.3)
    assert made.counts().running == 1


def test_a_live_id_is_refused_and_unknown_names_are_told():
    made = build([spec()])
    made.submit(request(0), believed(), 0.0)
    with pytest.raises(SchedulingError, match="already live"):
        made.submit(request(0), believed(), 0.0)
    for call in (
        lambda: made.set_controls("x", Controls(n_run=1)),
        lambda: made.set_draining("x", True),
        lambda: made.observe(EngineSnapshot(engine="x", taken_s=0.0, healthy=True)),
    ):
        with pytest.raises(SchedulingError, match=r"'x'.*i0"):
            call()
    with pytest.raises(SchedulingError, match=r"n_run.*1 or more"):
        made.set_controls("i0", Controls(n_run=0))
    with pytest.raises(SchedulingError, match="token_budget"):
        made.set_controls("i0", Controls(n_run=1, token_budget=0))
    with pytest.raises(SchedulingError, match="weight"):
        made.set_weights({"t": 0.0})
    with pytest.raises(SchedulingError, match="unique"):
        build([spec(), spec()])
    with pytest.raises(SchedulingError, match="waits"):
        made.end("000000", OutcomeKind.COMPLETED, 0.0)
    made.check_conservation()


def test_a_weight_reaches_those_that_wait():
    made = build([spec(kv=0)], n_run=1, policy="wfq")
    for number in range(60):
        made.submit(request(number, tenant="ab"[number % 2]), believed(), 0.0)
    made.set_weights({"a": 3.0})
    tenants = []
    for _ in range(24):
        (sent,) = made.dispatch(0.0)
        tenants.append(sent.entry.request.tenant)
        made.end(sent.entry.request.id, OutcomeKind.COMPLETED, 0.0, 1)
    assert tenants.count("a") == pytest.approx(18, abs=1)


def test_a_walk_that_finds_nobody_leaves_the_turns_of_the_tenants_as_they_were():
    made = build([spec()], policy="wfq")
    made.submit(request(0, prompt=1000), believed(), 0.0)
    made.dispatch(0.0)
    for number in range(1, 9):
        made.submit(request(number, tenant="ab"[number % 2], prompt=10), believed(), 0.0)
    for _ in range(3):
        assert made.dispatch(0.0) == []
    made.submit(request(9, tenant="c", prompt=10), believed(), 0.0)
    made.end("000000", OutcomeKind.COMPLETED, 0.0, 1)
    assert [d.entry.request.tenant for d in made.dispatch(0.0)][:5] == ["b", "a", "c", "b", "a"]
