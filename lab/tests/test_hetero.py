"""HeteroServe's study: the paper's roofline as profiles, its load, its goals, and a small run of all of it."""

from collections import Counter

import msgspec
import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.hetero.arms import ARMS, NO_FEEDBACK, PRODUCT
from hmas_lab.hetero.cluster import GPUS, STEP_TOKENS, WEIGHT_GB, cluster, profile_of
from hmas_lab.hetero.figures import goals, scaling_r2, summary
from hmas_lab.hetero.load import HeteroOptions, hetero, load, mean_context_tokens
from hmas_lab.hetero.page import body, tables
from hmas_lab.hetero.serving import Row, Task, batches_of
from hmas_lab.hetero.study import QUICK, kept_rows, run

from hmas.planning.backends import on_cores

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
    assert {size: Counter(gpu.name for gpu in cluster(size).values()) for size in (4, 8, 1000)} == {
        4: {"H100": 1, "A100": 2, "L40S": 1},
        8: {"H100": 2, "A100": 4, "L40S": 2},
        1000: {"H100": 250, "A100": 500, "L40S": 250},
    }
    # (0.9 x 80 - 26) GB over 0.82 MB x 1,170 tokens, and (0.9 x 48 - 26) GB on the L40S.
    own = {gpu.name: gpu.batch(mean_context_tokens("lognormal")) for gpu in GPUS}
    assert own["H100"] == own["A100"]
    assert own["H100"] == pytest.approx(48, abs=1)
    assert own["L40S"] == pytest.approx(18, abs=1)
    assert GPUS[2].batch(1e9) == 1
    batches = batches_of(ARMS["capacity-proportional"], cluster(8), mean_context_tokens("lognormal"))
    assert batches["H100-001"] / batches["L40S-001"] == pytest.approx(80 / 48, rel=0.05)
    assert set(batches_of(ARMS["uniform"], cluster(8), mean_context_tokens("lognormal")).values()) == {own["L40S"]}


def test_the_mean_context_is_that_of_the_load():
    drawn = load("lognormal", seed=7, requests=50_000, rate=50.0)
    assert float(np.mean(drawn.prompt_tokens + drawn.output_tokens)) == pytest.approx(mean_context_tokens("lognormal"), rel=0.02)
    assert drawn.rate_rps == pytest.approx(50.0)
    assert mean_context_tokens("long-output") == pytest.approx(mean_context_tokens("lognormal") + 256, rel=0.02)


def once(tmp_path, arms, settings=QUICK, **changes):
    tiny = {"requests": 60, "large": 0, "sizes": (), "loads": (), "distributions": (), "probe": 60} | changes
    chosen = msgspec.structs.replace(settings, arms=arms, **tiny)
    return run(chosen, on_cores(1), kept_rows(tmp_path / "rows.jsonl"))


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path):
    def figures(folder, seeds):
        rows = once(tmp_path / folder, ("latency-aware", PRODUCT), seeds=seeds)["rows"]
        return [{name: value for name, value in row["figures"].items() if name != "cpu_us"} for row in rows]

    one, two = figures("one", 1), figures("two", 2)
    assert one == figures("again", 1)
    assert one[0] == two[0] != two[1]


def test_a_run_that_is_broken_off_goes_on(tmp_path):
    settings = msgspec.structs.replace(
        QUICK, arms=("uniform", PRODUCT), requests=60, large=0, sizes=(), loads=(), distributions=(), probe=60
    )
    first = run(settings, on_cores(1), kept_rows(tmp_path / "rows.jsonl"), most=3)
    assert (first["missing"], len(first["rows"])) == (1, 3)
    second = run(settings, on_cores(1), kept_rows(tmp_path / "rows.jsonl"))
    assert (second["missing"], len(second["rows"])) == (0, 4)
    assert second["rows"][:3] == first["rows"]


@pytest.mark.slow
def test_the_study_in_small_finds_what_the_paper_finds(tmp_path):
    document = run(QUICK, on_cores(1), kept_rows(tmp_path / "rows.jsonl"))
    table = document["summary"][0]
    figures = {arm: {name: one and one["mean"] for name, one in found["figures"].items()} for arm, found in table["arms"].items()}
    assert (table["load"], table["devices"], list(figures)) == (1.0, 8, list(ARMS))
    uniform, product = figures["uniform"], figures[PRODUCT]
    assert product["tokens_per_s"] > 1.5 * uniform["tokens_per_s"]
    assert uniform["slo"] < 0.5 < figures["latency-aware"]["slo"] < product["slo"]
    assert uniform["ttft_ms_p95"] > 50.0 * product["ttft_ms_p95"]
    assert figures[NO_FEEDBACK]["slo"] < 0.1, "as in Figure 5: all of it goes to one H100"
    assert document["summary"][-1]["devices"] == QUICK.large
    assert document["summary"][-1]["arms"][PRODUCT]["figures"]["slo"]["mean"] > 0.9
    assert 20.0 < document["saturation_rps"]["lognormal"] < 60.0
    assert {goal["arm"] for goal in document["goals"]} == {PRODUCT, "fcfs: default"}
    shown = {one.title: one for one in tables(document)}
    assert all(one.rows for one in shown.values())
    assert "(17,234)" in body(document)


def test_the_command_writes_what_the_page_shows(capsys, tmp_path):
    assert main(["heteroserve", "--arms", "uniform", "--requests", "40", "--seeds", "1", "--most", "2", "--out", str(tmp_path)]) == 0
    assert "(17,234)" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- heteroserve:begin -->\n<!-- heteroserve:end -->\n")
    assert main(["heteroserve", "--page", str(page), "--out", str(tmp_path)]) == 0
    assert "**A part of the study.**" in page.read_text()
    assert main(["heteroserve", "--arms", "magic"]) == 2
    assert "magic" in capsys.readouterr().err


def rows(**slo: float):
    return [
        Row(
            task=Task(arm=arm, distribution="lognormal", devices=8, load=1.0, seed=0, requests=1),
            code="c",
            figures={"slo": share, "tokens_per_s": 100.0, "ttft_ms_p95": 1000.0 * (1.0 - share), "served": 1.0},
            by_gpu={"H100": 1.0},
        )
        for arm, share in slo.items()
    ]


def test_goals_are_held_against_the_better_reading_of_a_baseline():
    found = {PRODUCT: 0.9, "latency-aware": 0.5, "latency-aware (queues of now)": 0.86, "capability-weighted": 0.85, "uniform": 0.2}
    told = {goal["goal"]: goal for goal in goals(summary(rows(**found)))}
    assert told["SLO attainment above latency-aware"]["ours"] == pytest.approx(0.04)
    assert not told["SLO attainment above latency-aware"]["reached"]
    assert told["SLO attainment above capability-weighted as published"]["reached"]
    assert told["P95 TTFT over latency-aware's"]["ours"] == pytest.approx(0.1 / 0.14)
    assert told["P95 TTFT over latency-aware's"]["reached"]
    assert not told["throughput over uniform's"]["reached"]


def test_a_figure_that_a_run_lacks_has_no_mean():
    given_up = msgspec.structs.replace(rows(uniform=0.2)[0], figures={"slo": 0.2, "ttft_ms_p95": -1.0})
    place = summary([given_up, *rows(uniform=0.3)])[0]
    assert place["arms"]["uniform"]["figures"]["ttft_ms_p95"] is None
    assert place["arms"]["uniform"]["figures"]["slo"]["mean"] == pytest.approx(0.25)


def test_scaling_is_the_fit_of_a_line():
    def grown(tokens):
        return [
            {"distribution": "lognormal", "load": 1.0, "devices": size, "arms": {"uniform": {"figures": {"tokens_per_s": {"mean": one}}}}}
            for size, one in tokens.items()
        ]

    assert scaling_r2(grown({4: 40.0, 8: 80.0, 16: 160.0}), "uniform") == pytest.approx(1.0)
    bent = scaling_r2(grown({4: 40.0, 8: 80.0, 16: 80.0}), "uniform")
    assert bent is not None
    assert bent < 0.9
    assert scaling_r2(grown({4: 40.0, 8: 80.0}), "uniform") is None


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
