"""What is said of traces: figures that must come out on made-up ones, and the command, its plots and its page end to end."""

import gzip
import json

import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.result_files import read_result
from hmas_lab.traces.page import tables, write_page
from hmas_lab.traces.plots import PLOTS
from hmas_lab.traces.sources import by_task, weeks
from hmas_lab.traces.statistics import CONTEXTS, bursts, dispersion, drift, heat_of, into, log_edges, long_shares, slow

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import BASE_SLO, SPREAD
from hmas.controller.core.types import TaskType
from hmas.planning import StudyError

SPAN_S = 600.0


def even(rate, span_s=SPAN_S):
    return (np.arange(int(rate * span_s)) + 0.5) / rate


def test_even_arrivals_have_no_bursts_and_a_burst_is_counted_as_it_came():
    found = bursts(even(2.0), SPAN_S)
    assert (found["mean_rps"], found["peak_rps"], found["step_rps"]) == (2.0, 2.0, 0.0)
    assert (found["extra"], found["gap_cv"], found["dispersion"]) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    burst = np.sort(np.concatenate([even(2.0), np.full(60, 100.25)]))
    found = bursts(burst, SPAN_S)
    assert (found["peak_rps"], found["step_rps"]) == (62.0, 60.0)
    assert found["extra"] == pytest.approx(70.0 - 5.0 * 1260 / SPAN_S)


def test_poisson_arrivals_have_a_dispersion_of_one_in_every_window_and_slow_waves_only_in_long_ones():
    rng = np.random.default_rng(3)
    poisson = np.sort(rng.uniform(0.0, 20_000.0, 100_000))
    assert [dispersion(poisson, 20_000.0, window_s) for window_s in (1.0, 10.0, 60.0)] == pytest.approx([1.0, 1.0, 1.0], abs=0.3)
    fast, slow_half = rng.uniform(0.0, 10_000.0, 80_000), rng.uniform(10_000.0, 20_000.0, 20_000)
    wave = np.sort(np.concatenate([fast, slow_half]))
    assert dispersion(wave, 20_000.0, 1.0) < 4.0
    assert dispersion(wave, 20_000.0, 60.0) > 60.0


def test_the_share_of_long_prompts_is_taken_by_minute_and_says_nothing_of_a_minute_with_few():
    at_s = np.concatenate([even(1.0, 120.0), [130.0], 180.0 + even(1.0, 420.0)])
    prompt = np.where((at_s >= 60.0) & (at_s < 120.0), 4000.0, 100.0)
    shares = long_shares(at_s, prompt, SPAN_S)
    assert shares == [0.0, 1.0, None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    found = drift(at_s, prompt, np.full(len(at_s), 10.0), SPAN_S)
    assert (found["long_range"], found["long_step"]) == (1.0, 1.0)
    assert found["prompt_p95"] == 4000.0
    assert found["load_p95"] > 2.0


def test_bins_of_a_histogram_are_divided_in_proportion_and_nothing_is_lost():
    low, high = np.array([0.0, 400.0, 5000.0]), np.array([100.0, 624.0, 6000.0])
    found = into(CONTEXTS, low, high, np.array([1.0, 2.0, 3.0]))
    assert found.tolist() == pytest.approx([2.0, 1.0, 0.0, 3.0])
    shares = slow({0.0: found, 60.0: np.array([1.0, 1.0, 1.0, 1.0])})
    assert (shares["least_0"], shares["most_0"]) == pytest.approx((0.25, 1.0 / 3.0))
    assert (shares["least_2"], shares["most_3"]) == pytest.approx((0.0, 0.5))


def test_every_window_of_the_heat_map_sums_to_one_where_anything_came():
    edges = log_edges(90.0, 5000.0)
    assert (edges[0], edges[-1], edges[2] / edges[0]) == (64.0, 8192.0, 2.0)
    grid = np.array(heat_of(np.array([1.0, 2.0, 61.0]), np.array([100.0, 4000.0, 100.0]), edges, 180.0, 60.0))
    assert grid.sum(axis=0).tolist() == pytest.approx([1.0, 1.0, 0.0])
    assert grid.shape == (len(edges) - 1, 3)


@pytest.fixture
def data(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text)

    rng = np.random.default_rng(1)
    for name in ("azure_llm_2023_conv", "azure_llm_2023_code"):
        times = np.sort(rng.uniform(0.0, 240.0, 480))
        rows = "".join(f"{at_s:.3f},{int(rng.integers(10, 5000))},{int(rng.integers(1, 400))}\n" for at_s in times - times[0])
        write(f"arrivals/{name}.csv.gz", f"arrival_s,context_tokens,generated_tokens\n{rows}")
    lines = [json.dumps({"timestamp": 500 * n, "input_length": 700 + n, "output_length": 30, "hash_ids": [n, n + 1]}) for n in range(400)]
    write("arrivals/mooncake_conversation.jsonl.gz", "\n".join(lines))
    windows = [f"{21_600 * n},100,200,{10 + n}\nm,input_tokens,{21_600 * n},5000,6000,5" for n in range(9)]
    hours = "".join(f"m,input_tokens,{row}\nm,output_tokens,0,1,2,3\n" for row in windows)
    few = "short,input_tokens,0,100,200,1\n"
    write("arrivals/servegen_length_hist.csv.gz", f"model,field,t_s,bin_lo,bin_hi,est_requests\n{hours}{few}")
    prompts = [
        {"task_type": "QA", "prompt_tokens": 10 + n, "output_tokens": 5, "output_origin": "human" if n == 7 else "llm:m"} for n in range(8)
    ]
    write("prompts/typed_prompts.jsonl.gz", "\n".join(map(json.dumps, prompts)))
    return tmp_path


def test_the_command_tells_all_of_it_from_the_public_data_and_the_page_shows_it(data, tmp_path):
    out, page = tmp_path / "out", tmp_path / "traces.md"
    assert main(["traces", "--data", str(data), "--out", str(out)]) == 0
    document = read_result(out / "traces.json", command="hmas-lab traces")
    assert list(document["summary"]["traces"]) == ["Azure conversation", "Azure code", "Mooncake conversation"]
    assert document["summary"]["traces"]["Azure conversation"]["requests"] == 480
    assert document["summary"]["weeks"]["m"]["windows"] == 9
    assert document["summary"]["tasks"] == {"QA": {"prompts": 7, "prompt": [10.0, 13.0, 16.0], "output": [5.0, 5.0, 5.0]}}
    assert list(document["heat"]) == ["Azure conversation", "Azure code", "Mooncake conversation", "m"]
    page.write_text("# Traces\n<!-- traces:begin -->\n<!-- traces:end -->\n")
    assert write_page(page, out) == ["traces"]
    text = page.read_text()
    for name in PLOTS:
        assert f"({name}.svg)" in text
        assert (tmp_path / f"{name}.svg").read_bytes() == (out / f"{name}.svg").read_bytes()
    assert len(tables(document)) == 4


def test_targets_lie_within_a_fifth_of_table_6_and_keep_its_proportion(tmp_path):
    assert main(["traces", "--workload", "poisson:rate=5,duration=130", "--out", str(tmp_path)]) == 0
    document = read_result(tmp_path / "traces.json", command="hmas-lab traces")
    assert [one.title.partition(":")[0] for one in tables(document)] == [
        "Arrivals by the second, the mix by the minute, and lengths",
        "Targets by task type",
    ]
    for task, one in document["summary"]["targets"].items():
        base = BASE_SLO[TaskType(task)]
        assert one["base"] == [base.ttft_ms, base.tpot_ms]
        for ttft_ms, tpot_ms in one["points"]:
            assert (1.0 - SPREAD) * base.ttft_ms - 1.0 <= ttft_ms <= (1.0 + SPREAD) * base.ttft_ms
            assert ttft_ms / base.ttft_ms == pytest.approx(tpot_ms / base.tpot_ms, abs=0.02)


def test_what_is_missing_or_bad_is_named(data, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("HMAS_DATA_DIR", raising=False)
    assert main(["traces", "--out", str(tmp_path / "none")]) == 2
    assert "HMAS_DATA_DIR" in capsys.readouterr().err
    with gzip.open(data / "arrivals/servegen_length_hist.csv.gz", "at") as file:
        file.write("m,input_tokens,0,100,wide,5\n")
    with pytest.raises(TraceError, match=r"servegen_length_hist.csv.gz, row \d+: .*wide"):
        weeks(data)
    with gzip.open(data / "prompts/typed_prompts.jsonl.gz", "at") as file:
        file.write('\n{"task_type": "QA"}')
    with pytest.raises(TraceError, match=r"row 9: .*output_origin"):
        by_task(data)
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(StudyError, match="run `hmas-lab traces` first"):
        write_page(page, tmp_path / "none")
