"""A live engine under load against the simulator: here the embedded engine stands in for vLLM, which the simulator must know exactly."""

import pytest
from hmas_lab.fidelity.cli import vllm_document
from hmas_lab.fidelity.vllm import VllmSettings, by_load, compare
from hmas_lab.fidelity.vllm_run import Seen, Wish, measure, medians, simulated, wishes

from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile
from hmas.engines.sim.server import create_app, start
from hmas.profiling.measured import Stated
from hmas.profiling.target import look_at

KNOWN = Profile(
    name="known",
    gpu="none",
    model="none",
    source="made up for the tests",
    step_ms=5.0,
    prefill_ms_per_token=0.05,
    prefill_ms_per_ktoken_sq=0.0,
    decode_ms_per_seq=0.4,
    decode_ms_per_kv_ktoken=0.2,
    block_size=16,
    kv_blocks=4096,
    kv_bytes_per_token=1024,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    max_model_len=2048,
)


@pytest.fixture
async def target():
    runner, port = await start(create_app(EngineModel(KNOWN), "tiny", "sim-1"), grace_s=0.1)
    yield await look_at(f"http://127.0.0.1:{port}")
    await runner.cleanup()


def test_loads_are_drawn_from_the_seed():
    wanted = wishes(20.0, 10.0, context=2048, seed=3)
    assert wanted == wishes(20.0, 10.0, context=2048, seed=3)
    assert wanted != wishes(20.0, 10.0, context=2048, seed=4)
    assert 140 < len(wanted) < 260
    assert [wish.at_s for wish in wanted] == sorted(wish.at_s for wish in wanted)
    assert max(wish.prompt_tokens + wish.output_tokens for wish in wishes(50.0, 10.0, context=256, seed=1)) <= 192


def test_simulated_arrivals_of_a_known_engine():
    seen = simulated(KNOWN, [Seen(0.0, 100, 11, 0.0, 0.0), Seen(1.0, 100, 1, 0.0, 0.0)])
    assert seen[0].ttft_ms == pytest.approx(10.0)
    assert seen[0].tpot_ms == pytest.approx(5.4 + 0.2 * 0.1055, rel=0.01)
    assert medians(seen).requests == 2
    assert medians(seen).tpot_ms == pytest.approx(seen[0].tpot_ms)


async def test_requests_are_sent_at_their_times(target):
    seen = await measure(target, [Wish(0.0, 40, 4), Wish(0.15, 80, 8)])
    assert [one.output_tokens for one in seen] == [4, 8]
    assert seen[1].at_s - seen[0].at_s == pytest.approx(0.15, abs=0.05)
    assert all(one.ttft_ms > 5.0 and one.tpot_ms > 3.0 for one in seen)


@pytest.mark.slow
async def test_an_engine_that_is_what_the_simulator_thinks_is_predicted(target):
    settings = VllmSettings(fit_concurrency=(1, 8), in_flight=(1.0, 4.0), seconds=3.0, rounds=1)
    told: list[str] = []
    outcome = await compare(target, Stated(), settings, told.append)
    assert len(told) == 3
    rows = by_load(outcome)
    assert list(rows) == [1.0, 4.0]
    for row in rows.values():
        # The error left is the machine's, not the model's.
        assert abs(row["tpot_error"]) < 0.2
        assert abs(row["ttft_error"]) < 0.3
    document = vllm_document(outcome)
    assert document["profile"]["step_ms"] == pytest.approx(5.0, rel=0.2)
    assert len(document["runs"]) == 2
