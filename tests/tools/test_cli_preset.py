"""The command line's view of presets: what `hmas up` starts with, and what `hmas config show` prints as in force."""

import json

import pytest
import yaml

from hmas.cli.main import main
from hmas.cli.stack import Choices, plan
from hmas.controller.config.loader import load_config


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.delenv("HMAS_CONFIG", raising=False)
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path))


def test_up_gives_the_preset_to_every_process():
    stack = plan(Choices(preset="paper", port=0, admin_port=0))
    assert stack.config.preset == "paper"
    assert stack.config.agents.statera_law == "paper"
    assert all(spec.env["HMAS_PRESET"] == "paper" for spec in stack.control_specs("unix:///tmp/none"))


def test_up_without_the_option_keeps_the_configured_preset(tmp_path):
    file = tmp_path / "hmas.yaml"
    file.write_text("preset: paper\n")
    assert plan(Choices(config_file=str(file), port=0, admin_port=0)).config.preset == "paper"
    assert plan(Choices(config_file=str(file), port=0, admin_port=0, preset="default")).config.scheduler.policy == "robust-edf"


def test_config_show_prints_what_is_in_force(tmp_path, capsys):
    file = tmp_path / "hmas.yaml"
    file.write_text("preset: paper\nscheduler: {overdue: shed}\nbus: {url: 'redis://user:secret@h:1'}\n")
    assert main(["config", "show", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    found = yaml.safe_load(text)
    assert (found["preset"], found["scheduler"]["policy"], found["scheduler"]["overdue"]) == ("paper", "sjf", "shed")
    assert "secret" not in text
    assert main(["config", "show", "--config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    file.write_text(text.replace("***", "secret"))
    assert load_config(str(file), {}).scheduler == load_config(None, {"HMAS_PRESET": "paper", "HMAS_SCHEDULER__OVERDUE": "shed"}).scheduler
