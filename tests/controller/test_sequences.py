"""A request for several answers, or of several prompts, takes as many slots, KV cache and tokens as it has sequences."""

import asyncio
from pathlib import Path

import pytest
from gateway_kit import chat, eventually, key_hash, most_held, running
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import completed

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.config.section import TenantConfig
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import TenantLimits
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.results import Ended, Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot


def request(number: int, sequences: int = 1, tenant: str = "a", *, prompts: int = 1, prompt: int = 100, **more) -> Request:
    return Request(
        id=f"{number:06d}", tenant=tenant, model="m", arrival_s=0.0, prompt_tokens=prompt, prompts=prompts, sequences=sequences, **more
    )


def believed(output: float = 100.0) -> Estimates:
    return Estimates(slo=Slo(ttft_ms=600_000, tpot_ms=100), output_tokens=output, output_tokens_upper=output)


def build(n_run: int, *, tenants=None, instances: int = 1, kv: int = 0, policy: str = "fcfs", **more) -> Scheduler:
    specs = [InstanceSpec(name=f"i{number}", capacity_n_run=1000, kv_capacity_tokens=kv) for number in range(instances)]
    made = Scheduler(
        settings=SchedulerSettings(**({"fence_margin": 0.0} | more)),
        instances=specs,
        router=make_router("least-loaded"),
        policy=policy,
        tenants=tenants,
    )
    for spec in specs:
        made.set_controls(spec.name, Controls(n_run=n_run))
    return made


def submit(made: Scheduler, *requests: Request, output: float = 100.0) -> None:
    for one in requests:
        assert not isinstance(made.submit(one, believed(output), 0.0), Refusal)


def sent(made: Scheduler, now_s: float = 0.0) -> list[str]:
    return [one.entry.request.id for one in made.dispatch(now_s)]


def test_it_is_due_when_one_of_its_answers_is():
    several, one = (QueueEntry(request(0, answers), believed(output), 0) for answers, output in ((8, 400.0), (1, 100.0)))
    assert several.deadline_s == 600.0 + 0.1 * 50 < one.deadline_s == 600.0 + 0.1 * 100
    assert several.latest_start_s == pytest.approx(605.0 - 0.2 - 0.03 * 50)


# -- the window -------------------------------------------------------------------------------------------------------------


def test_each_sequence_takes_a_slot_of_the_window():
    made = build(8)
    submit(made, request(0, 4), request(1, 3), request(2, 2), request(3, 1))
    assert sent(made) == ["000000", "000001", "000003"], "two more do not fit, one does"
    view = made.snapshot(0.0, "g").instances[0]
    assert (view.in_flight, view.sequences, view.occupied) == (3, 8, 8)
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 40)
    assert sent(made, 1.0) == ["000002"]
    assert (made.in_flight("i0"), made.sequences("i0")) == (3, 6)
    made.check_conservation()


def test_a_request_with_more_sequences_than_the_window_runs_alone():
    made = build(4)
    submit(made, request(0), request(1, 32), request(2))
    assert sent(made) == ["000000", "000002"]
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    assert sent(made, 1.0) == []
    made.end("000002", OutcomeKind.COMPLETED, 2.0, 1)
    assert sent(made, 2.0) == ["000001"]
    submit(made, request(3))
    assert sent(made, 2.0) == []
    made.end("000001", OutcomeKind.COMPLETED, 3.0, 32)
    assert sent(made, 3.0) == ["000003"]


@pytest.mark.parametrize("sequences", [6, 100])
@pytest.mark.parametrize("instances", [1, 3])
def test_small_requests_do_not_keep_a_large_one_waiting_for_ever(sequences: int, instances: int):
    made = build(8, instances=instances)
    number = 1000
    submit(made, *(request(one) for one in range(8 * instances)))
    made.dispatch(0.0)
    submit(made, request(999, sequences))
    for step in range(2000):
        now_s = 0.05 * step
        submit(made, request(number))
        number += 1
        made.end(made.running_ids()[step % len(made.running_ids())], OutcomeKind.COMPLETED, now_s, 1)
        made.expire(now_s)
        if "000999" in sent(made, now_s):
            break
    assert "000999" in made.running_ids()
    made.check_conservation()


def test_an_engine_that_shows_room_is_not_flooded_by_one_request():
    """What is held by a window is sent after half a second, though no further than the engine itself allows."""
    made = build(4)
    made.set_controls("i0", Controls(n_run=2, advised=True))
    made.observe(EngineSnapshot(engine="i0", taken_s=0.0, healthy=True, max_num_seqs_ceiling=16))
    submit(made, request(0, 2))
    assert sent(made) == ["000000"]
    submit(made, request(1, 15), request(2, 14))
    seen: list[str] = []
    for tick in range(40):
        made.expire(0.1 * tick)
        seen += sent(made, 0.1 * tick)
    assert seen == ["000002"]


@settings(max_examples=60)
@given(data=st.data())
def test_the_window_holds_and_every_request_ends(data):
    window = data.draw(st.integers(1, 9))
    made = build(window, instances=data.draw(st.integers(1, 2)), kv=data.draw(st.sampled_from([0, 3000])), fence_overcommit=False)
    number, now_s = 0, 0.0
    sizes: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        now_s += 0.01
        if data.draw(st.booleans()) or not made.running_ids():
            prompts, choices = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
            one = request(number, prompts * choices, prompts=prompts, prompt=100 * prompts)
            sizes[one.id] = one.sequences
            submit(made, one, output=50.0 * one.sequences)
            number += 1
        else:
            made.end(data.draw(st.sampled_from(made.running_ids())), OutcomeKind.COMPLETED, now_s, 3)
        made.dispatch(now_s)
        made.check_conservation()
        for view in made.snapshot(now_s, "g").instances:
            assert view.sequences <= window or view.in_flight == 1
    while made.counts().queued or made.counts().running:
        now_s += 0.01
        made.dispatch(now_s)
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s, 1)
    assert made.counts().ended[OutcomeKind.COMPLETED] == number


# -- the targets of one answer ----------------------------------------------------------------------------------------------


def two_answers(*, stream: bool, end_s: float) -> tuple[Scheduler, Ended]:
    """Two answers of 200 tokens each, whose targets are 1 s and 60 ms."""
    made = build(8)
    slo = Slo(ttft_ms=1000.0, tpot_ms=60.0)
    made.submit(request(0, 2, stream=stream), Estimates(slo=slo, output_tokens=400.0, output_tokens_upper=400.0), 0.0)
    made.dispatch(0.0)
    if stream:
        made.progress("000000", 1, 0.5)
        made.progress("000000", 400, end_s)
        assert made.snapshot(end_s, "g").instances[0].tpot_pressure == pytest.approx((end_s - 0.5) / 199 / 0.06)
    return made, made.end("000000", OutcomeKind.COMPLETED, end_s, 400)


def test_tokens_of_answers_side_by_side_do_not_make_one_of_them_fast():
    _, ended = two_answers(stream=True, end_s=20.4)
    assert (ended.tpot_ms, ended.output_tokens, ended.slo_met) == (pytest.approx(100.0), 400, False)
    assert two_answers(stream=True, end_s=12.0)[1].slo_met


def test_answers_in_one_piece_are_due_with_the_last_token_of_one():
    # 1000 + 60 * 199 ms.
    assert [two_answers(stream=False, end_s=end_s)[1].slo_met for end_s in (12.9, 13.0)] == [True, False]


def test_an_instance_counts_its_sequences_and_the_history_learns_no_pace_from_several_answers():
    made = build(8)
    submit(made, request(0, 2))
    made.dispatch(0.0)
    for step in range(100):
        made.progress("000000", 2 * step + 2, 0.5 + 0.1 * step)
        made.expire(0.5 + 0.1 * step)
    assert made.instances["i0"].token_ms == pytest.approx(100.0)
    history = History()
    for number in range(8):
        history.learn(completed(str(number), prompt_tokens=100, output_tokens=400, sequences=2, tpot_ms=100.0))
    assert history.estimate(request(0, 2)).tpot_ms == History().estimate(request(0, 2)).tpot_ms


# -- KV cache, quotas and shares ----------------------------------------------------------------------------------------------


def test_the_fence_books_every_answer_and_the_prompt_they_share_once():
    made = build(100, kv=10_000)
    submit(made, request(0, 4, prompt=1000), output=2000.0)
    made.dispatch(0.0)
    assert made.snapshot(0.0, "g").instances[0].kv_committed == pytest.approx(0.3)
    # Eight prompts of 1000 tokens share nothing.
    submit(made, request(1, 8, prompts=8, prompt=8000), output=400.0)
    assert sent(made) == []


def test_prompts_that_do_not_fit_together_are_computed_one_after_another():
    made = build(100, kv=10_000)
    submit(made, request(0, 20, prompts=20, prompt=20_000))
    assert sent(made) == ["000000"]
    refusal = made.submit(request(1, 4, prompt=20_000), believed(), 0.0)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.status) == ("context_length_exceeded", 400)
    assert "about 20000 tokens" in refusal.message


def test_the_defaults_are_those_of_one_answer_times_the_answers():
    history = History()
    for number, (tokens, sequences) in enumerate([(50, 1), (200, 4)] * 5):
        history.learn(
            Completion(
                request_id=str(number),
                sent_s=0.0,
                tenant="a",
                model="m",
                outcome=OutcomeKind.COMPLETED,
                arrival_s=0.0,
                policy="fcfs",
                prompt_tokens=100,
                output_tokens=tokens,
                sequences=sequences,
            )
        )
    one, eight = history.estimate(request(0)), history.estimate(request(0, 8))
    assert (one.output_tokens, one.output_tokens_upper) == (50, 50)
    assert (eight.output_tokens, eight.output_tokens_upper) == (400, 400)
    assert history.estimate(request(0, 8, max_output_tokens=80)).output_tokens == 80
    assert History().estimate(request(0, 8)).output_tokens == 8 * History().estimate(request(0)).output_tokens


def test_a_context_is_that_of_one_sequence():
    assert request(0, 32, prompts=8, prompt=8000, context_tokens=4000).output_limit == 32 * 3000


def test_the_token_quota_counts_every_answer():
    made = build(100, tenants={"a": TenantLimits(tokens_per_minute=6000)})
    submit(made, request(0, 4, max_output_tokens=400), output=400.0)
    assert made.rates("a", 0.0)["tokens"].remaining == 6000 - 100 - 400


def test_a_share_and_a_cap_count_sequences():
    for limits, of_a in ((TenantLimits(concurrency_share=0.5), 4), (TenantLimits(max_running=5), 5)):
        made = build(8, tenants={"a": limits})
        submit(made, request(0, 3), request(1, 3), request(2, 1), *(request(number, tenant="b") for number in range(10, 30)))
        made.dispatch(0.0)
        assert made.tenancy.running["a"] <= of_a
        assert made.sequences("i0") == 8
        made.check_conservation()


def test_a_cap_below_the_sequences_of_a_request_lets_it_run_alone():
    made = build(8, tenants={"a": TenantLimits(max_running=2)})
    submit(made, request(0), request(1, 6), request(2))
    assert sent(made) == ["000000"]
    made.end("000000", OutcomeKind.COMPLETED, 1.0, 1)
    assert sent(made, 1.0) == ["000001"]
    submit(made, request(3, tenant="b"))
    assert sent(made, 1.0) == ["000003"]
    made.end("000001", OutcomeKind.COMPLETED, 2.0, 1)
    assert sent(made, 2.0) == ["000002"]


# -- through the door -------------------------------------------------------------------------------------------------------


async def test_the_engine_never_computes_more_answers_than_the_window(tmp_path: Path):
    async with running(tmp_path, scheduler=SchedulerConfig(policy="fcfs", n_run=4, tick_s=0.02, fence=False)) as rig:
        async with most_held(rig.sims[0]) as most:
            answers = await asyncio.gather(*(rig.post(chat(f"number {number}", tokens=20, stream=False, n=2)) for number in range(9)))
            assert most == [4]
            large = await rig.post(chat("many", tokens=20, stream=False, n=6))
        assert most == [6]
        completions = await rig.completions()
        assert rig.balanced()
    assert [answer.status for answer in answers] == [200] * 9
    assert len(large.json["choices"]) == 6
    assert sorted(completion.sequences for completion in completions) == [2] * 9 + [6]


async def test_lists_of_prompts_and_answers_keep_to_a_tenants_cap(tmp_path: Path):
    tenants = {"acme": TenantConfig(key_sha256=[key_hash("sk-acme")], max_running=3)}
    async with running(tmp_path, tenants=tenants) as rig:
        headers = {"x-gateway-inference-fairness-id": "acme"}
        first = asyncio.create_task(rig.post(chat("long", tokens=2000, n=3), headers=headers))
        await eventually(lambda: rig.sims[0].model.running == 3)
        second = asyncio.create_task(rig.post(chat("waits", tokens=4), headers=headers))
        other = await rig.post(chat("another tenant's", tokens=4))
        assert (other.status, second.done()) == (200, False)
        assert rig.gateway.scheduler.counts().queued == 1
        first.cancel()
        assert (await second).status == 200
