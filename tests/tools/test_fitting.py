"""From measurements to coefficients, and the designed load."""

import msgspec
import numpy as np
import pytest
from typing_kit import known

from hmas.engines.sim.profile import Profile, parse_profile
from hmas.loadgen.sse import AnswerReader
from hmas.profiling.coefficients import Decode, FitImpossible, Prefill, fit_coefficients, robust_nnls
from hmas.profiling.design import Bounds, plan
from hmas.profiling.measured import Limits, Stated, document_of, limits_of, model_name, profile_of, slug
from hmas.profiling.probe import Answer, Findings, decode_steps
from hmas.profiling.target import ProbeError, Target

TRUE = {
    "step_ms": 11.0,
    "request_ms": 4.0,
    "prefill_ms_per_seq": 2.5,
    "prefill_ms_per_token": 0.06,
    "prefill_ms_per_ktoken_sq": 5.0,
    "decode_ms_per_seq": 0.3,
    "decode_ms_per_kv_ktoken": 0.09,
}


def prefill(tokens, budget=2048, **changed):
    c = TRUE | changed
    steps = -(-tokens // budget)
    ms = c["request_ms"] + steps * (c["step_ms"] + c["prefill_ms_per_seq"]) + c["prefill_ms_per_token"] * tokens
    return Prefill(prompt_tokens=tokens, ttft_ms=ms + c["prefill_ms_per_ktoken_sq"] * tokens * (tokens + 1) / 2e6)


def decode(seqs, kv_tokens):
    ms = TRUE["step_ms"] + TRUE["decode_ms_per_seq"] * seqs + TRUE["decode_ms_per_kv_ktoken"] * kv_tokens / 1000
    return Decode(seqs=seqs, kv_tokens=kv_tokens, step_ms=ms)


def mixed(seqs, kv_tokens, newcomers, steps):
    joined, tokens, pairs = len(newcomers) / steps, sum(newcomers) / steps, sum(n * (n + 1) / 2 for n in newcomers) / steps
    ms = decode(seqs, kv_tokens).step_ms + TRUE["prefill_ms_per_seq"] * joined + TRUE["prefill_ms_per_token"] * tokens
    ms += TRUE["prefill_ms_per_ktoken_sq"] * pairs * 1e-6
    return Decode(seqs=seqs, kv_tokens=kv_tokens, step_ms=ms, joined=joined, joined_tokens=tokens, joined_pairs=pairs)


PREFILLS = [prefill(tokens) for tokens in (16, 64, 256, 1024, 2048, 4096)]
ALONE = [decode(seqs, seqs * length) for seqs in (1, 4, 16, 32) for length in (60, 1100)]
DECODES = [*ALONE, mixed(4, 400, [30, 33, 31], 40), mixed(16, 1600, [250, 260], 30)]


def test_exact_measurements_give_the_coefficients_back():
    fit = fit_coefficients(PREFILLS, DECODES, tokens_per_step=2048)
    assert fit.values == pytest.approx(TRUE, rel=1e-5)
    assert [one.quantity for one in fit.misfits] == ["TTFT", "TPOT"]
    assert max(one.p90 for one in fit.misfits) < 1e-6


def test_without_newcomers_a_prompt_s_fixed_cost_is_the_front_end_s():
    prefills = [one for one in PREFILLS if one.prompt_tokens <= 2048]
    fit = fit_coefficients(prefills, ALONE, tokens_per_step=2048)
    assert fit.values["prefill_ms_per_seq"] == 0.0
    assert fit.values["request_ms"] == pytest.approx(TRUE["request_ms"] + TRUE["prefill_ms_per_seq"], rel=1e-4)


def test_a_stall_of_the_machine_pulls_little():
    stalled, late = Prefill(prompt_tokens=256, ttft_ms=400.0), Decode(seqs=4, kv_tokens=240, step_ms=90.0)
    fit = fit_coefficients([*PREFILLS * 3, stalled], [*DECODES * 3, late], tokens_per_step=2048)
    assert fit.values["step_ms"] == pytest.approx(11.0, rel=0.03)
    assert fit.values["prefill_ms_per_token"] == pytest.approx(0.06, rel=0.1)
    assert fit.misfits[0].median < 0.02


def test_no_coefficient_is_below_zero():
    # Decoding that gets cheaper with more sequences is noise, whatever a line through it says.
    decodes = [Decode(seqs=seqs, kv_tokens=0.0, step_ms=12.0 - 0.05 * seqs) for seqs in (1, 8, 32)]
    fit = fit_coefficients(PREFILLS, decodes, tokens_per_step=2048)
    assert min(fit.values.values()) >= 0.0
    assert fit.values["decode_ms_per_seq"] == 0.0
    assert fit.misfits[1].median > 0.01


@pytest.mark.parametrize(
    ("prefills", "decodes", "missing"),
    [(PREFILLS[:1] * 3, DECODES, "two lengths"), (PREFILLS, [decode(4, 100), decode(4, 9000)], "two or more"), ([], [], "two lengths")],
)
def test_too_little_is_refused(prefills, decodes, missing):
    with pytest.raises(FitImpossible, match=missing):
        fit_coefficients(prefills, decodes, tokens_per_step=2048)


def test_robust_nnls_refuses_what_is_no_measurement():
    with pytest.raises(ValueError, match="more than 0"):
        robust_nnls(np.ones((2, 1)), np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="allowed are"):
        robust_nnls(np.ones((2, 1)), np.array([1.0]))


def test_the_plan_keeps_within_what_the_engine_holds():
    batches = plan(Bounds(max_model_len=2048, kv_tokens=4000, max_num_seqs=16, concurrency=(1, 4, 8, 16, 64), repeats=2))
    assert {batch.kind for batch in batches} == {"warm-up", "prefill", "decode", "mixed"}
    assert max(batch.seqs for batch in batches) <= 16
    assert max(batch.prompt_tokens + batch.output_tokens for batch in batches) <= 2048
    assert all(batch.tokens <= 0.7 * 4000 for batch in batches if batch.kind == "decode")
    assert len({batch.prompt_tokens for batch in batches if batch.kind == "prefill"}) >= 6
    long = [batch.seqs for batch in batches if batch.kind == "decode" and batch.prompt_tokens == 1024]
    assert long, "without long contexts the price of reading the cache cannot be told"


def test_the_plan_stays_within_its_tokens():
    bounds = Bounds(max_model_len=40_960, kv_tokens=400_000, max_num_seqs=256, repeats=10, max_tokens=60_000)
    batches = plan(bounds)
    assert 0 < sum(batch.tokens for batch in batches) <= 60_000
    assert {batch.seqs for batch in batches if batch.kind == "decode"} == {1, 2, 4, 8, 16, 32}


def test_token_times_survive_cuts_anywhere():
    body = (
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[{"text":"b"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
    )
    for size in (1, 7, len(body)):
        reader = AnswerReader()
        for start in range(0, len(body), size):
            reader.feed(body[start : start + size], float(start))
        assert len(reader.times_s) == 2
        assert (reader.prompt_tokens, reader.tokens, reader.error) == (7, 3, None)
    # Half a character is a token without a text; the end without a delta is none.
    reader.feed(b'data: {"choices":[{"delta":{"content":""}}]}\n\ndata: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', 9.0)
    assert reader.times_s[2:] == [9.0]
    reader.feed(b'data: {"error": {"message": "no"}}\n\n', 0.0)
    assert reader.error == ("", "no")


def test_only_steps_in_which_all_decode_are_taken():
    # The second stream begins late, and a prompt's step of 50 ms falls before its first token.
    first = Answer(0.0, [0.1, 0.11, 0.12, 0.17, *(0.17 + 0.01 * n for n in range(1, 10))], 100, 13)
    second = Answer(0.0, [0.17 + 0.01 * n for n in range(12)], 50, 12)
    found = known(decode_steps([first, second]))
    assert found.step_ms == pytest.approx(10.0)
    assert found.seqs == 2
    # In the middle of the measured steps the first has 4 + 1 + 4 of its tokens, the second 2 + 4.
    assert found.kv_tokens == pytest.approx(100 + 9 + 50 + 6, abs=1.0)
    assert decode_steps([first, Answer(0.0, [5.0, 5.1], 50, 2)]) is None


def test_tokens_that_come_in_bursts_make_no_fast_engine():
    # Steps of 5 ms, handed on every 20 ms.
    times = [0.02 * -(-n // 4) for n in range(1, 49)]
    found = known(decode_steps([Answer(0.0, times, 100, 48)]))
    assert found.step_ms == pytest.approx(5.0)
    # Two tokens in every event: half as many events, the same steps.
    found = known(decode_steps([Answer(0.0, [0.01 * n for n in range(1, 25)], 100, 48)]))
    assert found.step_ms == pytest.approx(5.0)
    # All at once, each microseconds after the other.
    assert decode_steps([Answer(0.0, [0.3 + 4e-6 * n for n in range(48)], 100, 48)]) is None
    assert known(decode_steps([Answer(0.0, [0.3 + 0.005 * n for n in range(48)], 100, 48)])).step_ms == pytest.approx(5.0)


def target(**fields):
    return Target(url="http://e", model="m", **fields)


def test_limits_come_from_the_operator_then_the_engine_then_vllm():
    engine = target(max_model_len=4096, kv_tokens=9000, block_size=32, max_num_seqs=48)
    limits = limits_of(engine, Stated(max_num_seqs=8))
    assert (limits.max_num_seqs, limits.block_size, limits.max_num_batched_tokens) == (8, 32, 2048)
    assert limits.assumed == ("max_num_batched_tokens 2048", "kv_bytes_per_token 131072")
    assert limits_of(engine, Stated(kv_tokens=3000)).max_model_len == 3000


@pytest.mark.parametrize(("engine", "option"), [(target(kv_tokens=9), "--max-model-len"), (target(max_model_len=9), "--kv-tokens")])
def test_what_nobody_knows_is_asked_for(engine, option):
    with pytest.raises(ProbeError, match=option):
        limits_of(engine, Stated())


def test_the_profile_states_its_error_and_loads():
    fit = fit_coefficients(PREFILLS, DECODES, tokens_per_step=2048)
    limits = Limits(block_size=16, kv_tokens=9001, max_model_len=4096, max_num_seqs=8, max_num_batched_tokens=2048, assumed=("x 1",))
    findings = Findings(prefills=PREFILLS, decodes=DECODES, tokens=5, elapsed_s=2.0)
    made = profile_of("p", target=target(kind="vllm"), stated=Stated(gpu="h100"), limits=limits, findings=findings, fit=fit)
    assert "Error of the fit: TTFT 0.0% at the median" in made.source
    assert "assumed: x 1" in made.source
    assert made.kv_capacity_tokens >= 9001
    assert parse_profile(msgspec.json.encode(document_of(made)), origin="here") == made
    assert isinstance(made, Profile)


def test_names_of_models_and_files():
    assert model_name(target(root="/models/tiny/")) == "tiny"
    assert model_name(target(root="Qwen/Qwen3-8B")) == "Qwen/Qwen3-8B"
    assert model_name(target()) == "m"
    assert slug("meta-llama/Llama-3.1-8B", "h100_sxm") == "h100-sxm-llama-3.1-8b"
    assert slug("//", "") == "profile"
