"""HeteroServe's cluster: the paper's roofline as profiles, and a load under which uniform dispatch collapses and feedback does not."""

import json

import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.hetero import run
from hmas_lab.hetero.cluster import DEVICES, GPUS, STEP_TOKENS, WEIGHT_GB, profile_of
from hmas_lab.hetero.load import HeteroOptions, hetero, load, mean_context_tokens
from hmas_lab.hetero.study import PAPER, SCHEDULERS

from hmas.controller.core.errors import ConfigError

TABLE_4 = {"H100": 31_699.0, "A100": 10_000.0, "L40S": 11_603.0}


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_the_profiles_are_the_papers_roofline(gpu):
    profile = profile_of(gpu, batch=8)
    # A full step of prefill runs at Table 4's rate.
    prefill_s = profile.step_duration_s(prefill_tokens=STEP_TOKENS, prefill_pairs=10**6, decode_seqs=0, decode_kv_tokens=0)
    assert STEP_TOKENS / prefill_s == pytest.approx(TABLE_4[gpu.name], rel=2e-3)
    # Decoding reads the weights once a step, and each sequence's cache: 52 GB are read in the time for 52 GB, whoever computes.
    tokens = int(WEIGHT_GB * 1e9 / profile.kv_bytes_per_token)
    decode_s = profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=1, decode_kv_tokens=tokens)
    assert decode_s == pytest.approx(2 * WEIGHT_GB / (gpu.sheet.bandwidth_tb_s * 1e3), rel=1e-3)
    assert profile.kv_capacity_tokens * profile.kv_bytes_per_token == pytest.approx(gpu.kv_gb * 1e9, rel=1e-3)


def test_the_cluster_and_the_batches_of_eq_6():
    assert [gpu.count for gpu in GPUS] == [2, 4, 2]
    assert len(DEVICES) == 8
    # (0.9 x 80 - 26) GB over 0.82 MB x 1166 tokens, and (0.9 x 48 - 26) GB on the L40S.
    assert {gpu.name: gpu.batch(mean_context_tokens()) for gpu in GPUS} == {"H100": 48, "A100": 48, "L40S": 18}
    assert GPUS[2].batch(1e9) == 1


def test_the_mean_context_is_that_of_the_load():
    drawn = load(seed=0, requests=50_000, rate=50.0)
    assert float(np.mean(drawn.prompt_tokens + drawn.output_tokens)) == pytest.approx(mean_context_tokens(), rel=0.01)
    assert drawn.rate_rps == pytest.approx(50.0)


@pytest.mark.slow
def test_uniform_dispatch_collapses_and_queue_feedback_rescues_it():
    result = run(seeds=1, requests=10_000)
    assert [row["scheduler"] for row in result["rows"]] == list(SCHEDULERS)
    rows = {row["scheduler"]: row for row in result["rows"]}
    uniform, feedback = rows["uniform"], rows["latency-aware"]
    # The same order of magnitude as Table 1: 2.13 times the tokens, 167 times the tail.
    assert 1.5 < feedback["tokens_per_s"] / uniform["tokens_per_s"] < 4.0
    assert 50.0 < uniform["ttft_ms_p95"] / feedback["ttft_ms_p95"] < 500.0
    assert uniform["slo_attainment"] < 0.35 < feedback["slo_attainment"]
    assert uniform["ttft_ms_p95"] > 100_000.0
    for name, row in rows.items():
        if name in PAPER:
            assert 0.5 < row["tokens_per_s"] / row["paper"]["tokens_per_s"] < 2.0
    assert rows["capacity-proportional"]["tokens_per_s"] > 1.2 * uniform["tokens_per_s"]
    assert 20.0 < result["saturation_rps"] < 60.0


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    def once(seeds: int) -> bytes:
        return json.dumps(run(seeds=seeds, requests=60, rate=30.0, schedulers=("latency-aware",), probe_requests=60)["cells"]).encode()

    assert once(1) == once(1)
    two = json.loads(once(2))
    assert two[0] == json.loads(once(1))[0]
    assert two[0]["tokens_per_s"] != two[1]["tokens_per_s"]


def test_the_command_prints_the_papers_figures_beside_ours(capsys, tmp_path):
    out = tmp_path / "hetero.json"
    arguments = ["--seeds", "1", "--requests", "80", "--rate", "40", "--probe-requests", "60", "--scheduler", "uniform"]
    arguments += ["--scheduler", "central-queue"]
    assert main(["hetero", *arguments, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "(17,234)" in shown
    assert "(26.4%)" in shown
    document = json.loads(out.read_text())
    assert [row["scheduler"] for row in document["rows"]] == ["uniform", "central-queue"]
    assert "paper" not in document["rows"][1]
    assert main(["hetero", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"seeds": 0}, "seeds is 0"),
        ({"requests": -5}, "requests is -5"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"load_factor": 0.0}, r"load_factor is 0\.0"),
        ({"probe_requests": 7}, "probe_requests is 7"),
        ({"schedulers": ("magic",)}, r"'magic'; allowed: uniform"),
    ],
)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(ConfigError, match=named):
        run(**arguments)


def test_heteroserves_lengths_and_target():
    workload = hetero(HeteroOptions(count=40000, seed=3))
    assert workload.rate_rps == pytest.approx(49.8, rel=0.02)
    quartiles = np.exp(np.log(512) + 1.2 * np.array([-0.6745, 0.0, 0.6745]))
    # Log-normal: one standard error of a quartile is about 0.8 % here.
    assert np.percentile(workload.prompt_tokens, [25, 50, 75]) == pytest.approx(quartiles, rel=0.03)
    assert workload.prompt_tokens.max() == 4096
    assert (workload.prompt_tokens == 4096).mean() == pytest.approx(0.0415, abs=0.004), "what lies above the ceiling is cut to it"
    assert workload.output_tokens.mean() == pytest.approx(256.0, rel=0.02)
    assert np.median(workload.output_tokens) == pytest.approx(256 * np.log(2), rel=0.03)
    assert set(workload.slo_ttft_ms.tolist()) == {500.0}


@pytest.mark.parametrize(("prompts", "median"), [("short", 128), ("long", 1024)])
def test_heteroserves_variations(prompts, median):
    workload = hetero(HeteroOptions(count=20000, prompts=prompts, mean_output=64))
    assert np.median(workload.prompt_tokens) == pytest.approx(median, rel=0.04)
    assert workload.output_tokens.mean() == pytest.approx(64, rel=0.03)


def test_bimodal_prompts_leave_the_middle_empty():
    prompts = hetero(HeteroOptions(count=20000, prompts="bimodal")).prompt_tokens
    assert (prompts < 128).mean() == pytest.approx(0.5, abs=0.015)
    assert (prompts > 2048).mean() == pytest.approx(0.5, abs=0.015)
    assert ((prompts < 128) | (prompts > 2048)).all()
