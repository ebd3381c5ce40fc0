"""A result that cannot be written is found before the work starts, and what is printed does not depend on it."""

import json
from pathlib import Path

import pytest

from hmas.cli import simulate as module
from hmas.cli.main import main
from hmas.cli.output import check_writable
from hmas.controller.core.errors import ConfigError

WORKLOAD = ("--workload", "poisson:rate=2,duration=10", "--fleet", "1xdemo-small")


@pytest.fixture
def below_a_file(tmp_path: Path) -> str:
    (tmp_path / "file").write_text("")
    return str(tmp_path / "file" / "below" / "x.json")


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", *WORKLOAD],
        ["sweep", *WORKLOAD],
        ["plan", "--trace", "poisson:rate=2,duration=10", "--slo", "ttft=2000", "--fleet", "1xdemo-small"],
        ["replay", "--trace", "none.csv"],
        ["tune", "statera", "demo-small"],
        ["demo"],
        ["train", "lengths", "--data", __file__],
        ["train", "perception", "--data", __file__, "--base", "."],
        ["train", "prediction", "--data", __file__],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_it_is_found_before_the_work(capsys, below_a_file, command):
    assert main([*command, "--out", below_a_file]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--out is '" in err
    assert "which cannot be written: Not a directory; allowed: a place where this user may write" in err


def test_a_simulation_is_printed_before_it_is_written(capsys, monkeypatch, tmp_path):
    def full(*_args, **_kwargs):
        raise ConfigError("the disk is full")

    monkeypatch.setattr(module, "write_run", full)
    assert main(["simulate", *WORKLOAD, "--out", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["submitted"] > 0


def test_looking_leaves_nothing_behind_and_cuts_nothing(tmp_path):
    check_writable(tmp_path / "new" / "file.json")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "old.json").write_text("kept")
    check_writable(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "kept"
