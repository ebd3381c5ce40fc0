"""Reading measured logs, fitting them, and the report; the logs here are made by the simulator itself, so the truth is known."""

import gzip
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.fidelity.closed_loop import run_bare
from hmas_lab.fidelity.descent import gauss_newton
from hmas_lab.fidelity.energy import all_but_three, every_other, fit_engine, predict_itl_ms
from hmas_lab.fidelity.energy_data import COLUMNS, Point, Sweep, read_energy
from hmas_lab.fidelity.pilot import leave_out, split, with_lengths
from hmas_lab.fidelity.pilot_data import REQUEST_COLUMNS, balanced, by_deployment, read_pilot
from hmas_lab.fidelity.pilot_fit import fit_deployment
from hmas_lab.fidelity.pilot_model import PARAMETERS, deployed, errors, predict
from hmas_lab.fidelity.plain import report_from_sources
from hmas_lab.fidelity.study import ENERGY, REQUESTS, SUMMARY, report
from hmas_lab.fidelity.tgi import TgiEngine
from typing_kit import known

from hmas.controller.core.errors import HmasError, TraceError

TRUE = {
    "step_ms": 12.0,
    "decode_ms_per_seq": 0.7,
    "decode_ms_per_kv_ktoken": 0.1,
    "prefill_ms_per_token": 0.04,
    "request_ms": 9.0,
    "prompt_ms": 4.0,
    "splice_ms": 6.0,
    "patience": 16.0,
    "kv_tokens": 100_000.0,
}
DEPLOYMENT = ("llama-x", "H999", 2)
REQUEST_HEAD = ",".join([*REQUEST_COLUMNS[:4], "start_offset_ms", *REQUEST_COLUMNS[4:8], "itl_mean_ms", "itl_median_ms", "latency_ms"])
SUMMARY_HEAD = "model,gpu,n_gpus,num_users,n_requests,duration_s,out_tokens_total,out_tok_per_s,ttft_median_ms,itl_median_ms,itl_mean_ms"


def lengths(seed=3, count=300):
    rng = np.random.default_rng(seed)
    prompts = np.clip(np.exp(rng.normal(4.4, 0.9, count)), 8, 800).astype(int)
    outputs = np.clip(np.exp(rng.normal(2.3, 1.0, count)), 1, 120).astype(int)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def write_logs(folder: Path, users=(1, 2, 4, 16, 48), *, seconds=40.0, broken=()):
    """Logs of the true deployment as the simulator shows them, in the files' form. Each row's times are the run's medians."""
    what = deployed(DEPLOYMENT, np.array([TRUE[name] for name in PARAMETERS]), (5.0, 7.0))
    rows, sums = [REQUEST_HEAD], [SUMMARY_HEAD]
    drawn = lengths()
    name = ",".join(map(str, DEPLOYMENT))
    for count in users:
        engine = TgiEngine(what.profile, prompt_ms=4.0, splice_ms=6.0, patience=16.0)
        seen = run_bare(engine, drawn, users=count, seconds=seconds, pauses_ms=(5.0, 7.0))
        gap, mean = engine.gap_median_ms(), engine.gap_mean_ms()
        cycle_ms = 1000.0 * seconds * count / seen.completed
        share = 0.3 if count in broken else 1.0
        for prompt, output in drawn:
            ttft = seen.ttft_ms if count > 1 else 9.0 + 12.0 + 4.0 + 0.04 * prompt
            gaps = f"{mean},{gap}" if output > 1 else ","
            rows.append(f"{name},{count},0,{prompt},{output},6,{ttft:.1f},{gaps},{share * cycle_ms:.1f}")
        tokens = seen.tokens_per_s * seconds
        sums.append(f"{name},{count},{seen.completed},{seconds},{tokens},{seen.tokens_per_s},{seen.ttft_ms},{gap},{mean}")
    for path, lines in ((REQUESTS, rows), (SUMMARY, sums)):
        text = ("\n".join(lines) + "\n").encode()
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text) if path.endswith(".gz") else text)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_logs(folder)
    return folder


def runs_of(folder):
    ((_, runs),) = by_deployment(read_pilot([folder / REQUESTS, folder / SUMMARY]))
    return runs


def test_logs_are_put_together(logs):
    runs = runs_of(logs)
    assert list(runs) == [1, 2, 4, 16, 48]
    assert runs[4].measured.tpot_ms == pytest.approx(12 + 0.7 * 3, rel=0.2)
    assert runs[4].opens_ms == (6.0,) * 300
    assert all(run.whole for run in runs.values())
    assert not runs[4].measured.sampled


def test_a_run_without_a_summary_is_measured_by_its_requests(logs):
    runs = read_pilot([logs / REQUESTS])
    whole = runs_of(logs)
    for run in runs:
        assert known(run.measured).sampled
        assert known(run.measured).tpot_ms == pytest.approx(known(whole[run.users].measured).tpot_ms)
        # Throughput by Little's law; the first and the last request of each user are cut.
        assert known(run.measured).tokens_per_s == pytest.approx(known(whole[run.users].measured).tokens_per_s, rel=0.1)


def test_a_log_with_holes_is_known_by_its_time(tmp_path):
    write_logs(tmp_path, users=(1, 4, 16), seconds=10.0, broken=(16,))
    runs = runs_of(tmp_path)
    assert runs[1].whole
    assert not runs[16].whole
    job = split(runs, (1, 4, 16))
    assert job is None or 16 not in job.fit
    assert [one.hold for one in leave_out(runs)] == []


def test_samples_are_balanced_to_the_mean_of_all():
    outputs = np.array([1.0] * 50 + [20.0] * 40 + [200.0] * 10)
    weights = balanced(outputs, 35.0)
    assert np.average(outputs, weights=weights) == pytest.approx(35.0, rel=0.01)
    assert (weights > 0).all()
    assert (balanced(outputs, 500.0) == 1).all()
    assert (balanced(outputs, 199.0) == 1).all()


@pytest.mark.slow
def test_a_fit_predicts_what_it_has_not_seen(logs):
    runs = runs_of(logs)
    what = fit_deployment([runs[users] for users in (1, 4, 48)], seconds=20.0, rounds=4)
    for users in (2, 16):
        found = errors(predict(what, runs[users], seconds=40.0), runs[users].measured)
        assert abs(found["tpot"]) < 0.05, users
        assert abs(found["throughput"]) < 0.05, users
        assert abs(found["ttft"]) < 0.12, users


def test_a_fit_needs_two_runs_with_figures(logs):
    with pytest.raises(ValueError, match="two or more"):
        fit_deployment([runs_of(logs)[1]])


def test_splits(logs):
    runs = runs_of(logs)
    job = known(split(runs, (1, 4, 48, 999)))
    assert (job.fit, job.hold) == ((1, 4, 48), (2, 16))
    assert split(runs, (1, 999)) is None
    assert [one.hold for one in leave_out(runs)] == [(1,), (2,), (4,), (16,), (48,)]
    assert leave_out(runs)[1].fit == (1, 4, 16, 48)


def test_a_held_out_run_without_requests_takes_the_nearest_lengths(logs):
    runs = runs_of(logs)
    bare = msgspec.structs.replace(runs[16], users=12, lengths=())
    assert with_lengths(bare, runs | {12: bare}).lengths == runs[16].lengths
    assert with_lengths(runs[4], runs) is runs[4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "columns a, b; allowed"),
        ("", "columns none"),
        (REQUEST_HEAD + "\nm,g,1,1,0,-3,5,1,1,1,1,10\n", "row 2, n_input_tokens '-3'"),
        (REQUEST_HEAD + "\nm,g,1,1,0,3,5,1,x,1,1,10\n", "row 2, ttft_ms 'x'"),
        (SUMMARY_HEAD + "\nm,g,1,0,9,120,9,9,9,9,9\n", "row 2, num_users '0'"),
    ],
)
def test_bad_logs_are_named(tmp_path, text, words):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=words):
        read_pilot([path])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_pilot([tmp_path / "none.csv"])
    with pytest.raises(TraceError, match="nothing to compare with"):
        report(tmp_path)


def test_gauss_newton_finds_a_minimum_over_stairs():
    truth = np.array([0.7, -0.4])

    def residuals(x):
        model = np.array([x[0] + 0.3 * x[1], x[0] * x[1], x[0] - x[1]])
        wanted = np.array([truth[0] + 0.3 * truth[1], truth[0] * truth[1], truth[0] - truth[1]])
        return np.round(model - wanted, 2)

    found = gauss_newton(residuals, np.zeros(2), np.full(2, -2.0), np.full(2, 2.0), rounds=10, difference=0.1)
    assert found == pytest.approx(truth, abs=0.03)
    bounded = gauss_newton(residuals, np.zeros(2), np.full(2, -2.0), np.array([0.5, 2.0]), rounds=10, difference=0.1)
    assert bounded[0] <= 0.5


def point(batch, itl_ms, output=400.0, prompt_ms=3.0):
    return Point(
        batch=batch,
        running=float(batch),
        output_tokens=output,
        itl_ms=itl_ms,
        tokens_per_s=1000 * batch / (itl_ms + prompt_ms * batch / output),
    )


def sweep(task="chat"):
    return Sweep(gpu="H100", model="m", gpus=1, tp=1, ep=1, dp=1, dtype="bf16", task=task)


def curve_ms(n):
    """Steep at first, as a mixture of experts is, then flat."""
    return 8.0 + 6.0 * min(n, 32) / 32 + 0.05 * n


def test_batch_sizes_between_those_seen():
    points = [point(n, curve_ms(n) + 0.02e-3 * n * 200) for n in (8, 16, 32, 64, 128, 256)]
    held = every_other(points)
    assert [one.batch for one in held] == [16, 64]
    assert [one.batch for one in every_other(points, odd=True)] == [32, 128]
    assert [one.batch for one in all_but_three(points)] == [16, 32, 128]
    profile = fit_engine("m", {sweep(): [one for one in points if one not in held]})
    for one in held:
        assert predict_itl_ms(profile, one) == pytest.approx(one.itl_ms, rel=0.05)


def test_long_answers_tell_what_reading_the_cache_costs():
    def itl_ms(n, output):
        return curve_ms(n) + 0.03e-3 * n * output / 2

    seen = {
        sweep(task): [point(n, itl_ms(n, output), output) for n in (8, 32, 128)]
        for task, output in (("chat", 400.0), ("reasoning", 6000.0))
    }
    profile = fit_engine("m", seen)
    assert profile.decode_ms_per_kv_ktoken == pytest.approx(0.03, rel=0.1)


def test_reading_sweeps(tmp_path):
    path = tmp_path / "energy.csv"
    row = "H100,m,1,1,1,1,bf16,chat,{batch},{batch},400,{itl},900"
    rows = [
        row.format(batch=8, itl=9),
        row.format(batch=16, itl=10),
        row.format(batch=16, itl=12),
        row.format(batch=4, itl=7).replace("H", "B"),
    ]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    ((found, points),) = read_energy(path).items()
    assert found == sweep()
    assert [(one.batch, one.itl_ms) for one in points] == [(8, 9.0), (16, 11.0)]
    path.write_text(",".join(COLUMNS) + "\n" + row.format(batch=8, itl="fast") + "\n")
    with pytest.raises(TraceError, match="row 2, median_itl_ms 'fast'"):
        read_energy(path)
    path.write_text("gpu_model\nH100\n")
    with pytest.raises(TraceError, match="lacks the columns"):
        read_energy(path)


@pytest.mark.slow
def test_the_command_reports_and_says_the_same_again(tmp_path, capsys):
    write_logs(tmp_path / "data", users=(1, 4, 8, 16), seconds=8.0)
    energy = tmp_path / "data" / ENERGY
    rows = [f"H100,m,1,1,1,1,bf16,chat,{n},{n},60,{curve_ms(n)},{1000 * n / curve_ms(n)}" for n in (8, 16, 32, 64)]
    energy.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    documents, plots = [], []
    for number in range(2):
        out = tmp_path / f"out{number}"
        assert main(["fidelity", "--data", str(tmp_path / "data"), "--fit-users", "1,4,16", "--out", str(out)]) == 0
        documents.append((out / "fidelity.json").read_bytes())
        plots.append([(out / f"fidelity-{name}.svg").read_bytes() for name in ("pilot", "batch")])
    assert documents[0] == documents[1]
    assert plots[0] == plots[1]
    found = json.loads(documents[0])
    assert [row["users"] for row in found["llm_pilot"]["split"]["held_out"]] == [8]
    assert found["llm_pilot"]["split"]["median"]["tpot"] < 0.07
    assert found["ml_energy"]["runs"] == 2
    text = capsys.readouterr().out
    assert "fitted at 1, 4, 16 users" in text
    assert "ML.ENERGY" in text


@pytest.mark.slow
def test_a_process_without_the_compiled_form_reports_the_same(tmp_path, monkeypatch):
    write_logs(tmp_path, users=(1, 4, 16), seconds=5.0)
    options = ["--data", str(tmp_path), "--fit-users", "1,16"]
    assert report_from_sources(options) == json.loads(json.dumps(report(tmp_path, fit_users=(1, 16))))
    with pytest.raises(HmasError, match="ended with status"):
        report_from_sources(["--data", str(tmp_path / "none")])
    monkeypatch.setenv("HMAS_FIDELITY_CHILD", "1")
    with pytest.raises(HmasError, match="uncompiled"):
        report_from_sources(options)


def test_the_command_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.delenv("HMAS_DATA_DIR", raising=False)
    assert main(["fidelity"]) == 2
    assert "--data DIR" in capsys.readouterr().err
    assert main(["fidelity", "--vllm-python", "/bin/sh"]) == 2
    assert "go together" in capsys.readouterr().err
    assert main(["fidelity", "--fit-users", "4", "--data", "."]) == 2
    assert "two or more different numbers" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif("HMAS_DATA_DIR" not in os.environ, reason="needs the public logs")
def test_one_real_deployment_is_predicted_within_the_goal():
    folder = Path(os.environ["HMAS_DATA_DIR"])
    runs = dict(by_deployment(read_pilot([folder / REQUESTS, folder / SUMMARY])))["llama-7b", "A100", 4]
    what = fit_deployment([runs[users] for users in (1, 4, 32)])
    found = errors(predict(what, runs[16], seconds=60.0), known(runs[16].measured))
    assert abs(found["tpot"]) < 0.07
    assert abs(found["throughput"]) < 0.07
    assert abs(found["ttft"]) < 0.15
