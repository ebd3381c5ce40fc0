"""Virtual time: causality, the engine's own timing, deadlines, control laws, stopping."""

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller import simulation
from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, Periodic, SimulationResult
from hmas.controller.simulation.check import check
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile

PROFILE = load_profile("demo-small")


def believed(_request, _now_s):
    return Estimates(slo=Slo(ttft_ms=2000, tpot_ms=60))


def arrival(number, at_s=0.0, prompt=200, output=20, **more):
    request = Request(id=f"{number:04d}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt, **more)
    return Arrival(request=request, estimate=believed, output_tokens=output)


def build(names=("a",), *, n_run=8, policy="fcfs", **more):
    scheduler = Scheduler(
        settings=SchedulerSettings(**more),
        instances=[InstanceSpec(name=name, capacity_n_run=64) for name in names],
        router=make_router("least-loaded"),
        policy=policy,
    )
    for name in names:
        scheduler.set_controls(name, Controls(n_run=n_run))
    return scheduler, {name: EngineModel(PROFILE) for name in names}


def simulate(arrivals, engines, scheduler, *, followups=None, **more) -> SimulationResult:
    """Every run is judged by the independent checker."""
    followed = []

    def follow(ended, now_s):
        made = followups(ended, now_s)
        followed.extend(made)
        return made

    result = simulation.simulate(arrivals, engines, scheduler, followups=None if followups is None else follow, **more)
    assert check([*arrivals, *followed], result, profiles={name: engine.profile for name, engine in engines.items()}) == []
    return result


def test_one_request_takes_what_the_engine_takes():
    scheduler, engines = build()
    (record,) = simulate([arrival(0, at_s=5.0, prompt=300, output=4)], engines, scheduler).records
    prefill_ms = 1000 * PROFILE.step_duration_s(prefill_tokens=300, prefill_pairs=300 * 301 // 2, decode_seqs=0, decode_kv_tokens=0)
    decode_ms = [
        1000 * PROFILE.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=1, decode_kv_tokens=300 + k) for k in (1, 2, 3)
    ]
    assert record.queue_ms == 0.0
    assert record.ttft_ms == pytest.approx(prefill_ms)
    assert record.tpot_ms == pytest.approx(sum(decode_ms) / 3)
    assert record.total_ms == pytest.approx(prefill_ms + sum(decode_ms))
    assert (record.outcome, record.output_tokens, record.slo_met) == (OutcomeKind.COMPLETED, 4, True)


workloads = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 1500), st.integers(1, 60)), min_size=1, max_size=30)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=15)
@given(rows=workloads)
def test_effects_follow_causes_and_nobody_is_lost(policy, rows):
    scheduler, engines = build("ab", n_run=3, policy=policy, tpot_guard=0.5, overdue="shed", late_service_share=1.0)
    arrivals = [arrival(i, at_s=at_s, prompt=prompt, output=output) for i, (at_s, prompt, output) in enumerate(rows)]
    result = simulate(arrivals, engines, scheduler)
    assert sorted(record.request_id for record in result.records) == [f"{i:04d}" for i in range(len(rows))]
    assert [record.arrival_s for record in result.records] == sorted(at_s for at_s, _, _ in rows)
    wanted = {f"{i:04d}": output for i, (_, _, output) in enumerate(rows)}
    for record in result.records:
        assert record.outcome in {OutcomeKind.COMPLETED, OutcomeKind.SHED}
        if record.outcome is OutcomeKind.COMPLETED:
            assert 0.0 <= record.queue_ms < record.ttft_ms <= record.total_ms
            assert record.output_tokens == wanted[record.request_id]
            # No engine step is shorter than its base.
            assert record.service_ttft_ms >= PROFILE.step_ms
            assert record.output_tokens < 2 or record.tpot_ms >= PROFILE.step_ms
    assert result.counts.queued == result.counts.running == 0
    assert sum(totals.generation_tokens for totals in result.engines.values()) == sum(record.output_tokens for record in result.records)
    for totals in result.engines.values():
        assert totals.busy_s <= result.end_s - min(at_s for at_s, _, _ in rows) + 1e-9


def test_a_window_of_one_serves_one_after_the_other():
    scheduler, engines = build(n_run=1)
    records = simulate([arrival(i, at_s=0.001 * i) for i in range(5)], engines, scheduler).records
    ends = [record.arrival_s + record.total_ms / 1000 for record in records]
    starts = [record.arrival_s + record.queue_ms / 1000 for record in records]
    assert all(start == pytest.approx(end) for start, end in zip(starts[1:], ends, strict=False))


def test_deadlines_end_waiting_and_running_requests():
    scheduler, engines = build(n_run=1, overdue="keep")
    rows = [arrival(0, output=1000, deadline_s=1.0), arrival(1, deadline_s=0.5), arrival(2, deadline_s=100.0)]
    first, second, third = simulate(rows, engines, scheduler).records
    assert (first.outcome, second.outcome, third.outcome) == (OutcomeKind.TIMED_OUT, OutcomeKind.TIMED_OUT, OutcomeKind.COMPLETED)
    assert first.ttft_ms > 0
    assert 1000 <= first.total_ms <= 1100
    assert second.queue_ms == -1.0
    assert third.queue_ms == pytest.approx(first.total_ms)
    assert engines["a"].idle


def test_what_the_engine_or_the_queue_refuses_has_an_outcome_and_a_reason():
    scheduler, engines = build(queue_limit=2, n_run=1)
    rows = [arrival(0, prompt=PROFILE.max_model_len + 1), *(arrival(i, at_s=0.01) for i in range(1, 6))]
    records = simulate(rows, engines, scheduler).records
    assert records[0].outcome is OutcomeKind.REJECTED
    assert "output_tokens" in records[0].reason
    assert [record.outcome for record in records[1:]].count(OutcomeKind.REJECTED) == 3
    assert all("limit is 2" in record.reason for record in records[1:] if record.outcome is OutcomeKind.REJECTED)


def test_a_refused_request_ends_like_any_other():
    scheduler, engines = build(queue_limit=1, n_run=1)
    ended = []

    def again(one, now_s):
        late = now_s + 60.0
        return [arrival(9, at_s=late)] if one.kind is OutcomeKind.REJECTED else []

    rows = [arrival(0, output=200), arrival(1, at_s=0.1), arrival(2, at_s=0.2)]
    result = simulate(
        rows, engines, scheduler, on_end=lambda one, now_s: ended.append((one.entry.request.id, now_s, one.status)), followups=again
    )
    refused = [record for record in result.records if record.outcome is OutcomeKind.REJECTED]
    assert [record.request_id for record in refused] == ["0002"]
    assert ended[0] == ("0002", 0.2, 429)
    assert [name for name, *_ in ended] == ["0002", "0000", "0001", "0009"], "and the follow-up was served"


def test_the_clients_cap_ends_an_answer():
    scheduler, engines = build()
    (record,) = simulate([arrival(0, output=500, max_output_tokens=7)], engines, scheduler).records
    assert record.output_tokens == 7


def test_control_laws_run_on_their_beat_and_steer_the_very_scheduler():
    scheduler, engines = build(n_run=1)
    beats, ended = [], []

    def law(now_s, made, models):
        assert made is scheduler
        assert set(models) == {"a"}
        beats.append(now_s)
        if now_s >= 10.5:
            made.set_controls("a", Controls(n_run=16))
            made.set_policy("sjf", now_s)

    arrivals = [arrival(i, at_s=10.0, output=30) for i in range(12)]
    result = simulate(arrivals, engines, scheduler, controls=[Periodic(0.25, law)], on_end=lambda one, now_s: ended.append((one, now_s)))
    assert beats == [10.0 + 0.25 * (i + 1) for i in range(len(beats))]
    assert len(beats) >= 3
    assert {record.policy for record in result.records} == {"fcfs", "sjf"}
    assert [now_s for _, now_s in ended] == sorted(now_s for _, now_s in ended)
    assert len(ended) == 12
    assert result.end_s == pytest.approx(ended[-1][1])


def test_it_stops_when_told_and_says_who_was_still_there():
    scheduler, engines = build(n_run=1)
    scheduler.set_draining("a", True)
    result = simulate([arrival(0), arrival(1, at_s=50.0)], engines, scheduler, until_s=20.0)
    assert [record.outcome for record in result.records] == [None]
    assert result.counts.queued == 1
    assert result.end_s <= 20.0


def test_no_arrivals_is_an_empty_result():
    scheduler, engines = build()
    assert simulate([], engines, scheduler).records == []


def test_bad_calls_are_told():
    scheduler, engines = build()
    with pytest.raises(SchedulingError, match="tick_s"):
        simulate([], engines, scheduler, tick_s=0.0)
    scheduler, _ = build("ab")
    with pytest.raises(SchedulingError, match=r"'b' has no engine model.*a"):
        simulate([arrival(0), arrival(1)], {"a": EngineModel(PROFILE)}, scheduler)


def test_a_stream_is_read_one_ahead():
    read = []

    def stream():
        for i in range(50):
            read.append(i)
            yield arrival(i, at_s=0.5 * i, output=2)

    scheduler, engines = build()
    ahead = []

    def ended(one, _now_s):
        ahead.append(read[-1] - int(one.entry.request.id))

    result = simulation.simulate(stream(), engines, scheduler, on_end=ended)
    assert len(result.records) == 50
    assert max(ahead) <= 2


def test_a_stream_that_goes_back_in_time_is_refused():
    scheduler, engines = build()
    with pytest.raises(SchedulingError, match=r"arrival 2 \('0002'\) comes at 1.0 s, before the one ahead, 2.0 s"):
        simulation.simulate(iter([arrival(0), arrival(1, at_s=2.0), arrival(2, at_s=1.0)]), engines, scheduler)


def test_closed_loop_users_ask_again_when_they_are_answered():
    scheduler, engines = build(n_run=2)
    asked = [3]

    def again(ended, now_s):
        asked[0] += 1
        return [arrival(asked[0], at_s=now_s + 0.25)] if asked[0] < 40 else []

    result = simulate([arrival(i) for i in range(3)], engines, scheduler, followups=again)
    assert len(result.records) == result.counts.arrived == 39
    ends = sorted(record.arrival_s + record.total_ms / 1000 for record in result.records)
    assert sorted(record.arrival_s for record in result.records)[3:] == pytest.approx([end_s + 0.25 for end_s in ends[:36]])
    with pytest.raises(SchedulingError, match="before now"):
        simulation.simulate([arrival(0)], build()[1], build()[0], followups=lambda _ended, now_s: [arrival(1, at_s=now_s - 1)])


@pytest.mark.parametrize("block_size", [16, 384])
def test_a_shared_prefix_brings_the_first_token_sooner(block_size):
    scheduler, _ = build()
    engines = {"a": EngineModel(msgspec.structs.replace(PROFILE, block_size=block_size))}
    rows = [arrival(i, at_s=10.0 * i, prompt=1700) for i in range(2)]
    first, second = simulate([Arrival(r.request, r.estimate, 20, block_hashes=(7, 8, 9)) for r in rows], engines, scheduler).records
    assert second.ttft_ms < first.ttft_ms / 3


class _Watched:
    """Routes as least-loaded does, and keeps what blocks it is asked with."""

    uses_blocks = True

    def __init__(self):
        self.blocks = []
        self._inner = make_router("least-loaded")

    def rank(self, entry, instances, now_s):
        self.blocks.append(entry.request.blocks)
        return self._inner.rank(entry, instances, now_s)


def test_routers_see_blocks_of_the_size_that_a_gateway_makes():
    scheduler, engines = build("ab")
    router = _Watched()
    scheduler.set_router("*", router)
    rows = [arrival(i, at_s=float(i), prompt=1700) for i in range(3)]
    hashes, sizes = [(7, 8, 9, 10), (7, 8, 90, 100), (1, 2, 3)], [512, 512, 64]
    simulate(
        [Arrival(r.request, r.estimate, 20, block_hashes=h, hash_tokens=n) for r, h, n in zip(rows, hashes, sizes, strict=True)],
        engines,
        scheduler,
    )
    first, second, small = router.blocks
    assert len(first) == len(set(first)) == 1700 // 64
    assert [one == other for one, other in zip(first, second, strict=True)] == [True] * 16 + [False] * 10
    assert small == (1, 2, 3)


def test_the_front_end_s_share_comes_before_the_engine():
    slow = msgspec.structs.replace(PROFILE, request_ms=40.0)
    scheduler, _ = build()
    (record,) = simulate([arrival(0)], {"a": EngineModel(slow)}, scheduler).records
    scheduler, engines = build()
    (plain,) = simulate([arrival(0)], engines, scheduler).records
    assert record.ttft_ms == pytest.approx(plain.ttft_ms + 40.0)
    assert (record.queue_ms, record.tpot_ms) == (0.0, pytest.approx(plain.tpot_ms))


def test_the_agents_answer_comes_later_and_orders_what_still_waits():
    asked = []

    def late(number, output_tokens):
        def answer(request, now_s):
            asked.append((request.id, now_s))
            return None if output_tokens is None else msgspec.structs.replace(believed(request, now_s), output_tokens=output_tokens)

        one = arrival(number, at_s=0.001 * number, output=20)
        return dataclasses.replace(one, answer=answer, answer_s=0.05)

    def served(arrivals):
        scheduler, engines = build(n_run=1, policy="sjf")
        records = simulate(arrivals, engines, scheduler).records
        return [record.request_id for record in sorted(records, key=lambda record: record.queue_ms)]

    # All are believed to be alike when they come; the first is running when the answers arrive, the last is called the shortest.
    assert served([late(0, 900.0), late(1, None), late(2, 500.0), late(3, 3.0)]) == ["0000", "0003", "0001", "0002"]
    assert asked == [(f"{number:04d}", pytest.approx(0.05 + 0.001 * number)) for number in range(4)]
