"""`hmas sweep`: grids, results kept and resumed, backends."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hmas.cli.main import main
from hmas.controller.core.errors import ConfigError
from hmas.planning import StudyError
from hmas.planning.backends import on_cores
from hmas.planning.running import run_case
from hmas.planning.sweep import Kept, Row, csv_text, curves, make_grid, means, points_of, run_points, sweep_document, varied, write_sweep

ROOT = Path(__file__).parents[2]
SETTINGS = {"workload": "poisson:rate=5,duration=12", "fleet": ["1xdemo-small"], "policy": ["fcfs", "edf"], "seed": [1, 2]}


def grid(**more):
    return make_grid(SETTINGS | more)


def test_a_grid_is_every_combination():
    points = points_of(grid(n_run=[8, 0], agents=["none", "statera"]))
    assert len(points) == 16
    assert len({point.case.key for point in points}) == 16
    assert [point.axes["seed"] for point in points[:4]] == [1, 2, 1, 2]
    assert [kind.n_run for kind in points[0].case.fleet.kinds] == [8]
    assert points[-1].case.fleet.name == "1xdemo-small"
    assert points[-1].case.agents == ("statera",)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"policy": []}, "policy is .*; allowed: one value or more"),
        ({"policy": ["edf", "edf"]}, "each once"),
        ({"policy": ["lifo"]}, "lifo"),
        ({"n_run": [1000]}, "n_run is 1000; allowed on demo-small: 1 to its max_num_seqs 256"),
        ({"load": [0.0]}, r"> 0.*load"),
        ({"seed": [-1]}, r">= 0.*seed"),
        ({"speed": [1]}, "speed"),
        ({"workload": "poisson:rate=5,duration=12,seed=3"}, "the workload names its own"),
        ({"seed": list(range(1000)), "load": [float(i) for i in range(1, 120)]}, "238000 cases; allowed: 100000"),
    ],
)
def test_what_no_grid_is(more, said):
    with pytest.raises(ConfigError, match=said):
        points_of(grid(**more))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    points = points_of(grid())
    kept = Kept(tmp_path_factory.mktemp("sweep") / "results.jsonl")
    run_points(points, kept, on_cores(1), lambda row, left: None)
    return points, kept


def test_rows_are_the_runs_figures(done):
    points, kept = done
    rows = kept.of(points)
    assert [row.axes for row in rows] == [point.axes for point in points]
    for point, row in zip(points, rows, strict=True):
        run = run_case(point.case)
        assert row.figures["good"] == sum(record.slo_met for record in run.records)
        assert row.figures["submitted"] == len(run.records)
        assert row.figures["violations"] == 0
        assert 0.0 < row.figures["utilisation"] <= 1.0


def test_results_survive_and_only_what_is_missing_is_run(done, tmp_path):
    points, kept = done
    path = tmp_path / "results.jsonl"
    lines = [*(json.dumps({"key": row.key, "axes": row.axes, "figures": row.figures}) for row in kept.of(points)[:3])]
    # The fourth was being written when the machine went down.
    path.write_text("\n".join(lines) + '\n{"key": "abc", "ax')
    again = Kept(path)
    assert len(again.rows) == 3
    told = []
    run_points(points, again, on_cores(1), lambda row, left: told.append((row.key, left)))
    assert told == [(points[3].case.key, 0)]
    assert again.of(points) == kept.of(points)
    assert Kept(path).of(points) == kept.of(points)
    path.write_text('{"no": "row"}\n')
    with pytest.raises(StudyError, match=r"results\.jsonl, line 1: no result of a sweep"):
        Kept(path)


def test_a_row_of_the_same_case_has_the_settings_as_they_are_asked_for(done):
    points, kept = done
    same = points_of(grid(n_run=[256], fleet=["demo-small"], admission=["gateway,guard=0.7"]))
    assert [point.case.key for point in same] == [point.case.key for point in points]
    rows = kept.of(same)
    assert {(row.axes["n_run"], row.axes["fleet"], row.axes["admission"]) for row in rows} == {(256, "demo-small", "gateway,guard=0.7")}
    assert [row.figures for row in rows] == [row.figures for row in kept.of(points)]


def test_an_interrupt_keeps_what_is_done(done, tmp_path):
    points, kept = done
    path = tmp_path / "results.jsonl"

    def interrupt(_row, left):
        if left == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_points(points, Kept(path), on_cores(1), interrupt)
    part = Kept(path)
    assert len(part.rows) == 2
    assert sweep_document(grid(), points, part.of(points))["complete"] is False
    run_points(points, part, on_cores(1), lambda row, left: None)
    assert sweep_document(grid(), points, part.of(points)) == sweep_document(grid(), points, kept.of(points))


def test_a_case_that_fails_is_told_and_tried_again(tmp_path):
    points = points_of(grid(workload=f"azure:{tmp_path / 'trace.csv'}", policy=["edf"], seed=[1]))
    path = tmp_path / "results.jsonl"
    told: list[Row] = []
    run_points(points, Kept(path), on_cores(1), lambda row, left: told.append(row))
    assert "no such file" in told[0].error
    assert Kept(path).of(points) == []
    (tmp_path / "trace.csv").write_text("arrival_s,context_tokens,generated_tokens\n0,100,10\n1,200,10\n")
    run_points(points, Kept(path), on_cores(1), lambda row, left: told.append(row))
    assert told[1].error == ""
    assert told[1].figures["submitted"] == 2


@pytest.mark.slow
def test_processes_give_the_same_results(done, tmp_path):
    points, kept = done
    other = Kept(tmp_path / "results.jsonl")
    run_points(points, other, on_cores(2), lambda row, left: None)
    assert other.of(points) == kept.of(points)


def test_means_and_curves(done):
    points, kept = done
    rows = kept.of(points)
    assert varied(rows) == ["policy"]
    found = means(rows)
    assert found[0].figures["good"] == (rows[0].figures["good"] + rows[1].figures["good"]) / 2
    assert curves(found, "good") == ("", [])
    text = list(csv.DictReader(csv_text(rows).splitlines()))
    assert [row["policy"] for row in text] == ["fcfs", "fcfs", "edf", "edf"]
    assert [float(row["good"]) for row in text] == [row.figures["good"] for row in rows]


def test_curves_take_the_load_for_their_axis():
    rows = [
        Row(key=f"{load}{policy}", axes={"fleet": "f", "load": load, "policy": policy, "n_run": 0, "router": "r", "admission": "a",
            "agents": "none", "seed": 1}, figures={"good": load})
        for policy in ("fcfs", "edf") for load in (2.0, 1.0)
    ]  # fmt: skip
    assert curves(means(rows), "good") == ("load", [("fcfs", [(1.0, 1.0), (2.0, 2.0)]), ("edf", [(1.0, 1.0), (2.0, 2.0)])])


def hmas(capsys, *arguments):
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_resumes(capsys, tmp_path):
    command = (
        "sweep",
        "--workload",
        SETTINGS["workload"],
        "--fleet",
        "1xdemo-small",
        "--policy",
        "fcfs",
        "--workers",
        1,
        "--out",
        tmp_path,
    )
    code, out, err = hmas(capsys, *command, "--n-run", "8", "--seed", "1..2", "--no-plots")
    assert code == 0
    assert "goodput/s" in out
    assert "2 of 2" in err
    code, out, err = hmas(capsys, *command, "--n-run", "8,16", "--seed", "1,2", "--no-plots")
    assert code == 0
    assert "2 of 4 cases are done already" in err
    whole = json.loads((tmp_path / "sweep.json").read_text())
    assert whole["complete"] is True
    assert [row["axes"]["n_run"] for row in whole["rows"]] == [8, 8, 16, 16]
    code, out, _ = hmas(capsys, *command, "--n-run", "8,16", "--seed", "1,2", "--json", "--no-plots")
    assert json.loads(out) == whole
    for more, said in (
        (["--seed", "one"], "--seed is 'one'"),
        (["--seed", f"1..{10**20}"], "allowed: 100000 of them at most"),
        (["--n-run", "big"], "n_run"),
        (["--policy", "lifo"], "lifo"),
    ):
        code, _, err = hmas(capsys, *command, *more)
        assert code == 2, more
        assert said in err


@pytest.mark.parametrize("content", [b'{"mine": 1}', b'{"mine": 1}\n{"mine": 2'])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(StudyError, match="choose another --out"):
        Kept(path)
    assert path.read_bytes() == content


def test_plots_of_a_sweep(done, tmp_path):
    points = points_of(grid(n_run=[8, 16], policy=["fcfs"], seed=[1]))
    rows = [Row(key=point.case.key, axes=point.axes, figures=done[1].of(done[0])[0].figures) for point in points]
    write_sweep(grid(), points, rows, tmp_path, plots=True)
    assert (tmp_path / "goodput_rate.svg").read_bytes().count(b"window n_run") == 1


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(tmp_path):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
    arguments = ["--workload", "poisson:rate=5,duration=15", "--fleet", "1xdemo-small", "--seed", "1..400", "--workers", "2", "--no-plots"]
    command = [sys.executable, "-m", "hmas", "sweep", "--out", str(tmp_path), *arguments]
    # A shell starts background jobs with SIGINT ignored, and children inherit that; a user's Ctrl-C finds it at its default.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert process.stderr is not None
    assert "1 of 400" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    whole = json.loads((tmp_path / "sweep.json").read_text())
    assert whole["complete"] is False
    assert 1 <= len(whole["rows"]) < 400
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(whole["rows"])
    assert "Traceback" not in err
