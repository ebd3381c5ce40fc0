"""The independent checker: silent on what the kernel does, and it names every way in which a result can be wrong."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, simulate
from hmas.controller.simulation.check import check
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile

PROFILE = load_profile("demo-small")
SMALL = msgspec.structs.replace(PROFILE, kv_blocks=1100, max_model_len=16_384)
NAMES = ("a", "b")


def arrival(number, at_s, prompt=300, output=20, **more):
    request = Request(id=f"{number:04d}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt, **more)
    slo = Slo(ttft_ms=1500, tpot_ms=40)
    return Arrival(request=request, estimate=lambda _request, _now_s: Estimates(slo=slo), output_tokens=output)


def run(arrivals, *, n_run=4, policy="edf", profile=PROFILE, until_s=None, **more):
    scheduler = Scheduler(
        settings=SchedulerSettings(**more),
        instances=[InstanceSpec(name=name, capacity_n_run=64) for name in NAMES],
        router=make_router("least-loaded"),
        policy=policy,
    )
    for name in NAMES:
        scheduler.set_controls(name, Controls(n_run=n_run))
    return simulate(arrivals, {name: EngineModel(profile) for name in NAMES}, scheduler, until_s=until_s)


def judge(arrivals, result, *, n_run=4, profile=PROFILE, **more):
    return check(arrivals, result, profiles=dict.fromkeys(NAMES, profile), n_run=n_run, **more)


ROWS = [(0.05 * i, 100 + 37 * (i % 11) ** 2, 1 + 5 * (i % 9)) for i in range(60)]
ARRIVALS = [arrival(i, *row) for i, row in enumerate(ROWS)]


@pytest.fixture(scope="module")
def result():
    return run(ARRIVALS)


def test_a_sound_result_passes(result):
    assert judge(ARRIVALS, result) == []


def test_an_answer_in_one_piece_is_judged_by_its_end():
    arrivals = [arrival(0, 0.0, output=200), *(arrival(number, 0.1, stream=False) for number in range(1, 9))]
    result = run(arrivals, n_run=1)
    assert judge(arrivals, result, n_run=1) == []
    met = [record.slo_met for record in result.records[1:]]
    assert met == [record.total_ms <= 1500.0 + 40.0 * 19 for record in result.records[1:]]
    assert set(met) == {True, False}
    assert {record.ttft_ms for record in result.records[1:]} == {-1.0}, "nothing is heard of it before its end"
    assert "slo: request 0001" in found(arrivals, changed(result, 1, slo_met=not met[0]), n_run=1)


rows = st.lists(st.tuples(st.floats(0, 5), st.integers(0, 4000), st.integers(1, 60)), min_size=0, max_size=40)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=12, deadline=None)
@given(rows=rows, overdue=st.sampled_from(["keep", "demote", "shed"]), until_s=st.sampled_from([None, 3.0]))
def test_whatever_comes_the_kernel_keeps_the_rules(policy, rows, overdue, until_s):
    arrivals = sorted((arrival(i, *row) for i, row in enumerate(rows)), key=lambda one: one.request.arrival_s)
    result = run(arrivals, policy=policy, overdue=overdue, tpot_guard=0.5, profile=SMALL, until_s=until_s)
    assert judge(arrivals, result, profile=SMALL) == []


def test_deadlines_caps_and_refusals_are_no_violations():
    arrivals = [
        arrival(0, 0.0, prompt=20_000),
        *(arrival(i, 0.01 * i, output=200, deadline_s=1.0 + 0.1 * i) for i in range(1, 20)),
        *(arrival(i, 0.3 + 0.001 * i, max_output_tokens=7) for i in range(20, 40)),
    ]
    result = run(arrivals, queue_limit=25)
    kinds = {record.outcome for record in result.records}
    assert {OutcomeKind.TIMED_OUT, OutcomeKind.REJECTED, OutcomeKind.COMPLETED} <= kinds
    assert judge(arrivals, result) == []


def test_a_run_cut_off_in_the_middle_of_a_long_answer_is_sound():
    arrivals = [arrival(i, 0.0, output=2000) for i in range(64)]
    assert judge(arrivals, run(arrivals, n_run=32, until_s=20.0), n_run=32) == []


def changed(result, place, **fields):
    """The result with one record changed."""
    records = list(result.records)
    records[place] = msgspec.structs.replace(records[place], **fields)
    return msgspec.structs.replace(result, records=records)


def found(arrivals, result, **more):
    return "\n".join(judge(arrivals, result, **more))


def test_conservation(result):
    records = list(result.records)
    lost = msgspec.structs.replace(result, records=records[:-1])
    assert "0059 arrived at 2.95 s and has no record" in found(ARRIVALS, lost)
    assert "the scheduler counts 60 arrivals, there are 59 records" in found(ARRIVALS, lost)
    doubled = msgspec.structs.replace(result, records=[*records, records[-1]])
    assert "0059 has more than one record" in found(ARRIVALS, doubled)
    assert "0059 has a record and never arrived" in found(ARRIVALS[:-1], result)
    assert "0000 arrived more than once" in found([*ARRIVALS, ARRIVALS[0]], result)
    assert "tenant 't', its record says 'u'" in found(ARRIVALS, changed(result, 3, tenant="u"))
    assert "counts 60 completed, the records 59" in found(ARRIVALS, changed(result, 3, outcome=OutcomeKind.SHED))
    assert "0 queued and 0 running, 1 records have no outcome" in found(ARRIVALS, changed(result, 3, outcome=None))
    swapped = msgspec.structs.replace(result, records=[records[1], records[0], *records[2:]])
    assert "order: request 0000" in found(ARRIVALS, swapped)


def test_engine_totals(result):
    name = result.records[0].instance
    for field, text in (("generation_tokens", "output tokens"), ("prompt_tokens", "prompt tokens")):
        totals = msgspec.structs.replace(result.engines[name], **{field: getattr(result.engines[name], field) + 1})
        assert text in found(ARRIVALS, msgspec.structs.replace(result, engines=result.engines | {name: totals}))
    lazy = msgspec.structs.replace(result.engines[name], steps=3, busy_s=1e6)
    text = found(ARRIVALS, msgspec.structs.replace(result, engines=result.engines | {name: lazy}))
    assert "counts 3 steps" in text
    assert "was busy for 1000000.0 s" in text
    assert "name instance 'z', which has no engine" in found(ARRIVALS, changed(result, 0, instance="z"))


def test_causality(result):
    record = result.records[7]
    for fields, text in (
        ({"total_ms": record.ttft_ms}, "before its last token"),
        ({"total_ms": 1e9}, "after the simulation's end"),
        ({"queue_ms": record.queue_ms + 1.0}, "are not its TTFT"),
        ({"queue_ms": -1.0}, "has queue_ms -1.0 and instance"),
        ({"service_ttft_ms": -5.0, "queue_ms": record.ttft_ms + 5.0}, "first token before its dispatch"),
        ({"ttft_ms": -1.0, "service_ttft_ms": -1.0}, "completed without a token"),
        ({"tpot_ms": -1.0}, "output tokens and TPOT -1.0"),
        ({"output_tokens": record.output_tokens + 1}, "it was to produce"),
        ({"slo_met": not record.slo_met}, "slo: request 0007"),
    ):
        assert text in found(ARRIVALS, changed(result, 7, **fields)), fields


def test_nobody_is_faster_than_the_engine(result):
    record = result.records[10]
    quick = record.service_ttft_ms - PROFILE.step_ms
    faster = changed(result, 10, service_ttft_ms=quick, ttft_ms=record.queue_ms + quick)
    assert "its prompt alone takes" in found(ARRIVALS, faster)
    assert "the least step takes 17.550 ms" in found(ARRIVALS, changed(result, 12, tpot_ms=17.0))


def test_no_step_is_shorter_or_larger_than_a_step(result):
    name = result.records[0].instance
    totals = result.engines[name]
    for fields, text in (
        ({"busy_s": totals.steps * 0.017}, "which take"),
        ({"steps": 30, "prompt_tokens": 100_000}, "steps of 2048 at most"),
    ):
        wrong = msgspec.structs.replace(totals, **fields)
        assert text in found(ARRIVALS, msgspec.structs.replace(result, engines=result.engines | {name: wrong})), fields


def test_the_window(result):
    assert judge(ARRIVALS, result, n_run={"a": 4, "b": 4}) == []
    text = found(ARRIVALS, result, n_run={"a": 3, "b": 4})
    assert "instance a had 4 in flight" in text
    assert "its window was 3 at most" in text
    assert "instance b" not in text


def test_the_kv_cache(result):
    text = found(ARRIVALS, result, profile=msgspec.structs.replace(PROFILE, kv_blocks=300))
    assert "instance b held 554 KV blocks at most" in text
    totals = {name: msgspec.structs.replace(one, kv_blocks_peak=300) for name, one in result.engines.items()}
    assert "KV blocks or more" in found(ARRIVALS, msgspec.structs.replace(result, engines=totals))
    totals = {name: msgspec.structs.replace(one, kv_blocks_peak=1) for name, one in result.engines.items()}
    assert "one prompt took 238" in found(ARRIVALS, msgspec.structs.replace(result, engines=totals))
    tight = msgspec.structs.replace(PROFILE, max_model_len=2000)
    assert "which holds 2000" in found(ARRIVALS, result, profile=tight)


def test_many_violations_of_a_kind_are_counted(result):
    records = [msgspec.structs.replace(record, slo_met=not record.slo_met) for record in result.records]
    lines = judge(ARRIVALS, msgspec.structs.replace(result, records=records))
    assert lines[-1] == "slo: 55 more"
    assert len(lines) == 6
