"""Profiles from measured kernels, against the data: only where HMAS_DATA_DIR names the folder."""

import csv
import os
import re
from pathlib import Path
from statistics import median

import msgspec
import pytest
from click.testing import CliRunner
from hmas_lab.profiles.__main__ import main
from hmas_lab.profiles.build import HOST, MODELS, one
from hmas_lab.profiles.check import GPU, compare, halves, median_error, read_rows
from hmas_lab.profiles.check_layers import compare_layers
from hmas_lab.profiles.check_prompts import compare_prompts
from hmas_lab.profiles.compose import NO_HOST, compose, step_cost
from hmas_lab.profiles.gpus import load_gpu
from hmas_lab.profiles.kernels import DataSheetKernels
from hmas_lab.profiles.models import load_model
from hmas_lab.profiles.shares import measured_shares, roofline_errors
from hmas_lab.profiles.tables import data_folder, read_tables

from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import load_profile, profile_names

pytestmark = pytest.mark.skipif("HMAS_DATA_DIR" not in os.environ, reason="HMAS_DATA_DIR names no folder of public data")


@pytest.fixture(scope="module")
def tables():
    return read_tables(data_folder())


@pytest.fixture(scope="module")
def compared(tables):
    return compare(read_rows(data_folder()), tables[GPU], NO_HOST)


@pytest.mark.parametrize(
    ("name", "model", "gpu", "tp"),
    [("h100-llama-3-70b-tp4", "llama-3-70b", "h100_sxm", 4), ("l40s-qwen3-30b-a3b-tp2", "qwen3-30b-a3b", "l40s", 2)],
)
def test_a_shipped_profile_is_what_the_data_gives(tables, name, model, gpu, tp):
    made = msgspec.structs.asdict(compose(load_model(model), gpu, tp=tp, tables=tables[gpu], host=HOST))
    for field, value in msgspec.structs.asdict(load_profile(name)).items():
        if field == "token_curve":
            assert [point[0] for point in made[field]] == [point[0] for point in value]
            assert [point[1] for point in made[field]] == pytest.approx([point[1] for point in value], rel=1e-3)
        elif isinstance(value, float):
            assert made[field] == pytest.approx(value, rel=1e-3), field
        elif field != "source":
            assert made[field] == value, field


def test_every_model_ships_on_every_measured_gpu():
    names = " ".join(profile_names())
    for model in MODELS:
        for gpu in ("a100", "h100", "h200", "l40s"):
            assert f"{gpu}-{model}" in names


def test_the_data_sheets_are_those_of_the_data():
    with (data_folder() / "gpu_specs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            gpu = load_gpu(row["gpu"])
            assert (gpu.memory_bytes, gpu.bytes_per_s) == (float(row["mem_capacity"]), float(row["mem_bw"]))
            assert (gpu.bf16_flop_per_s, gpu.fp8_flop_per_s) == (float(row["bfloat16_tc_flops"]), float(row["fp8_tc_flops"] or 0))
            assert (gpu.link_bytes_per_s, gpu.host_bytes_per_s) == (float(row["intra_node_bw"]), float(row["pcie_bw"]))


def test_interpolation_meets_what_was_measured(tables):
    assert tables["a100_sxm"].gemm_ms("bfloat16", 8192, 65536, 4096) == pytest.approx(15.288)
    assert tables["h100_sxm"].decode_sheet(32, 8).ms(64, 4096) == pytest.approx(0.35318)
    assert tables["h100_sxm"].prefill_sheet(32, 8).ms(1, 8192) == pytest.approx(1.0068)
    assert tables["h100_sxm"].all_reduce_ms(8, 1 << 20) == pytest.approx(0.020896)


def test_few_measurements_are_not_believed(tables):
    for gpu, limit in (("a100_sxm", 0.001), ("h100_sxm", 0.01), ("h200_sxm", 0.001), ("l40s", 0.01)):
        spikes, measured = tables[gpu].gemm_spikes("bfloat16")
        assert spikes <= limit * measured


def test_all_reduce_over_pcie_is_not_slower_than_a_shared_bus(tables):
    cost = step_cost(load_model("llama-3-70b"), "l40s", tp=8, dtype="bfloat16", tables=tables["l40s"])
    elements = 2048 * 8192
    assert tables["l40s"].all_reduce_ms(8, elements) > 25, "the anomaly: 1 GB/s"
    assert 2 < cost.kernels.all_reduce_ms(elements) < 8


def test_decode_of_many_kv_heads_reads_at_the_memory_s_speed(tables):
    for gpu in ("a100_sxm", "h100_sxm"):
        sheet = tables[gpu].decode_sheet(40, 40)
        rate = 32 * 2048 * 40 * 128 * 2 * 2 / (1e-3 * sheet.ms(32, 2048))
        assert 0.6 < rate / load_gpu(gpu).bytes_per_s < 1.0


def test_kernels_alone_are_too_fast_and_host_work_explains_most_of_it(compared):
    split = halves(compared)
    assert len(compared) > 80
    assert 0.10 < median_error(compared) < 0.20
    assert split.with_both < 0.07 < split.with_step
    assert split.other_models < 0.07
    assert split.host.step_ms == pytest.approx(HOST.step_ms, rel=0.01)
    assert split.host.ms_per_seq == pytest.approx(HOST.ms_per_seq, rel=0.01)


def test_the_roofline_s_shares_are_those_of_measured_gpus(tables):
    shares = measured_shares(tables)
    for field, used in (
        ("flop", "FLOP_SHARE"),
        ("weight", "WEIGHT_SHARE"),
        ("pair", "PAIR_SHARE"),
        ("kv", "KV_SHARE"),
        ("link", "LINK_SHARE"),
    ):
        found = median(getattr(share, field) for share in shares.values())
        assert getattr(DataSheetKernels, used) == pytest.approx(found, abs=0.02), field


def test_a_roofline_comes_near_the_measurement(tables):
    """The same GPU by data sheet and by measurement: what a profile without measurements is worth."""
    for gpu, (least, largest) in roofline_errors(tables).items():
        assert -0.2 < least < largest < 0.2, gpu


def test_what_was_not_measured_is_refused():
    with pytest.raises(ProfileError, match=r"gpu 'l4' was not measured; allowed: .* or a data-sheet profile"):
        one("qwen3-8b", "l4", tp=1, dtype="bfloat16", data=Path(os.environ["HMAS_DATA_DIR"]))
    with pytest.raises(ProfileError, match="a100_sxm: dtype 'fp8' was not measured; allowed: bfloat16"):
        one("qwen3-8b", "a100_sxm", tp=1, dtype="fp8", data=None)


def test_fp8_weights_take_half_the_room_and_decode_faster(tables):
    model = load_model("llama-3-70b")
    bf16, fp8 = (compose(model, "h100_sxm", tp=4, dtype=dtype, tables=tables["h100_sxm"]) for dtype in ("bfloat16", "fp8"))
    assert fp8.name == "h100-llama-3-70b-fp8-tp4"
    assert fp8.weight_bytes < 0.55 * bf16.weight_bytes
    assert fp8.decode_line(1)[0] < 0.95 * bf16.decode_line(1)[0]


def test_small_gemms_agree_with_a_second_source_and_large_ones_are_faster(tables):
    layers = compare_layers(data_folder(), tables)
    assert len(layers) > 7000
    small = [layer.error for layer in layers if layer.gpu == "a100_sxm" and layer.tokens <= 256]
    large = [layer.error for layer in layers if layer.tokens > 256]
    assert abs(median(small)) < 0.05
    assert median(map(abs, small)) < 0.08
    assert -0.25 < median(large) < -0.1


def test_prefill_is_what_kernels_allow_and_faster_than_an_engine_of_2023(tables):
    prompts = compare_prompts(data_folder(), tables)
    assert {(prompt.gpu, prompt.tp) for prompt in prompts} == {(gpu, tp) for gpu in ("a100_sxm", "h100_sxm") for tp in (2, 4, 8)}
    assert all(prompt.error < 0 for prompt in prompts)
    assert median(prompt.error for prompt in prompts if prompt.gpu == "a100_sxm" and 512 <= prompt.tokens <= 2048) > -0.25


@pytest.mark.slow
def test_the_commands_print_what_the_page_says():
    page = (Path(__file__).resolve().parents[2] / "docs" / "profiles.md").read_text()
    checked = CliRunner().invoke(main, ["check"]).output
    numbers = re.findall(r"(\d+\.\d) % \|$", page.split("| what is predicted with")[1].split("Kernels alone")[0], re.MULTILINE)
    assert len(numbers) == 5
    assert [number for number in numbers if f"{number}%" not in checked] == []
    assert "data-sheet profile off by" in CliRunner().invoke(main, ["shares"]).output
