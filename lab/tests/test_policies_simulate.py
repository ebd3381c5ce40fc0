"""The simulated comparison on little: who wins, the same bytes on any number of processes, and what cannot be run."""

import json

import msgspec
import pytest
from hmas_lab.cli import main
from hmas_lab.policies import simulate
from hmas_lab.policies.page import SHOWN
from hmas_lab.policies.plots import simulated_plot
from hmas_lab.policies.settings import BASELINE, SimulatedSettings, read_policies
from hmas_lab.policies.sim_figures import MEASURES, summary
from hmas_lab.policies.simulate import SimulatedStudy
from hmas_lab.policies.tables import matrix, simulated_tables, simulated_verdicts, wins_table

from hmas.controller.core.errors import ConfigError
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.planning import StudyError
from hmas.planning.backends import on_cores
from hmas.planning.running import run_case

TINY = SimulatedSettings(
    policies=(BASELINE, "sjf"), slices=("burst",), fleet="1xdemo-small", loads=(1.0,), seeds=2, duration_s=20.0, backlog=40, caps=(8, 16)
)


def run(settings=TINY, backend=None):
    return SimulatedStudy(settings, backend or on_cores(1), lambda _text: None).run()


@pytest.fixture(scope="module")
def document():
    return run()


def backwards(work, tasks):
    """A backend whose tasks end in the opposite order."""
    yield from ((place, work(task)) for place, task in reversed(list(enumerate(tasks))))


def test_the_same_document_in_whatever_order_runs_end(document):
    assert json.dumps(document) == json.dumps(run(backend=backwards))


def test_every_policy_meets_the_same_workloads_with_the_same_window(document):
    rows = document["rows"]
    assert [(row["policy"], row["seed"]) for row in rows] == [(p, s) for s in (1, 2) for p in (BASELINE, "sjf")]
    assert len({row["window"] for row in rows}) == 1
    for seed in (1, 2):
        submitted = {row["figures"]["submitted"] for row in rows if row["seed"] == seed}
        assert len(submitted) == 1
    assert not any(row["error"] for row in rows)
    ground = document["grounds"][0]
    assert ground["window"] == max(ground["tried"], key=ground["tried"].get)
    assert ground["calibration"]["mean_rps"] == pytest.approx(ground["calibration"]["capacity_rps"])


def test_tables_hold_every_policy_and_every_slice(document):
    (table,) = simulated_tables(document)
    assert {row[0] for row in table.rows} == {BASELINE, "sjf"}
    assert len(wins_table(document).rows) == len(simulated_verdicts(document)) == 1
    assert all(len(row) == len(table.head) for row in table.rows)


def row(policy, seed, goodput, ttft=100.0, error=""):
    figures = {where.key: 0.5 for where in MEASURES.values() if where.group == "figures"} | {
        "goodput_rps": goodput,
        "ttft_ms_started_p99": ttft,
    }
    return {
        "slice": "steady",
        "load": 1.0,
        "policy": policy,
        "seed": seed,
        "window": 8,
        "figures": {} if error else figures,
        "classes": {"short": 0.5, "long": 0.5},
        "tenants": {},
        "error": error,
    }


def test_a_sure_gain_is_told_from_one_that_is_not():
    base, sure, unsure = [10.0, 20.0, 15.0, 12.0], [0.5, 0.6, 0.55, 0.52], [2.0, -1.5, 1.0, -0.5]
    rows = [
        r
        for seed, value in enumerate(base)
        for r in (
            row(BASELINE, seed, value, ttft=100.0),
            row("edf", seed, value + sure[seed], ttft=80.0 - seed),
            row("sjf", seed, value + unsure[seed], ttft=120.0 + seed),
            row("wfq", seed, value - sure[seed]),
        )
    ]
    (place,) = summary(rows, [BASELINE, "edf", "sjf", "wfq"])
    assert (place["better"], place["worse"]) == (["edf"], ["wfq"])
    by_policy = {r["policy"]: r for r in place["policies"]}
    assert by_policy["edf"]["ttft_p99"]["verdict"] == "better"
    assert by_policy["sjf"]["ttft_p99"]["verdict"] == "worse"
    assert by_policy["sjf"]["goodput"]["verdict"] == "within noise"
    assert place["wins"]["goodput"] == {"policy": "edf", "mean": pytest.approx(14.7925), "ties": ["sjf"]}
    assert place["wins"]["ttft_p99"]["policy"] == "edf"
    said = simulated_verdicts({"summary": [place]})[0]
    assert "more goodput than FCFS for sure: edf 1.0" in said
    assert "less for sure: wfq 0.9" in said
    marks = {cells[0]: cells[1][-2:] for cells in matrix({"summary": [place]}, "goodput").rows}
    assert {name: mark for name, mark in marks.items() if mark in {" +", " -"}} == {"edf": " +", "wfq": " -"}


def test_where_nothing_is_sure_ordering_buys_nothing_and_a_failed_policy_is_named():
    rows = [
        r for seed in range(3) for r in (row(BASELINE, seed, 10.0 + seed), row("edf", seed, 10.0 + seed), row("sjf", seed, 0.0, error="no"))
    ]
    (place,) = summary(rows, [BASELINE, "edf", "sjf"])
    assert place["failed"] == {"sjf": "no"}
    assert "ordering buys no goodput" in simulated_verdicts({"summary": [place]})[0]
    assert "sjf failed: no" in simulated_tables({"summary": [place], "late": "shed"})[0].title


def test_a_run_that_the_checker_objects_to_fails(monkeypatch):
    def objecting(case):
        made = run_case(case)
        made.violations.append("a request was served twice")
        return made

    monkeypatch.setattr(simulate, "run_case", objecting)
    with pytest.raises(StudyError, match="burst, window 8: the independent checker objects: a request was served twice"):
        run()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"fleet": "1xnothing"}, "profile 'nothing' is unknown"),
        ({"caps": (4096,)}, r"caps are \[4096\]; allowed for 1xdemo-small: at least one of 1 to 256"),
    ],
)
def test_what_cannot_be_run_is_told_at_once(more, said):
    with pytest.raises(ConfigError, match=said):
        SimulatedStudy(msgspec.structs.replace(TINY, **more), on_cores(1), print)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of"),
        (["--simulate", "--page", __file__], "give one of"),
        (["--model", "x"], "--vllm-python and --model go together"),
        (["--simulate", "--policies", "edf,nope"], "policies: nope; allowed: " + ", ".join(POLICIES)),
        (["--simulate", "--policies", "fcfs"], "leaves none to compare with fcfs"),
        (["--simulate", "--slices", "steady,flood"], "slices: flood; allowed: steady, burst, drift, shift"),
        (["--simulate", "--loads", "0.5,0"], "loads: '0' in '0.5,0'; allowed: numbers above 0"),
        (["--simulate", "--seeds", "1"], "1 is not in the range"),
        (["--blocks", "0"], "0 is not in the range"),
    ],
)
def test_bad_options_are_named(arguments, said, capsys):
    assert main(["policies", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_whole_pool_is_the_default_with_the_baseline_first():
    assert read_policies("")[0] == BASELINE
    assert sorted(read_policies("")) == sorted(POLICIES)
    assert read_policies(" sjf , edf") == (BASELINE, *(name for name in POLICIES if name in {"edf", "sjf"}))


def test_no_vllm_is_told_before_anything_is_measured(tmp_path, capsys):
    arguments = ["--vllm-python", str(tmp_path / "python"), "--model", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["policies", *arguments, "--policies", "edf", "--trace", str(trace_file(tmp_path))]) == 1
    assert "is not there; `make setup-vllm` installs vLLM" in capsys.readouterr().err


def trace_file(folder):
    path = folder / "trace.csv"
    lines = [f"2023-11-16 18:{i // 60:02d}:{i % 60:02d}.0000000,{200 + i},{20 + i % 50}" for i in range(600)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_the_command_writes_result_and_plot(tmp_path, capsys):
    options = ["--simulate", "--policies", "sjf", "--slices", "steady", "--loads", "1", "--seeds", "2", "--duration", "20", "--json"]
    assert main(["policies", *options, "--fleet", "1xdemo-small", "--workers", "1", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "simulated.json").read_text())
    assert (tmp_path / "simulated.svg").read_text().startswith("<?xml")


def test_results_are_written_into_the_page_and_only_between_its_markers(tmp_path, capsys, document):
    out = tmp_path / "out"
    out.mkdir()
    (out / "simulated.json").write_text(json.dumps(document))
    simulated_plot(out / "simulated.svg", document)
    page = tmp_path / "page.md"
    around = (
        "# Head\n\n<!-- live:begin -->\nnone\n<!-- live:end -->\nmiddle\n<!-- simulated:begin -->\nstale\n<!-- simulated:end -->\ntail\n"
    )
    page.write_text(around)
    for _ in range(2):
        assert main(["policies", "--page", str(page), "--out", str(out)]) == 0
        text = page.read_text()
        assert text.startswith("# Head\n\n<!-- live:begin -->\nnone\n<!-- live:end -->\nmiddle\n")
        assert text.endswith("<!-- simulated:end -->\ntail\n")
        assert text.count("| sjf |") == len(SHOWN)
        assert "stale" not in text
    assert (tmp_path / "policies-simulated.svg").read_bytes() == (out / "simulated.svg").read_bytes()


def test_a_page_that_cannot_be_written_is_named(tmp_path, capsys, document):
    page = tmp_path / "page.md"
    page.write_text("no markers")
    assert main(["policies", "--page", str(page), "--out", str(tmp_path)]) == 1
    assert "holds none of live.json, simulated.json; run `hmas-lab policies` first" in capsys.readouterr().err
    (tmp_path / "simulated.json").write_text(json.dumps(document))
    assert main(["policies", "--page", str(page), "--out", str(tmp_path)]) == 1
    assert "0 pairs of <!-- simulated:begin -->" in capsys.readouterr().err
    (tmp_path / "simulated.json").write_text("{}")
    assert main(["policies", "--page", str(page), "--out", str(tmp_path)]) == 1
    assert "no result of `hmas-lab policies`" in capsys.readouterr().err
    assert page.read_text() == "no markers"
