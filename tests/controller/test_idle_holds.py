"""An engine that shows room gets what waits: forecasts hold a request back for a second at most, an operator's word for good."""

import pytest

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import TenantLimits
from hmas.controller.scheduling.dispatch import LATE_SHARE, PAST_FENCE
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.overcommit import Preemptions
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot

SLO = Slo(ttft_ms=60_000, tpot_ms=100)


def build(*, ceiling=32, n_run=None, advised=True, kv=10_000, tenants=None, policy="fcfs", **settings) -> Scheduler:
    spec = InstanceSpec(name="a", capacity_n_run=ceiling, kv_capacity_tokens=kv, kv_bytes_per_token=1)
    made = Scheduler(
        settings=SchedulerSettings(fence_margin=0.0, **settings),
        instances=[spec],
        router=make_router("least-loaded"),
        policy=policy,
        tenants=tenants,
    )
    if n_run is not None:
        made.set_controls("a", Controls(n_run=n_run, advised=advised))
    return made


def submit(made: Scheduler, number: int, now_s: float, *, upper=10.0, prompt=100, tenant="t", slo=SLO, declared=None) -> None:
    request = Request(id=f"{number:04d}", tenant=tenant, model="m", arrival_s=now_s, prompt_tokens=prompt, declared_slo=declared)
    made.submit(request, Estimates(slo=slo, output_tokens=10, output_tokens_upper=upper), now_s)


def run(made: Scheduler, until_s: float, *, from_s=0.0, kv_usage=0.01, waiting=0, tokens=None) -> list[tuple[float, str, str]]:
    """Ticks ten times a second; what was dispatched when, and what had held it back."""
    sent = []
    for tick in range(round((until_s - from_s) * 10) + 1):
        now_s = from_s + tick / 10
        made.observe(EngineSnapshot(engine="a", taken_s=now_s, healthy=True, kv_usage=kv_usage, kv_capacity_tokens=10_000, waiting=waiting))
        for request_id in made.running_ids() if tokens else ():
            made.progress(request_id, tokens(now_s), now_s)
        made.expire(now_s)
        sent += [(round(now_s, 1), one.entry.request.id, one.relieved) for one in made.dispatch(now_s)]
    return sent


def report(now_s: float, preemptions: int, kv_usage: float = 0.89, waiting: int = 0) -> EngineSnapshot:
    return EngineSnapshot(
        engine="a",
        taken_s=now_s,
        healthy=True,
        kv_usage=kv_usage,
        kv_capacity_tokens=10_000,
        preemptions_total=preemptions,
        waiting=waiting,
    )


def test_an_absurd_length_passes_the_fence_until_an_engine_preempts_and_then_waits_for_what_that_costs():
    made = build()
    for number in range(3):
        submit(made, number, 0.0, upper=1e9)
    assert [one.entry.request.id for one in made.dispatch(0.0)] == ["0000"]
    made.observe(report(0.0, 0))
    (went,) = made.dispatch(0.0)
    assert went.entry.request.id == "0001"
    assert PAST_FENCE in went.reason
    made.observe(report(0.01, 1))
    # Half a preemption per dispatch; each of the two requests in flight is computed again in 200 ms.
    assert made.dispatch(0.19) == []
    assert [one.entry.request.id for one in made.dispatch(0.2)] == ["0002"]


@pytest.mark.parametrize(("preempted_each", "expected_s"), [(0, [0.0, 0.0, 0.1, 0.2]), (5, [0.0, 0.0, 2.0, 2.9])])
def test_preemptions_raise_the_price_of_passing_the_fence_and_each_report_serves_one(preempted_each, expected_s):
    made = build()
    for number in range(4):
        submit(made, number, 0.0, upper=1e9)
    went_s: list[float] = []
    for tick in range(50):
        now_s, total = tick / 10, preempted_each * len(went_s)
        made.observe(report(now_s, total))
        went_s += [now_s for _ in made.dispatch(now_s)]
    assert went_s == pytest.approx(expected_s, abs=0.35 if preempted_each else 0.0)


def with_one_beyond_the_fence():
    made = build()
    for number in range(2):
        submit(made, number, 0.0, upper=1e9)
    made.dispatch(0.0)
    made.observe(report(0.0, 0))
    made.dispatch(0.0)
    return made


@pytest.mark.parametrize(("waiting", "sent"), [(0, ["0002"]), (1, [])])
def test_what_the_engine_has_preempted_leaves_no_room(waiting: int, sent: list[str]):
    """Each of two takes 4,500 tokens, of which the engine reports half: they share a prompt, or it has preempted one of them."""
    made = build(fence_overcommit=False)
    for number in range(3):
        submit(made, number, 0.0, prompt=4500)
    assert len(made.dispatch(0.0)) == 2
    for request_id in made.running_ids():
        made.progress(request_id, 1, 0.1)
    for tick in range(4):
        made.observe(report(0.1 * tick, waiting if tick else 0, 0.45, waiting=waiting if tick else 0))
    assert [one.entry.request.id for one in made.dispatch(0.5)] == sent
    for tick in range(6, 8):
        made.observe(report(0.1 * tick, waiting, 0.45))
    assert bool(made.dispatch(0.8)) != bool(sent), "once it has taken all up, its report counts again"


def test_an_outage_of_the_engine_is_no_preemption():
    one = Instance(InstanceSpec(name="a", capacity_n_run=32), fenced=True, margin=0.0)
    one.preemptions.dispatched("r", 100)
    one.observe(report(0.0, 40))
    one.observe(EngineSnapshot(engine="a", taken_s=0.1, healthy=False))
    one.observe(report(0.2, 40))
    assert one.preemptions.per_dispatch == 0.0


def test_preemptions_count_only_if_a_request_beyond_the_fence_was_in_flight_since_the_last_report():
    seen = Preemptions()
    seen.counted(0)
    seen.dispatched("r", 100)
    seen.counted(3)
    seen.ended("r")
    seen.counted(4)
    assert seen.per_dispatch == 2.0, "the last of them may have come before the request's end"
    seen.counted(500)
    assert seen.per_dispatch == 2.0


def test_a_request_beyond_the_fence_is_charged_with_preemptions_until_it_ends():
    made = with_one_beyond_the_fence()
    for request_id in list(made.running_ids()):
        made.end(request_id, OutcomeKind.COMPLETED, 0.1)
    made.observe(report(0.2, 0))
    made.observe(report(0.3, 500))
    for number in range(2, 4):
        submit(made, number, 0.3, upper=1e9)
    assert len(made.dispatch(0.3)) == 2, "to pass the fence has cost nothing yet"


def test_at_its_last_moment_a_request_passes_the_fence():
    made = with_one_beyond_the_fence()
    made.observe(report(0.01, 50))
    submit(made, 2, 0.01, upper=1e9, slo=Slo(ttft_ms=160, tpot_ms=100))
    assert made.dispatch(0.05) == []
    assert len(made.dispatch(0.08)) == 1


@pytest.mark.parametrize("shown", [{"kv_usage": 0.95}, {"waiting": 1}, {"kv_usage": None}])
def test_where_the_engine_shows_no_room_the_fence_holds(shown):
    made = build()
    submit(made, 0, 0.0, upper=1e9)
    submit(made, 1, 0.0, upper=1e9)
    assert len(run(made, 0.9, **shown)) == 1


@pytest.mark.parametrize(
    ("first_s", "then_s", "target_ms", "declared", "passes"),
    [
        (0.05, 0.05, 200.0, SLO, True),
        (0.05, 0.15, 200.0, SLO, False),
        (0.05, 0.15, 400.0, SLO, True),
        (0.15, 0.15, 200.0, SLO, True),
        (0.05, 0.15, 200.0, None, True),
    ],
)
def test_where_the_pace_is_above_a_target_only_a_request_with_an_ample_one_passes_the_fence(first_s, then_s, target_ms, declared, passes):
    """The first has 100 ms. On an engine that has never shown a pace below that, to wait gains nothing; nor if nobody asked for it."""
    made = build(tpot_guard=0.7)
    submit(made, 0, 0.0, upper=1e9, declared=declared)
    made.dispatch(0.0)
    now_s = 0.0
    for token in range(1, 201):
        now_s += first_s if token <= 40 else then_s
        made.progress("0000", token, now_s)
        if token % 10 == 0:
            made.expire(now_s)
    made.observe(report(now_s, 0, kv_usage=0.5))
    submit(made, 1, now_s, upper=1e9, slo=Slo(ttft_ms=60_000, tpot_ms=target_ms))
    assert [one.entry.request.id for one in made.dispatch(now_s)] == ["0001"] * passes


def test_an_operator_can_have_eq_2_hold_for_all():
    made = build(fence_overcommit=False)
    submit(made, 0, 0.0, upper=1e9)
    submit(made, 1, 0.0, upper=1e9)
    assert len(run(made, 0.9)) == 1


def test_the_last_tenth_of_the_cache_takes_what_is_sure_to_fit():
    made = build()
    submit(made, 0, 0.0, upper=1e9)
    submit(made, 1, 0.0, upper=300, prompt=100)
    submit(made, 2, 0.0, upper=600, prompt=100)
    assert [request_id for _, request_id, _ in run(made, 5.0, kv_usage=0.95)] == ["0000", "0001"]


def test_a_window_of_an_agent_gives_way_and_one_of_an_operator_does_not():
    for advised, expected in ((True, 4), (False, 1)):
        made = build(n_run=1, advised=advised)
        for number in range(4):
            submit(made, number, 0.0)
        sent = run(made, 5.0)
        assert len(sent) == expected
        assert {why for _, _, why in sent[1:]} <= {"window"}


def test_time_under_the_guard_neither_counts_nor_starts_the_time_under_a_window_anew():
    made = build()
    submit(made, 0, 0.0)
    submit(made, 1, 0.0)
    sent = []
    for from_s, until_s, n_run, guard in ((0.0, 0.3, 1, 0.0), (0.4, 1.4, 32, 1e-6), (1.5, 3.0, 1, 0.0)):
        made.set_controls("a", Controls(n_run=n_run, advised=True))
        made.set_tpot_guard(guard)
        sent += run(made, until_s, from_s=from_s)
    assert sent == [(0.0, "0000", ""), (1.7, "0001", "window")]
    assert made.held_while_idle_s == pytest.approx({"window": 0.6, "TPOT guard": 1.1})


@pytest.mark.parametrize("policy", ["fcfs", "wfq", "vtc", "stride", "cfs", "mlfq", "rr"])
def test_what_goes_out_of_turn_is_charged_to_its_turn(policy: str):
    made = build(n_run=1, policy=policy)
    made.set_weights({"c": 2.0})
    for number, tenant in enumerate("caaabbb"):
        submit(made, number, 0.2 * number, tenant=tenant, prompt=1000)
        made.dispatch(0.2 * number)
    assert run(made, 2.0, from_s=2.0) == []
    assert [request_id for _, request_id, _ in run(made, 2.5, from_s=2.1)] == ["0001"]
    made.set_controls("a", Controls(n_run=3))
    assert [one.entry.request.id for one in made.dispatch(2.5)] == ["0004"]
    made.end("0001", OutcomeKind.COMPLETED, 2.6, 10)
    made.check_conservation()


def test_a_window_holds_while_those_that_run_are_close_to_their_target():
    slo = Slo(ttft_ms=60_000, tpot_ms=100)
    for pace_tokens_per_s, expected in ((11, 1), (40, 2)):
        made = build(n_run=1)
        submit(made, 0, 0.0, slo=slo)
        submit(made, 1, 0.0, slo=slo)
        sent = run(made, 4.0, tokens=lambda now_s, pace=pace_tokens_per_s: 1 + int(pace * now_s))
        assert len(sent) == expected


@pytest.mark.parametrize(("serves", "relieved"), [("m", ["0001"]), ("other", [])])
def test_an_instance_that_has_changed_its_models_since_it_was_looked_at_takes_what_it_serves(serves, relieved):
    made = build(n_run=1)
    submit(made, 0, 0.0)
    submit(made, 1, 0.0)
    run(made, 0.3)
    made.expire(0.9)
    made.set_models("a", frozenset({serves}))
    assert [one.entry.request.id for one in made.dispatch(0.9)] == relieved


def test_a_tenants_own_limit_is_no_forecast():
    made = build(tenants={"t": TenantLimits(max_running=1)})
    submit(made, 0, 0.0)
    submit(made, 1, 0.0)
    assert len(run(made, 5.0)) == 1


def test_prompts_that_the_cache_cannot_hold_together_are_not_sent_together():
    made = build()
    submit(made, 0, 0.0, prompt=6000)
    submit(made, 1, 0.0, prompt=6000)
    assert len(run(made, 5.0)) == 1


def test_overdue_requests_fill_what_nobody_else_wants():
    made = build(overdue="demote", late_share=0.25)
    for number in range(8):
        submit(made, number, 0.0, slo=Slo(ttft_ms=1.0, tpot_ms=100))
    submit(made, 8, 0.5)
    sent = run(made, 0.5, from_s=0.5)
    assert sent[0][1] == "0008"
    assert len(sent) == 9, "half of the window is theirs while those in time are dispatched at once"


@pytest.mark.parametrize(("prompt_ms", "sent"), [(1.0, ["0001"]), (2000.0, [])])
def test_a_late_request_is_sent_to_a_half_empty_instance_only_if_the_guard_admits_it(prompt_ms: float, sent: list[str]):
    """The request in flight has 45 ms to spare. Late ones may have one place while others were held back within 5 s."""
    made = build(overdue="demote", late_share=0.25, tpot_guard=0.5)
    one = made.instances["a"]
    for _ in range(200):
        one.pace.decoded(20.0, 1.0, 32.0)
        one.pace.prefilled(prompt_ms, 100)
    submit(made, 0, 0.0, slo=Slo(ttft_ms=60_000, tpot_ms=25))
    made.dispatch(0.0)
    submit(made, 1, 0.0, slo=Slo(ttft_ms=1.0, tpot_ms=100))
    one.wanted(0.1)
    assert [(name, why) for _, name, why in run(made, 4.0, from_s=0.1)] == [(name, LATE_SHARE) for name in sent]


def test_a_demoted_request_is_shed_when_it_has_waited_for_long_beyond_its_target():
    made = build(n_run=1, advised=False, overdue="demote", overdue_wait_s=15.0)
    submit(made, 0, 0.0)
    submit(made, 1, 0.0, slo=Slo(ttft_ms=2000, tpot_ms=100))
    made.dispatch(0.0)
    assert made.expire(16.9) == []
    (dropped,) = made.expire(17.1)
    assert (dropped.entry.request.id, dropped.refusal.status, dropped.refusal.kind) == ("0001", 503, OutcomeKind.SHED)
    assert dropped.refusal.retry_after_s >= 1.0
    made.check_conservation()


def test_the_engines_report_corrects_the_fence():
    """A shared prompt of 4,000 tokens is in the cache once: what the engine reports outranks the sum of our bookings."""
    made = build(ceiling=8)
    for number in range(3):
        submit(made, number, 0.0, prompt=4000)
    assert len(run(made, 0.2, kv_usage=0.42, tokens=lambda _: 2)) == 2
    sent = run(made, 1.0, from_s=0.3, kv_usage=0.42, tokens=lambda _: 3)
    assert [(request_id, why) for _, request_id, why in sent] == [("0002", "")]
