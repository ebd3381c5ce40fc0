"""The digital twin: the past replayed under every candidate, what is made of it, and that nothing passes it that it expects to be worse."""

import math
from dataclasses import replace as changed

import msgspec
import numpy as np
import pytest
from control_kit import long_view, short_view
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.meta.fleet import SAMPLES_MIN, FleetModel
from agents.meta.loop import MetaLoop, TwinSettings
from agents.meta.model import MetaModel
from agents.meta.replay import Candidate, Outlook, Plant, gain, replay
from agents.meta.traffic import Asked, Traffic
from agents.meta.twin import REQUESTS_MIN, TOLERANCE, best_of, judge
from controller.core.errors import PolicyError
from controller.core.messages import Completion, InstanceView, RequestFeatures, SystemSnapshot
from controller.core.types import OutcomeKind, Slo, TaskType
from controller.scheduling.outcomes import SchedulerSettings
from controller.scheduling.pool import POLICIES
from engines.sim.profile import load_profile

PLAIN = SchedulerSettings(overdue="keep", fence=False)
SHORT, LONG = 40, 1200


def asked(number: int, arrival_s: float, output: int, *, ttft_ms: float = 2000.0, tenant: str = "t", **more) -> Asked:
    fields = {
        "request_id": f"r{number}",
        "tenant": tenant,
        "model": "m",
        "arrival_s": arrival_s,
        "prompt_tokens": 200,
        "output_tokens": output,
        "believed_tokens": float(output),
        "upper_tokens": 1.5 * output,
        "slo": Slo(ttft_ms=ttft_ms, tpot_ms=500.0),
    }
    return Asked(**(fields | more))


def blocked(rate: float = 4.0, seconds: float = 120.0, seed: int = 1) -> list[Asked]:
    """Short requests in a hurry behind long ones that are in none."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / rate, int(rate * seconds)))
    return [
        asked(n, 1000.0 + at, LONG, ttft_ms=60_000.0) if n % 5 == 0 else asked(n, 1000.0 + at, SHORT) for n, at in enumerate(times.tolist())
    ]


def fleet(n_run: int = 32) -> list[Plant]:
    return [Plant(name="a", profile=load_profile("demo-small"), n_run=n_run)]


def looked(policy: str, window=None, plants=None, **more) -> Outlook:
    return replay(window or blocked(), plants or fleet(), Candidate(policy=policy), settings=PLAIN, **more)


def outlook(policy: str, slots, asked_each: float = 10.0) -> Outlook:
    return Outlook(
        candidate=Candidate(policy=policy),
        requests=round(asked_each * len(slots)),
        good=sum(slots) / (asked_each * len(slots)),
        slots=tuple(slots),
        asked=(asked_each,) * len(slots),
        ttft_ms_p99=0.0,
    )


def test_the_order_that_saves_the_short_ones_is_found():
    found = [looked(name) for name in ("fcfs", "sjf", "two-lane")]
    verdict = best_of(found, 0.02)
    assert verdict.take is not None
    assert verdict.take.policy in {"sjf", "two-lane"}
    assert "+" in verdict.reason
    assert gain(found[1], found[0]).share > 0.3


def test_a_replay_is_the_same_every_time_and_scores_what_came_after_the_lead_in():
    window = blocked()
    one, again = looked("edf", window), looked("edf", window)
    assert one == again
    late = looked("edf", window, lead_s=30.0)
    assert late.requests == sum(asked.arrival_s >= window[0].arrival_s + 30.0 for asked in window)
    assert one.requests == len(window)
    assert sum(one.asked) == len(window)


def test_tenants_count_by_their_weights():
    window = [msgspec.structs.replace(one, tenant="vip" if one.output_tokens == SHORT else "batch") for one in blocked()]
    plain, weighted = looked("fcfs", window), looked("fcfs", window, weights={"vip": 4.0})
    assert weighted.good < plain.good - 0.05, "first come first served misses the short ones' targets, and theirs count more now"
    assert sum(weighted.asked) == pytest.approx(sum(4.0 if one.tenant == "vip" else 1.0 for one in window))


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(PolicyError, match="nonsense"):
        looked("nonsense")


def test_a_gain_of_one_burst_is_not_believed():
    now, lucky, steady = outlook("fcfs", [5.0] * 12), outlook("edf", [10.0] + [5.0] * 11), outlook("sjf", [5.5, 5.3] * 6)
    assert best_of([now, lucky], 0.0).take is None
    assert best_of([now, outlook("edf", [10.0, 10.0] + [5.0] * 10)], 0.0).take is None
    assert best_of([now, steady], 0.02).take == steady.candidate
    assert best_of([now, steady], 0.2).take is None
    assert best_of([now, outlook("sjf", [4.0] * 12)], 0.0).take is None


@given(st.lists(st.floats(0, 10), min_size=12, max_size=12), st.lists(st.floats(0, 10), min_size=12, max_size=12))
def test_a_proposal_passes_only_where_it_is_not_expected_to_be_worse(now, proposed):
    found = [outlook("fcfs", now), outlook("edf", proposed)]
    assert (judge(found).take is not None) == (gain(found[1], found[0]).share >= -TOLERANCE)


# -- what it stands on


def features(number: int, sent_s: float, output: float = 50.0) -> RequestFeatures:
    return RequestFeatures(
        request_id=f"r{number}",
        sent_s=sent_s,
        tenant="t",
        model="m",
        prompt_tokens=200,
        task_type=TaskType.QA,
        confidence=0.9,
        ttft_slo_ms=800.0,
        tpot_slo_ms=60.0,
        importance=0.75,
        output_tokens=output,
        output_tokens_p90=2 * output,
    )


def completion(number: int, arrival_s: float, output: int, **more) -> Completion:
    fields = {
        "request_id": f"r{number}",
        "sent_s": arrival_s + 3.0,
        "tenant": "t",
        "model": "m",
        "outcome": OutcomeKind.COMPLETED,
        "arrival_s": arrival_s,
        "policy": "edf",
        "instance": "a",
        "prompt_tokens": 200,
        "output_tokens": output,
        "ttft_ms": 300.0,
        "service_ttft_ms": 120.0,
        "tpot_ms": 20.0,
        "total_ms": 300.0 + 20.0 * output,
        "ttft_slo_ms": 800.0,
        "tpot_slo_ms": 60.0,
        "predicted_output_tokens": 70.0,
        "running": 5,
    }
    return Completion(**(fields | more))


def test_what_has_ended_has_its_true_length_and_what_waits_the_believed_one():
    traffic = Traffic()
    for number in range(4):
        traffic.features(features(number, 100.0 + number))
    traffic.completion(completion(0, 99.9, 500))
    traffic.completion(completion(1, 100.9, 0, outcome=OutcomeKind.SHED, predicted_output_tokens=0.0))
    traffic.completion(completion(2, 101.9, 0, outcome=OutcomeKind.REJECTED))
    window = {one.request_id: one for one in traffic.window(0.0, 200.0, 100)}
    assert {name: one.output_tokens for name, one in window.items()} == {"r0": 500, "r1": 50, "r3": 50}
    assert (window["r0"].believed_tokens, window["r0"].arrival_s, window["r0"].upper_tokens) == (70.0, 99.9, 100.0)
    assert [one.request_id for one in traffic.window(100.0, 200.0, 1)] == ["r3"]
    traffic.features(features(0, 150.0))
    assert {one.request_id: one.output_tokens for one in traffic.window(0.0, 200.0, 100)}["r0"] == 500


def test_traffic_is_bounded():
    traffic = Traffic(limit=10)
    for number in range(100):
        traffic.features(features(number, 100.0 + number))
    assert len(traffic) == 10
    assert traffic.window(0.0, 1e9, 100)[0].request_id == "r90"


def snapshot(now_s: float, **more) -> SystemSnapshot:
    view = {
        "name": "a",
        "in_flight": 6,
        "in_flight_tokens": 1500,
        "n_run": 12,
        "token_budget": 0,
        "kv_committed": 0.1,
        "tpot_pressure": 0.2,
        "capacity_n_run": 64,
    }
    return SystemSnapshot(
        sent_s=now_s,
        gateway="g",
        policy="edf",
        queued=0,
        queued_tokens=0,
        queued_long=0,
        overdue=0,
        oldest_wait_ms=0.0,
        arrived_total=0,
        dispatched_total=0,
        ended={},
        instances=[InstanceView(**(view | more))],
    )


def test_a_fleet_is_known_once_it_has_shown_its_speed():
    model = FleetModel()
    assert model.plants(0.0, {}) == ([], "no snapshot of the fleet for a while")
    for number in range(SAMPLES_MIN):
        model.observe(snapshot(100.0 + number))
        assert model.plants(100.0 + number, {})[1] == "the speed of a is not known yet"
        model.learn(completion(number, 100.0 + number - 4.0, 100, tpot_ms=20.0))
    (plant,), why = model.plants(140.0, {"a": frozenset({"m"})})
    assert (why, plant.n_run, plant.models) == ("", 12, frozenset({"m"}))
    one = plant.profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=6, decode_kv_tokens=0)
    assert 1000.0 * one == pytest.approx(20.0, rel=0.05)
    model.observe(snapshot(141.0, draining=True))
    assert model.plants(141.0, {}) == ([], "no engine is healthy")


# -- what meta makes of it

UNEVEN = {"by_tenant": {"a": 0.5, "b": 0.5}, "fairness": 0.4, "violation_rate": 0.5}


def model(**changes) -> MetaModel:
    values = {"start": "fcfs", "pool": POLICIES, "period_s": 5.0, "dwell_s": 5.0, "rollback_window_s": 4.0, "settle_s": 2.0}
    return MetaModel(**(values | changes))


def answers(meta: MetaModel, good: dict[str, float], now_s: float) -> list:
    """The twin's word on what it is asked: a share of good requests by policy, 0.5 where none is given."""
    asking = meta.asking
    assert asking is not None
    return meta.on_outlooks([outlook(one.policy, [10.0 * good.get(one.policy, 0.5)] * 12) for one in asking.candidates], now_s)


def until_asked(meta: MetaModel, now_s: float, **view) -> tuple[list, float]:
    said = []
    for _ in range(8):
        now_s += 5.0
        said += meta.on_long(long_view(now_s, **view), now_s)
        if meta.asking is not None:
            return said, now_s
    raise AssertionError("the twin is not asked")


def test_a_wish_of_the_rules_waits_for_the_twins_word_and_is_dropped_where_it_expects_worse():
    meta = model(judged=True)
    said, now_s = until_asked(meta, 0.0, **UNEVEN)
    assert {d.policy for d in said} <= {"fcfs"}
    assert [one.policy for one in meta.asking.candidates] == ["fcfs", "wfq"]
    (kept,) = answers(meta, {"wfq": 0.3}, now_s)
    assert (kept.policy, kept.previous, kept.source) == ("fcfs", "fcfs", "twin")
    assert "expects it to be worse" in kept.reason
    assert kept.evidence == {"fcfs good": 0.5, "wfq good": 0.3}
    _, now_s = until_asked(meta, now_s, **UNEVEN)
    (switched,) = answers(meta, {"wfq": 0.6}, now_s)
    assert (switched.policy, switched.previous) == ("wfq", "fcfs")
    assert "Jain index" in switched.reason
    assert "+10.0" in switched.reason


def test_a_twin_that_cannot_say_leaves_the_rules_as_they_are_without_one():
    meta = model(judged=True)
    _, now_s = until_asked(meta, 0.0, **UNEVEN)
    (switched,) = meta.on_silence("12 requests are too few", now_s)
    assert (switched.policy, switched.source) == ("wfq", "rules")
    assert "12 requests are too few" in switched.reason


def test_the_twin_chooses_from_the_pool_and_is_believed_the_second_time():
    meta = model(selector="twin")
    _, now_s = until_asked(meta, 0.0)
    assert {one.policy for one in meta.asking.candidates} == set(POLICIES)
    first = answers(meta, {"edf": 0.9}, now_s)
    assert [d.policy for d in first] == ["fcfs"]
    assert "only once" in first[0].reason
    _, now_s = until_asked(meta, now_s)
    (second,) = answers(meta, {"edf": 0.9}, now_s)
    assert (second.policy, second.source) == ("edf", "twin")
    _, now_s = until_asked(meta, now_s)
    (third,) = answers(meta, {"edf": 0.9, "sjf": 0.905}, now_s)
    assert third.policy == "edf", "half a point is no reason to move"


def test_an_answer_that_comes_too_late_changes_nothing():
    meta = model(judged=True)
    _, now_s = until_asked(meta, 0.0, **UNEVEN)
    asking = meta.asking
    said = meta.on_short(short_view(now_s, anomalies=["queue_stuck"]), now_s)
    assert said[-1].bypass
    assert meta.on_outlooks([outlook(one.policy, [9.0] * 12) for one in asking.candidates], now_s) == []
    meta = model(judged=True)
    _, now_s = until_asked(meta, 0.0, **UNEVEN)
    meta.on_short(short_view(now_s, forced=["policy"]), now_s)
    assert meta.asking is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(POLICIES)), st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_whatever_the_twin_says_it_stays_within_the_pool_and_its_dwell(words):
    meta = model(selector="twin", dwell_s=12.0)
    now_s, policy, switched_s = 0.0, "fcfs", -math.inf
    for name, share, silent in words:
        now_s += 5.0
        meta.on_long(long_view(now_s), now_s)
        if meta.asking is None:
            continue
        said = meta.on_silence("no", now_s) if silent else answers(meta, {name: share}, now_s)
        for decision in said:
            assert decision.policy in POLICIES
            if decision.policy != policy:
                assert now_s - switched_s >= 12.0
                policy, switched_s = decision.policy, now_s


def test_the_loop_asks_about_what_it_has_heard():
    loop = MetaLoop(model(judged=True), FleetModel({"a": load_profile("demo-small")}), TwinSettings(admission=PLAIN, window_s=60.0))
    assert isinstance(loop.question(0.0), str)
    _, now_s = until_asked(loop.model, 0.0, **UNEVEN)
    assert loop.question(now_s) == "no snapshot of the fleet for a while"
    loop.hear(snapshot(now_s))
    assert "too few" in loop.question(now_s)
    for number in range(2 * REQUESTS_MIN):
        loop.hear(features(number, now_s - 30.0 + number / 10.0))
    question = loop.question(now_s)
    assert len(question.asked) == 2 * REQUESTS_MIN
    outlooks = question.answer()
    assert [one.candidate.policy for one in outlooks] == ["fcfs", "wfq"]
    (decision,) = loop.answered(question, outlooks, 0.5, now_s)
    assert decision.evidence.keys() == {"fcfs good", "wfq good"}
    slow = MetaLoop(
        model(judged=True), FleetModel({"a": load_profile("demo-small")}), changed(TwinSettings(admission=PLAIN), budget_s=1e-6)
    )
    until_asked(slow.model, 0.0, **UNEVEN)
    slow.hear(snapshot(now_s))
    for number in range(2 * REQUESTS_MIN):
        slow.hear(features(number, now_s - 30.0 + number / 10.0))
    assert len(slow.question(now_s).asked) == REQUESTS_MIN
