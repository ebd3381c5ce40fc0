"""`hmas simulate`: figures, files, determinism, agents, stopping."""

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hmas.cli.main import main
from hmas.controller.core.types import OutcomeKind
from hmas.planning import charts
from hmas.planning.case import Case, SloTarget, read_admission
from hmas.planning.fleet import read_fleet
from hmas.planning.probing import probe
from hmas.planning.report import document, make_report, rounded
from hmas.planning.running import TELL_EVERY, Told, Watch, run_case
from hmas.planning.steering import AgentSteering

ROOT = Path(__file__).parents[2]
DATA = os.environ.get("HMAS_DATA_DIR", "")
BUSY = "poisson:rate=9,duration=40"


def case(**more):
    values: dict[str, Any] = {"workload": BUSY, "fleet": read_fleet("2xdemo-small:n_run=24")}
    return Case(**(values | more))


@pytest.fixture(scope="module")
def run():
    return run_case(case())


def test_figures_are_those_of_the_records(run):
    assert run.violations == []
    scored = make_report(run).score
    good = sum(record.slo_met for record in run.records)
    assert scored.submitted == len(run.records) == run.load.count
    assert scored.good == good
    assert scored.goodput_rps == pytest.approx(good / 40.0)
    assert scored.goodput_rate == pytest.approx(good / len(run.records))
    assert 0.0 < scored.goodput_rate < 1.0
    assert set(scored.per_class) == {"poisson-short", "poisson-long"}
    assert sum(group.submitted for group in scored.per_tenant.values()) == scored.submitted


def test_tasks_and_targets_are_those_of_the_workload(run):
    arrivals = run.load.feed("", None).arrivals
    for i, (result, arrival) in enumerate(zip(make_report(run).results, arrivals, strict=True)):
        assert result.task_type is run.load.task(i, "")
        assert result.slo == arrival.request.declared_slo
        assert result.at_s == arrival.request.arrival_s


def test_instances_add_up(run):
    parts = make_report(run).instances
    assert list(parts) == ["demo-small-1", "demo-small-2"]
    assert sum(part.requests for part in parts.values()) == sum(bool(record.instance) for record in run.records)
    assert sum(part.generation_tokens for part in parts.values()) == sum(record.output_tokens for record in run.records)
    for part in parts.values():
        assert 0.5 < part.utilisation <= 1.0
        assert 1.0 < part.in_flight_mean <= 24.0
        assert part.tokens_per_step > 1.0


def test_a_warm_up_is_served_and_not_scored(run):
    warm = run_case(case(warmup_s=20.0))
    assert warm.records == run.records
    assert make_report(warm).score.submitted == sum(record.arrival_s >= 20.0 for record in run.records)


def test_settings_reach_the_scheduler():
    keep = run_case(case(policy="fcfs", admission=read_admission("open")))
    shed = run_case(case(policy="sjf", admission=read_admission("shed,late_service_share=1")))
    assert {record.policy for record in keep.records} == {"fcfs"}
    assert {record.outcome for record in keep.records} == {OutcomeKind.COMPLETED}
    assert OutcomeKind.SHED in {record.outcome for record in shed.records}
    assert keep.violations == shed.violations == []


@pytest.mark.slow
def test_agents_steer_and_are_heard():
    short = {"workload": "poisson:rate=8,duration=15", "fleet": read_fleet("2xdemo-small")}
    alone = run_case(case(**short))
    steered = run_case(case(**short, agents=("statera", "meta")))
    assert alone.actions == 0
    assert steered.actions > 10
    assert steered.violations == []
    assert steered.records != alone.records
    told = document(make_report(steered))["agents"]
    assert told["actions"] == steered.actions
    assert all(change["before"] != change["after"] for change in told["policy_changes"])


def test_the_twin_forgets_requests_that_were_refused_on_arrival():
    made = case(workload="poisson:rate=20,duration=4", agents=("meta",), admission=read_admission("gateway,queue=3"))
    steering = AgentSteering(made)
    run = run_case(made, steering=steering)
    refused = sum(record.outcome is OutcomeKind.REJECTED for record in run.records)
    assert refused > 10
    assert steering.twin is not None
    assert len(steering.twin.traffic) == len(run.records) - refused


@pytest.mark.slow
def test_meta_changes_the_policy_where_its_rules_say_so():
    rules = {"meta_selector": "rules", "meta_judge": False}
    run = run_case(
        case(workload="poisson:rate=12,duration=60", policy="fcfs", agents=("meta",), admission=read_admission("open"), meta=rules)
    )
    assert run.changes
    assert run.changes[0].before == "fcfs"
    assert run.changes[0].reason
    assert run.changes[0].after in {record.policy for record in run.records}


def test_stopping_early_leaves_a_report_of_the_part():
    told: list[Told] = []
    watch = Watch(tell=told.append, stop=lambda: len(told) == 1)
    run = run_case(case(), watch)
    assert run.stopped_s is not None
    assert run.violations == []
    assert 0 < told[-1].done < TELL_EVERY
    assert 0 < len(run.records) < run.load.count
    assert all(record.arrival_s <= run.stopped_s for record in run.records)
    # What had been sent was served; what waited was left, and is scored as nothing.
    unfinished = sum(record.outcome is None for record in run.records)
    scored = make_report(run).score
    assert scored.submitted == len(run.records) - unfinished
    assert scored.lost == 0
    report = document(make_report(run))
    assert report["interrupted"] is True
    assert report["simulated"]["unfinished"] == unfinished
    assert report["simulated"]["stopped_s"] == run.stopped_s


def test_watching_changes_nothing(run):
    told: list[Told] = []
    watched = run_case(case(), Watch(tell=told.append))
    assert watched.records == run.records
    assert told
    assert all(before.now_s <= after.now_s for before, after in itertools.pairwise(told))


@pytest.mark.slow
def test_plots_are_the_same_bytes_each_time(run, tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        charts.latencies(folder / "latency.svg", make_report(run).results)
        charts.timeline(folder / "timeline.svg", make_report(run).results, 40.0)
        charts.instances(folder / "instances.svg", make_report(run).instances)
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
        assert b"<dc:date>" not in path.read_bytes()
    assert b"TTFT, s" in (tmp_path / "one" / "latency.svg").read_bytes()


def test_what_is_never_done_counts_as_timed_out():
    fleet = read_fleet("1xdemo-small:n_run=1")
    run = run_case(case(workload="poisson:rate=12,duration=60", fleet=fleet, policy="fcfs", admission=read_admission("open")))
    report = document(make_report(run))
    unfinished = report["simulated"]["unfinished"]
    assert unfinished > 0
    assert report["outcomes"]["timed_out"] == unfinished
    assert report["lost"] == 0
    assert report["submitted"] == run.load.count
    assert run.violations == []


@pytest.mark.slow
def test_nothing_served_is_still_a_report(tmp_path):
    run = run_case(case(workload="poisson:rate=1,duration=20,ttft_ms=1", admission=read_admission("shed,late_service_share=1")))
    assert make_report(run).score.good == 0
    charts.latencies(tmp_path / "latency.svg", make_report(run).results)
    charts.timeline(tmp_path / "timeline.svg", make_report(run).results, 20.0)
    assert json.dumps(rounded(document(make_report(run))))


STEPS = ("extract_keywords", "generate_candidate_x", "generate_candidate_x", "revise")


@pytest.fixture
def workflows(tmp_path):
    """A file of text-to-SQL workflows of four calls each."""
    calls = [{"i": i, "step": step, "input_tokens": 400 + 100 * i, "output_tokens": 30 + 10 * i} for i, step in enumerate(STEPS)]
    rows = [json.dumps({"workflow_id": f"w-{i}", "trace": "d", "n_calls": len(calls), "calls": calls}) for i in range(3)]
    (tmp_path / "workflows.jsonl").write_text("\n".join(rows) + "\n")
    return f"text2sql:{tmp_path / 'workflows.jsonl'}?rate=1,duration=30"


def test_sessions_run_call_by_call(workflows):
    run = run_case(case(workload=workflows))
    assert run.violations == []
    report = document(make_report(run))
    assert len(run.records) == run.load.count == 4 * report["sessions"]["ended"]
    assert report["sessions"]["completed"] == report["sessions"]["ended"] > 10
    assert report["sessions"]["duration_s"]["p50"] > 1.0
    assert set(make_report(run).score.per_task) == {run.load.task(0, record.request_id).value for record in run.records}
    dense = run_case(case(workload=workflows, load=4.0, slo=SloTarget(ttft_ms=1.0)))
    assert dense.load.rate_rps == pytest.approx(4 * run.load.rate_rps)
    assert dense.load.own_rps == run.load.own_rps
    assert make_report(dense).score.good == 0
    few = run_case(case(workload=workflows, limit=5))
    assert len(few.records) == 20
    early = run_case(case(workload=workflows, duration_s=10.0))
    assert 0 < len(early.records) < len(run.records)


def test_a_plan_reckons_the_goodput_of_sessions_as_a_simulation_does(workflows):
    slow = case(workload=workflows, load=4.0, fleet=read_fleet("1xdemo-small:n_run=4"), warmup_s=0.0)
    assert probe(slow).goodput_rps == pytest.approx(make_report(run_case(slow)).score.goodput_rps)


def test_sessions_that_are_broken_off_count_with_all_their_calls(workflows):
    def scored(admission):
        run = run_case(case(workload=workflows, load=3.0, fleet=read_fleet("1xdemo-small:n_run=4"), admission=read_admission(admission)))
        assert run.violations == []
        return run, make_report(run)

    run, shed = scored("shed,queue=20")
    assert len(run.records) < run.load.count, "sessions were broken off"
    assert shed.score.submitted == run.load.count
    assert shed.score.goodput_rps <= shed.score.throughput_rps
    assert shed.score.span_s > run.load.duration_s, "calls arrive after the last session has begun"
    unsent = shed.results[len(run.records) :]
    assert {(one.outcome, one.detail) for one in unsent} == {("shed", "never sent: an earlier call of its session was not answered")}
    assert len({one.index for one in shed.results}) == run.load.count
    assert run.sessions is not None
    assert document(shed)["sessions"]["ended"] == len({record.request_id.partition("-")[0] for record in run.records})
    _, kept = scored("open")
    assert sum(one.wanted_tokens for one in kept.results) == sum(one.wanted_tokens for one in shed.results)
    assert {name: one.submitted for name, one in kept.score.per_task.items()} == {
        name: one.submitted for name, one in shed.score.per_task.items()
    }


def test_what_is_wanted_is_told_whether_or_not_it_was_served():
    fleet, workload = read_fleet("1xdemo-small:n_run=4"), "poisson:rate=3,duration=10,prompt=1000,output=1100"
    shed, kept = (make_report(run_case(case(workload=workload, fleet=fleet, admission=read_admission(name)))) for name in ("shed", "open"))
    assert shed.score.outcomes["shed"] > 10
    for report in (shed, kept):
        assert {name: one.submitted for name, one in report.score.per_class.items()} == {"poisson-long": report.run.load.count}
        assert {one.wanted_tokens for one in report.results} == {1100}


def test_sessions_that_are_stopped_leave_no_loose_ends(workflows):
    told: list[Told] = []
    longer = workflows.replace("duration=30", "duration=90")
    run = run_case(case(workload=longer, load=3.0), Watch(tell=told.append, stop=lambda: len(told) == 1))
    assert run.stopped_s is not None
    assert run.violations == []
    assert len(run.records) < run.load.count


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="HMAS_DATA_DIR names no folder of public data")
@pytest.mark.parametrize(
    "workload",
    ["azure:{}/azure_llm_2023_conv.csv.gz?rate=6", "azure:{}/azure_llm_2023_code.csv.gz", "mooncake:{}/mooncake_conversation.jsonl.gz"],
)
def test_real_traces_keep_the_rules(workload):
    run = run_case(case(workload=workload.format(Path(DATA) / "arrivals"), limit=300, fleet=read_fleet("2xa100-qwen3-8b:n_run=32")))
    assert run.violations == []
    assert make_report(run).score.good > 0


def hmas(capsys, *arguments):
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_the_command_writes_what_it_says(capsys, tmp_path):
    command = ("simulate", "--workload", "poisson:rate=4,duration=30", "--fleet", "2xdemo-small", "--out", tmp_path)
    code, out, err = hmas(capsys, *command)
    assert code == 0
    assert "goodput rate" in out
    assert "ended while others arrived  " in out, "no throughput: goodput counts all good ones and may be higher"
    assert "demo-small-2" in out
    assert str(tmp_path / "report.json") in err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["violations"] == []
    assert report["interrupted"] is False
    assert report["submitted"] == report["workload"]["requests"]
    rows = list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))
    assert len(rows) == report["submitted"]
    assert sum(int(row["slo_met"]) for row in rows) == report["good"]
    assert {path.name for path in tmp_path.iterdir()} == {*("report.json", "requests.csv", "latency.svg", "timeline.svg", "instances.svg")}
    code, out, _ = hmas(capsys, *command, "--json", "--no-plots")
    assert json.loads(out) == report


def test_a_rate_is_reached_and_bad_words_are_refused(capsys, tmp_path):
    command = ["simulate", "--workload", "poisson:rate=2,duration=60", "--fleet", "1xdemo-small", "--out", tmp_path, "--no-plots"]
    code, out, _ = hmas(capsys, *command, "--rate", 4, "--json")
    assert code == 0
    assert json.loads(out)["workload"]["rate_rps"] == pytest.approx(4.0, rel=1e-6)
    code, out, _ = hmas(capsys, *command, "--agents", "all", "--meta", "selector=rules", "--meta", "judge=no", "--json")
    assert code == 0
    for more, said in (
        (["--policy", "lifo"], "lifo"),
        (["--agents", "qos+robot"], "robot"),
        (["--model", "Qwen3-8B"], "is for model 'Llama-3.1-8B'"),
        (["--warmup", 1000], "warm-up is 1000 s"),
        (["--slo", "ttft=soon"], "ttft=soon"),
        (["--slo", "ttft=2000,share=0.99"], "'share=0.99'; allowed: ttft=MS and tpot=MS, more than 0"),
        (["--agents", "all", "--meta", "selector=dice"], "selector is 'dice'"),
        (["--agents", "all", "--meta", "magic=1"], "allowed: NAME=VALUE with NAME one of period_s"),
        (["--meta", "selector=rules"], "without meta; allowed: with --agents statera+meta"),
        (["--agents", "all", "--meta", "selector=llm"], "agents.meta_llm_url is empty"),
    ):
        code, _, err = hmas(capsys, *command, *more)
        assert code == 2, more
        assert said in err
    code, _, err = hmas(capsys, "simulate", "--workload", "azure:nowhere.csv", "--fleet", "1xdemo-small", "--out", tmp_path)
    assert code == 2
    assert "nowhere.csv" in err


def test_requests_longer_than_the_context_are_told(capsys, tmp_path):
    rows = "arrival_s,context_tokens,generated_tokens\n0,100,10\n1,20000,10\n2,100,10\n"
    (tmp_path / "long.csv").write_text(rows)
    code, out, err = hmas(
        capsys,
        "simulate",
        "--workload",
        f"azure:{tmp_path / 'long.csv'}",
        "--fleet",
        "1xdemo-small",
        "--out",
        tmp_path,
        "--json",
        "--no-plots",
    )
    assert code == 0
    assert "1 requests are longer than the 16384 tokens" in err
    assert json.loads(out)["outcomes"]["completed"] == 2


def in_a_process(folder, *arguments, **env):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
    command = [sys.executable, "-m", "hmas", "simulate", "--out", str(folder), *arguments]
    return subprocess.Popen(command, cwd=ROOT, env={**clean, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.long
def test_the_same_bytes_whatever_the_hash_seed(tmp_path):
    arguments = ("--workload", "gamma:rate=7,cv=3,duration=20", "--fleet", "2xdemo-small", "--agents", "all", "--seed", "5")
    running = [in_a_process(tmp_path / seed, *arguments, PYTHONHASHSEED=seed) for seed in ("0", "4242")]
    for process in running:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    for name in ("report.json", "requests.csv", "latency.svg", "timeline.svg", "instances.svg"):
        assert len({(tmp_path / seed / name).read_bytes() for seed in ("0", "4242")}) == 1, name


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(tmp_path):
    process = in_a_process(tmp_path, "--workload", "poisson:rate=8,duration=20000", "--fleet", "2xdemo-small:n_run=32", "--no-plots")
    assert process.stderr is not None
    # The first line of progress says that it is under way.
    assert "virtual" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["interrupted"] is True
    assert report["violations"] == []
    assert 0 < report["simulated"]["requests"] < report["workload"]["requests"]
    assert len(list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))) == report["simulated"]["requests"]
