"""The engine model behind text-generation-inference's batching rule."""

import msgspec
import pytest
from hmas_lab.fidelity.closed_loop import run_bare, run_closed_loop
from hmas_lab.fidelity.tgi import TgiEngine, joins_from
from hmas_lab.fidelity.timed import TimedEngine

from hmas.engines.sim.profile import Profile
from hmas.engines.sim.request import SimRequest

FAST = Profile(
    name="fast",
    gpu="none",
    model="none",
    source="made up for the tests",
    step_ms=10.0,
    prefill_ms_per_token=0.1,
    prefill_ms_per_ktoken_sq=0.0,
    decode_ms_per_seq=1.0,
    decode_ms_per_kv_ktoken=0.0,
    block_size=1,
    kv_blocks=100_000,
    kv_bytes_per_token=1,
    max_num_seqs=1000,
    max_num_batched_tokens=1 << 20,
    max_model_len=4000,
)
LENGTHS = [(10 + 7 * n, 1 + (n * n) % 23) for n in range(40)]


def run(engine, now_s=0.0, until_s=10.0, arrivals=()):
    """Drives an engine; returns (time, id) of first and of last tokens."""
    coming = sorted(arrivals, key=lambda pair: pair[0])
    firsts, lasts = {}, {}
    while now_s < until_s:
        due_s = engine.due_s
        next_s = coming[0][0] if coming else None
        if due_s is None and next_s is None:
            break
        if due_s is not None and (next_s is None or due_s <= next_s):
            now_s = due_s
            stretch = engine.end()
            firsts.update({event.id: now_s for event in stretch.first if event.first})
            lasts.update({event.id: now_s for event in stretch.finished})
        else:
            now_s = next_s
            engine.sync(now_s)
        while coming and coming[0][0] <= now_s:
            engine.add(coming.pop(0)[1])
        if engine.due_s is None:
            engine.begin(now_s)
    return firsts, lasts


def test_the_share_that_has_to_wait_falls_with_every_step():
    assert joins_from(1, 1, 24) == 1
    assert [joins_from(12, since, 24) for since in (1, 12, 23, 24, 99)] == [11, 6, 1, 1, 1]
    assert joins_from(2, 1, 24) == 1


def test_prompts_get_a_step_of_their_own_in_which_nobody_decodes():
    engine = TgiEngine(FAST)
    firsts, lasts = run(engine, arrivals=[(0.0, SimRequest("a", 100, 30)), (0.05, SimRequest("b", 200, 2))])
    # Alone, b has only to wait for the step under way: a's prompt takes 20 ms, each of its steps 11 ms.
    assert firsts["a"] == pytest.approx(0.020)
    assert firsts["b"] == pytest.approx(0.020 + 3 * 0.011 + 0.030)
    gaps, seqs = engine.gaps_ms()
    assert max(gaps) == pytest.approx(30 + 12)
    assert sum(seqs) == 29 + 1
    assert lasts["a"] == pytest.approx(0.020 + 0.030 + 28 * 0.011 + 0.012)


def test_a_lone_newcomer_waits_until_patience_wears_thin():
    runners = [(0.0, SimRequest(f"r{n}", 10, 60)) for n in range(8)]
    engine = TgiEngine(FAST, patience=24)
    firsts, _ = run(engine, arrivals=[*runners, (0.02, SimRequest("new", 10, 2))])
    # 8 run: one is enough from the step on after which 8 (1 - since / 24) is below 2, which is the 19th since the prefill, counted from 1.
    prefill_s, step_s = 0.018, 0.018
    assert firsts["r0"] == pytest.approx(prefill_s)
    assert firsts["new"] == pytest.approx(prefill_s + 18 * step_s + 0.011)


def test_enough_newcomers_interrupt_at_the_next_step():
    runners = [(0.0, SimRequest(f"r{n}", 10, 60)) for n in range(8)]
    newcomers = [(0.02, SimRequest(f"n{n}", 10, 2)) for n in range(7)]
    firsts, _ = run(TgiEngine(FAST), arrivals=runners + newcomers)
    assert [firsts[f"n{n}"] for n in range(7)] == pytest.approx([0.018 + 0.018 + 0.017] * 7)


def test_what_prompts_and_splicing_cost():
    plain, _ = run(TgiEngine(FAST), arrivals=[(0.0, SimRequest("a", 100, 3))])
    engine = TgiEngine(FAST, prompt_ms=5.0, splice_ms=7.0)
    firsts, lasts = run(engine, arrivals=[(0.0, SimRequest("a", 100, 3))])
    assert firsts["a"] == pytest.approx(plain["a"] + 0.005)
    assert lasts["a"] == pytest.approx(firsts["a"] + 0.011 + 0.007 + 0.011)


def test_nobody_joins_whose_full_length_does_not_fit_but_the_short_may_pass():

    small = msgspec.structs.replace(FAST, kv_blocks=4000)
    engine = TgiEngine(small)
    arrivals = [
        (0.0, SimRequest("long", 2000, 500, arrival_s=0.0)),
        (0.001, SimRequest("large", 1800, 100, arrival_s=0.001)),
        (0.002, SimRequest("short", 100, 10, arrival_s=0.002)),
    ]
    firsts, lasts = run(engine, until_s=60.0, arrivals=arrivals)
    assert firsts["short"] < lasts["long"] <= firsts["large"]
    assert engine.snapshot("e", 0.0).preemptions_total == 0
    assert engine.batch.pool.free == 4000


def test_an_aborted_request_leaves_nothing_behind():
    engine = TgiEngine(FAST)
    engine.add(SimRequest("a", 100, 50))
    engine.add(SimRequest("b", 100, 50))
    assert engine.waiting == 2
    assert engine.abort("b")
    engine.begin(0.0)
    assert engine.abort("a")
    assert not engine.abort("a")
    assert engine.idle
    assert engine.batch.pool.free == FAST.kv_blocks


@pytest.mark.parametrize("kind", [TimedEngine, TgiEngine])
@pytest.mark.parametrize("users", [1, 5, 40])
def test_the_engine_alone_shows_what_the_whole_simulation_shows(kind, users):
    options = {"users": users, "seconds": 8.0, "pauses_ms": (3.0, 8.5)}
    whole, bare = kind(FAST), kind(FAST)
    seen = run_closed_loop(whole, LENGTHS, **options)
    alone = run_bare(bare, LENGTHS, **options)
    assert seen.completed == alone.completed > 20
    assert seen.ttft_ms == pytest.approx(alone.ttft_ms, rel=1e-9)
    assert seen.tpot_ms == pytest.approx(alone.tpot_ms, rel=1e-9)
    assert seen.tokens_per_s == pytest.approx(alone.tokens_per_s)
    assert whole.gap_median_ms() == pytest.approx(bare.gap_median_ms(), rel=1e-9)


def test_closed_loop_users_keep_one_request_each():
    engine = TimedEngine(FAST)
    seen = run_closed_loop(engine, [(10, 11)], users=1, seconds=10.0)
    # Prompt 11 ms, then ten steps of 11 ms.
    assert seen.ttft_ms == pytest.approx(11.0)
    assert seen.tpot_ms == pytest.approx(11.0)
    assert seen.completed == int(10.0 / 0.121)
