"""Profiles from a data sheet: they need no data, follow from the shapes, and refuse what does not fit."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hmas_lab.profiles.__main__ import main
from hmas_lab.profiles.build import DATA_SHEET, HOST, dump_profile
from hmas_lab.profiles.compose import Host, compose, profile_name, step_cost
from hmas_lab.profiles.gpus import load_gpu, load_gpus
from hmas_lab.profiles.memory import kv_blocks
from hmas_lab.profiles.models import load_model
from hmas_lab.profiles.reduce import least_squares
from hmas_lab.profiles.summary import reduction, table

from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile, faster, load_profile, parse_profile, profile_names

LLAMA = load_model("llama-3-8b")
QWEN_MOE = load_model("qwen3-30b-a3b")


def tpot_ms(profile, seqs=1, context=1024):
    return 1e3 * profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=seqs, decode_kv_tokens=seqs * context)


def test_a_data_sheet_profile_says_so_and_reads_its_weights_once_a_step():
    profile = compose(LLAMA, "l4")
    assert profile.source.startswith("NOT MEASURED: a roofline from the data sheet.")
    at_full_bandwidth_ms = 1e3 * LLAMA.weight_bytes(1, "bfloat16") / load_gpu("l4").bytes_per_s
    assert at_full_bandwidth_ms < tpot_ms(profile) < 1.6 * at_full_bandwidth_ms


def test_a_large_prefill_is_bound_by_operations():
    profile, gpu = compose(LLAMA, "a30"), load_gpu("a30")
    seconds = profile.step_duration_s(prefill_tokens=4096, prefill_pairs=4096 * 4097 // 2, decode_seqs=0, decode_kv_tokens=0)
    least_s = 2 * 32 * LLAMA.layer_parameters(1) * 4096 / gpu.bf16_flop_per_s
    assert least_s / 0.7 < seconds < 2.5 * least_s


@pytest.mark.parametrize("gpu", sorted(load_gpus()))
def test_more_gpus_and_fewer_bytes_make_decoding_faster(gpu):
    times = [tpot_ms(compose(LLAMA, gpu, tp=tp)) for tp in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    if load_gpu(gpu).fp8_flop_per_s:
        assert tpot_ms(compose(LLAMA, gpu, dtype="fp8")) < 0.7 * times[0]


def test_experts_are_read_as_they_are_touched():
    cost = step_cost(QWEN_MOE, "h100_sxm", tp=1, dtype="bfloat16", tables=None)
    assert cost.touched_experts(1) == pytest.approx(8)
    assert cost.touched_experts(8) == pytest.approx(128 * (1 - (15 / 16) ** 8))
    assert cost.touched_experts(10_000) == pytest.approx(128)
    assert cost.tokens_ms(1) < 0.3 * cost.tokens_ms(64), "a batch touches nearly all of them, one sequence a sixteenth"


def test_the_host_adds_to_each_step_and_sequence():
    plain = compose(LLAMA, "a30")
    hosted = compose(LLAMA, "a30", host=Host(step_ms=1.0, ms_per_seq=0.1, request_ms=3.0, note="guessed"))
    assert tpot_ms(hosted, seqs=10) - tpot_ms(plain, seqs=10) == pytest.approx(2.0, abs=1e-3)
    assert hosted.request_ms == 3.0
    assert "1 ms per step and 0.1 ms per sequence are added, guessed" in hosted.source
    assert "a real engine is slower" in plain.source


def test_memory_holds_weights_and_cache():
    for tp in (1, 2, 4):
        profile = compose(LLAMA, "l4", tp=tp)
        assert profile.weight_bytes + profile.kv_capacity_tokens * profile.kv_bytes_per_token < 0.9 * profile.memory_bytes
        assert profile.max_model_len <= profile.kv_capacity_tokens
    assert compose(LLAMA, "l4", tp=4).kv_blocks > 4 * compose(LLAMA, "l4", tp=1).kv_blocks, "weights are there once"


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ProfileError, match=r"Llama-3\.1-70B on 1 x h100_sxm: weights of 141\.1 GB; allowed: less than the memory of 85\.9 GB"
    ):
        compose(load_model("llama-3-70b"), "h100_sxm")
    with pytest.raises(ProfileError, match=r"weights of 16\.1 GB leave no room for KV in 65% of 25\.8 GB"):
        kv_blocks(LLAMA, load_gpu("l4"), gpu_name="l4", tp=1, dtype="bfloat16", seqs=256, tokens=2048, utilisation=0.65)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"gpu_name": "h900"}, "gpu 'h900' is unknown; allowed: .*l40s"),
        ({"dtype": "int3"}, "dtype 'int3'; allowed: bfloat16, fp8"),
        ({"dtype": "fp8"}, "dtype 'fp8': the GPU has no tensor-core rate"),
        ({"tp": 3}, "tp 3 does not divide"),
    ],
)
def test_what_is_unknown_is_named(changes, word):
    with pytest.raises(ProfileError, match=word):
        compose(LLAMA, **({"gpu_name": "a30"} | changes))


def test_names_say_gpu_model_dtype_and_degree():
    names = [profile_name(gpu, LLAMA, tp, dtype) for gpu, tp, dtype in (("h100_sxm", 4, "bfloat16"), ("l4", 1, "fp8"))]
    assert names == ["h100-llama-3-8b-tp4", "l4-llama-3-8b-fp8"]


def test_the_curve_rises_and_the_reduction_keeps_to_the_sum_of_kernels():
    cost = step_cost(LLAMA, "h100_sxm", tp=1, dtype="bfloat16", tables=None)
    profile = compose(LLAMA, "h100_sxm")
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(profile.token_curve))
    for seqs, context in ((1, 512), (32, 1024), (128, 2048)):
        summed = cost.tokens_ms(seqs) + cost.head_ms(seqs) + cost.decode_ms(seqs, context)
        assert tpot_ms(profile, seqs, context) == pytest.approx(summed, rel=0.05)


def test_least_squares_keeps_coefficients_from_going_below_nothing():
    rng = np.random.default_rng(1)
    rows = rng.uniform(0, 10, (50, 3))
    ones = np.ones(50)
    assert least_squares(rows, rows @ [2.0, 0.0, 0.5], ones) == pytest.approx([2.0, 0.0, 0.5], abs=1e-9)
    fitted = least_squares(rows, rows @ [2.0, -1.0, 0.5], ones)
    assert fitted.min() == 0.0
    assert fitted[0] > 0


def test_the_command_writes_a_profile_and_says_what_is_wrong():
    runner = CliRunner()
    done = runner.invoke(main, ["one", "--model", "qwen3-8b", "--gpu", "l4", "--data-sheet"])
    assert parse_profile(done.stdout.encode(), origin="stdout").name == "l4-qwen3-8b"
    wrong = runner.invoke(main, ["one", "--model", "qwen3-8b", "--gpu", "l5", "--data-sheet"])
    assert wrong.exit_code == 1
    assert "gpu 'l5' is unknown" in wrong.output


@pytest.mark.parametrize(("gpu", "model", "tp"), DATA_SHEET)
def test_shipped_data_sheet_profiles_are_what_the_code_makes(gpu, model, tp):
    made = compose(load_model(model), gpu, tp=tp, host=HOST)
    shipped = load_profile(made.name)
    assert [ms for _, ms in made.token_curve] == pytest.approx([ms for _, ms in shipped.token_curve], rel=1e-3)
    assert made.decode_line(16) == pytest.approx(shipped.decode_line(16), rel=1e-3)
    assert (made.kv_blocks, made.source) == (shipped.kv_blocks, shipped.source)


def test_the_page_shows_the_shipped_profiles():
    page = (Path(__file__).resolve().parents[2] / "docs" / "profiles.md").read_text().splitlines()
    for line in (*table(), *reduction()):
        assert line in page, "write the page's tables again: python -m hmas_lab.profiles table"
    assert f"{len(profile_names())} come with" in " ".join(page)


def test_a_faster_run_of_a_composed_profile_is_faster_in_every_part():
    profile = load_profile("h100-llama-3-8b")
    quick = faster(profile, 4.0)
    work = {"prefill_tokens": 700, "prefill_pairs": 700 * 701 // 2, "decode_seqs": 20, "decode_kv_tokens": 30_000}
    assert quick.step_duration_s(**work) == pytest.approx(profile.step_duration_s(**work) / 4)
    assert quick.swap_gb_per_s == pytest.approx(4 * profile.swap_gb_per_s)


def test_a_profile_is_written_the_same_way_every_time_and_read_back():
    profile = load_profile("h100-llama-3-8b")
    data = dump_profile(profile)
    assert parse_profile(data, origin="back") == profile
    assert list(json.loads(data)) == sorted(Profile.__struct_fields__)
