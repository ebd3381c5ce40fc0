"""The comparison of the preset with the default: its parts are the whole difference, and a short one runs from end to end."""

import json

import msgspec
import pytest
from hmas_lab.cli import main
from hmas_lab.paper.preset import NOT_SIMULATED, OURS, PAPER, PARTS, WORKLOADS, case_of, configurations
from hmas_lab.paper.preset_cli import markdown, tables

from hmas.controller.config.loader import load_config
from hmas.planning.case import Case
from hmas.planning.fleet import read_fleet
from hmas.planning.steering import AgentSteering


def test_the_parts_are_the_whole_difference():
    ours, paper = (msgspec.to_builtins(load_config(None, {"HMAS_PRESET": name})) for name in (OURS, PAPER))
    changed = {
        f"{section}.{name}"
        for section in ("scheduler", "slo", "agents")
        for name in ours[section]
        if ours[section][name] != paper[section][name]
    }
    known = {path for paths in PARTS.values() for path in paths}
    assert changed <= known | set(NOT_SIMULATED)


def test_each_arm_differs_from_its_end_in_its_part_alone():
    arms = configurations()
    assert len(arms) == 2 + 2 * len(PARTS)
    guarded, bare = arms["paper, TPOT guard of ours"], arms["default, TPOT guard of the paper"]
    assert (guarded.scheduler.tpot_guard, guarded.scheduler.policy, guarded.agents.statera_law) == (0.7, "sjf", "paper")
    assert (bare.scheduler.tpot_guard, bare.scheduler.policy, bare.agents.statera_law) == (0.0, "robust-edf", "goodput")


def test_a_case_keeps_the_papers_laws_on_its_way_to_another_process():
    case = case_of(configurations()[PAPER], workload=WORKLOADS["burst"], fleet=read_fleet("1xdemo-small"), warmup_s=1.0, seed=1)
    steering = AgentSteering(msgspec.json.decode(msgspec.json.encode(case), type=Case))
    assert type(steering.statera.model).__name__ == "PaperStatera" if steering.statera else False
    assert steering.meta is not None
    assert steering.meta.twin is None
    assert steering.meta.model.current.parameters == {"aging_ms_per_s": 0.0}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_comparison_writes_its_tables(tmp_path):
    options = ["--workloads", "burst", "--seeds", "1", "--span", "30", "--out", str(tmp_path)]
    assert main(["paper-preset", *options]) == 0
    document = json.loads((tmp_path / "paper-preset.json").read_text())
    assert set(document["summary"]["burst"]) == set(configurations())
    (_, _, ends), (_, _, parts) = tables(document)
    assert [row[1] for row in ends] == [OURS, PAPER]
    assert [row[0] for row in parts] == list(PARTS)
    page = tmp_path / "page.md"
    page.write_text("<!-- paper-preset:begin -->\n<!-- paper-preset:end -->\n")
    assert main(["paper-preset", "--out", str(tmp_path), "--page", str(page)]) == 0
    assert markdown(document) in page.read_text()
