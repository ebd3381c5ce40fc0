"""Who counts as too late: the lead that instances show, and what deadline order is worth with it in an overload."""

import math
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.instances.lateness import LEAST, MOST, FirstTokenOverhead, first_look_s, last_chance_ms, needed_ms
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile


@given(st.lists(st.floats(-10.0, 1e5), min_size=LEAST, max_size=400), st.sampled_from([0.5, 0.9, 0.99]))
def test_whatever_comes_the_wanted_share_of_values_passes_the_lead(values, quantile):
    lead, passed = FirstTokenOverhead(quantile), 0
    lead.shown(values[0])
    for value in values[1:]:
        # What it stood at before the value came, from the second value on; below LEAST it keeps that to itself.
        passed += math.log(max(10.0, value)) > lead.log_ms
        lead.shown(value)
    logs = [math.log(max(10.0, value)) for value in values]
    asked = len(values) - 1
    assert abs(passed - (1.0 - quantile) * asked) <= 10.0 * (max(logs) - min(logs) + 0.1) + 1e-6


@pytest.mark.parametrize(("target_ms", "chance_ms"), [(100.0, 100.0), (600.0, 100.0), (1000.0, 150.0), (10_000.0, 200.0)])
def test_the_last_chance_is_longer_where_the_target_has_room(target_ms, chance_ms):
    assert last_chance_ms(target_ms) == pytest.approx(chance_ms)


def test_it_follows_the_quantile_and_forgets():
    draw, lead = random.Random(1), FirstTokenOverhead(0.9)
    for scale_ms in (50.0, 400.0, 50.0):
        for _ in range(600):
            lead.shown(draw.uniform(0.0, scale_ms))
        assert lead.ms == pytest.approx(0.9 * scale_ms, rel=0.25)


def test_it_says_nothing_before_it_has_seen_enough_unless_it_is_told():
    lead = FirstTokenOverhead(0.9)
    for _ in range(LEAST - 1):
        assert lead.ms is None
        lead.shown(80.0)
    lead.shown(80.0)
    assert lead.ms == pytest.approx(80.0, rel=0.3)
    assert FirstTokenOverhead(0.9, 120.0).ms == 120.0


def test_what_must_be_left_lies_between_the_least_and_a_share_of_the_target():
    assert needed_ms(30.0, None, 1000.0) == 30.0
    assert needed_ms(30.0, 120.0, 1000.0) == 120.0
    assert needed_ms(30.0, 5000.0, 1000.0) == MOST * 1000.0
    assert needed_ms(600.0, 700.0, 1000.0) == 600.0
    assert first_look_s(10.0, 30.0, 1000.0) == 10.0 - MOST
    assert first_look_s(10.0, 600.0, 1000.0) == 10.0 - 0.6


def build(*, n_run=1, policy="edf", profile=None, **settings):
    kv_tokens = profile.kv_capacity_tokens if profile else 0
    made = Scheduler(
        settings=SchedulerSettings(**({"late_confidence": 0.9} | settings)),
        instances=[InstanceSpec(name="a", capacity_n_run=256, kv_capacity_tokens=kv_tokens)],
        router=make_router("least-loaded"),
        policy=policy,
    )
    made.set_controls("a", Controls(n_run=n_run))
    return made


def submit(made, name, *, at_s, ttft_ms=1000.0, tpot_ms=1000.0):
    request = Request(id=name, tenant="t", model="m", arrival_s=at_s, prompt_tokens=100, stream=True)
    made.submit(request, Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms), output_tokens=20.0, ttft_ms=100.0, tpot_ms=10.0), at_s)


def serve(made, name, *, at_s, took_ms, tokens=2):
    """One request from dispatch to its end."""
    submit(made, name, at_s=at_s, ttft_ms=1e6)
    assert [sent.entry.request.id for sent in made.dispatch(at_s)] == [name]
    for token in range(tokens):
        made.progress(name, token + 1, at_s + took_ms / 1000.0)
    made.end(name, OutcomeKind.COMPLETED, at_s + took_ms / 1000.0, tokens)


def warmed(*, took_ms, **more):
    """An instance on which prompts alone take 20 ms, and whose first tokens came after `took_ms` of late."""
    made = build(**more)
    for number in range(60):
        serve(made, f"w{number}", at_s=float(number), took_ms=20.0 if number < 40 else took_ms)
    return made


def show(made, beyond_ms):
    """First tokens come so late for a while."""
    for _ in range(60):
        made.instances["a"].lead.shown(beyond_ms)


def goes_first(made, *, ttft_ms, after_ms):
    """Which of two goes: one with that target, when so much of it is over, or one behind it that has time."""
    submit(made, "brink", at_s=100.0, ttft_ms=ttft_ms)
    submit(made, "after", at_s=100.0, ttft_ms=5000.0)
    now_s = 100.0 + after_ms / 1000.0
    made.expire(now_s)
    return made.dispatch(now_s)[0].entry.request.id


def test_a_request_at_the_brink_goes_after_those_that_can_still_be_in_time():
    # 100 ms are left of 1000, and first tokens take more than that; by the half of the shortest that was ever seen it goes.
    assert goes_first(warmed(took_ms=180.0), ttft_ms=1000.0, after_ms=900.0) == "after"
    assert goes_first(warmed(took_ms=20.0), ttft_ms=1000.0, after_ms=900.0) == "brink", "enough where first tokens come at once"
    by_share = warmed(took_ms=180.0, late_confidence=0.0, late_service_share=0.5)
    assert goes_first(by_share, ttft_ms=1000.0, after_ms=900.0) == "brink"


def test_no_target_is_too_tight_to_wait_at_all():
    made = warmed(took_ms=900.0)
    show(made, 900.0)
    assert goes_first(made, ttft_ms=500.0, after_ms=300.0) == "brink", "first tokens take longer than the whole target"
    assert goes_first(warmed(took_ms=900.0), ttft_ms=500.0, after_ms=490.0) == "after"


def test_what_instances_show_while_a_request_waits_counts():
    made = warmed(took_ms=20.0)
    submit(made, "brink", at_s=100.0, ttft_ms=2000.0)
    submit(made, "after", at_s=100.0, ttft_ms=9000.0)
    made.expire(100.1)
    show(made, 400.0)
    made.expire(101.8)
    assert made.dispatch(101.8)[0].entry.request.id == "after"


def test_an_instance_tells_its_lead():
    assert build().snapshot(0.0, "g").instances[0].first_token_overhead_ms == 0.0
    assert warmed(took_ms=180.0).snapshot(100.0, "g").instances[0].first_token_overhead_ms > 30.0
    assert warmed(took_ms=180.0, late_confidence=0.0).snapshot(100.0, "g").instances[0].first_token_overhead_ms == 0.0


PROFILE = load_profile("a100-qwen3-8b")


def always(estimates, _request, _now_s):
    return estimates


def crowd(*, rate, seconds, ttft_ms, tpot_ms, seed=7):
    """More than one A100 can serve, with targets that differ by a factor of five."""
    draw, at_s = random.Random(seed), 0.0
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        request = Request(
            id=f"{at_s:012.6f}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=int(draw.uniform(50, 2000)), stream=True
        )
        slo = Slo(ttft_ms=ttft_ms * draw.uniform(1.0, 5.0), tpot_ms=tpot_ms)
        believed = Estimates(slo=slo, output_tokens=300.0, output_tokens_upper=600.0, ttft_ms=100.0, tpot_ms=20.0)
        yield Arrival(request=request, estimate=partial(always, believed), output_tokens=int(draw.uniform(100, 500)))


def run(*, arrivals, n_run=256, **settings):
    made = build(n_run=n_run, profile=PROFILE, **settings)
    return simulate(arrivals, {"a": EngineModel(PROFILE, n_run=256)}, made, until_s=600.0).records


def test_in_an_overload_hardly_anything_is_prefilled_in_vain():
    found = {}
    for confidence in (0.0, 0.9):
        records = run(
            arrivals=crowd(rate=12.0, seconds=120.0, ttft_ms=2000.0, tpot_ms=500.0),
            n_run=64,
            late_service_share=0.5,
            late_confidence=confidence,
        )
        # Sent before its target had passed, and late all the same.
        vain = sum(r.queue_ms < r.slo.ttft_ms < r.ttft_ms for r in records if r.ttft_ms is not None)
        found[confidence] = vain / len(records), sum(r.slo_met for r in records) / len(records)
    assert found[0.9][0] < 0.25 * found[0.0][0], found
    assert found[0.9][1] > 1.1 * found[0.0][1], found


def test_late_requests_do_not_fill_an_instance_from_which_they_keep_those_in_time():
    """They have slowed it down, so the guard holds back who is in time; soon that one is late, too, and would come in as such."""
    made = build(n_run=16, tpot_guard=0.5)
    submit(made, "first", at_s=0.0)
    made.dispatch(0.0)
    for token in range(40):
        # By itself it gives a token every 10 ms.
        made.progress("first", token + 1, 0.02 + 0.01 * token)
        made.expire(0.02 + 0.01 * token)
    made.end("first", OutcomeKind.COMPLETED, 0.5, 40)
    for number in range(40):
        submit(made, f"late{number:02d}", at_s=1.0, ttft_ms=100.0)
    made.expire(10.0)
    sent = [one.entry.request.id for one in made.dispatch(10.0)]
    assert len(sent) == 16, "nobody is in time: the whole window is theirs"
    for token in range(20):
        for name in sent:
            made.progress(name, token + 1, 11.0 + 0.2 * token)
        made.expire(11.0 + 0.2 * token)
    submit(made, "in time", at_s=15.0, ttft_ms=300.0, tpot_ms=60.0)
    made.end(sent[0], OutcomeKind.COMPLETED, 15.0, 20)
    # Tokens come every 200 ms, so it would miss its TPOT target; the place stays free although it may not have it.
    assert made.dispatch(15.0) == []
    made.expire(15.5)
    assert made.dispatch(15.5) == []
    # Nobody in time has come for a while: it is theirs again.
    assert [one.entry.request.id for one in made.dispatch(21.0)] == ["late16"]
