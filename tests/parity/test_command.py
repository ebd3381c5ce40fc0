"""`hmas-lab parity`, and that both worlds are the same in every process."""

import json
import os
import subprocess
import sys

import pytest
from hmas_lab.cli import main
from hmas_lab.parity import cli
from hmas_lab.parity.log import Decision

DIGEST = """
import hashlib, msgspec
from hmas_lab.parity.live import run_live
from hmas_lab.parity.scenario import Scenario
from hmas_lab.parity.simulated import run_simulated
scenario = Scenario(policy="wfq", then="edf", requests=150, seed=5)
for run in (run_simulated, run_live):
    print(hashlib.sha256(msgspec.json.encode(run(scenario))).hexdigest())
"""


@pytest.mark.slow
def test_the_command_compares_and_tells(capsys):
    arguments = ["parity", "--policy", "sjf", "--requests", "20"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.out.count("equal") == 3
    assert "entries" in shown.err
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["overdue"], row["equal"]) for row in found] == [
        ("sjf", "demote", True),
        ("sjf", "shed", True),
        ("sjf", "keep", True),
    ]
    assert all(row["entries"] >= 40 for row in found)


def test_a_difference_is_shown_and_fails_the_command(capsys, monkeypatch):
    def another(scenario: object) -> list[Decision]:
        return [Decision(at_us=1, kind="dispatched", request="7", instance="fast", policy="sjf", queued=0)]

    monkeypatch.setattr(cli, "run_live", another)
    assert main(["parity", "--policy", "sjf", "--requests", "5"]) == 1
    shown = capsys.readouterr()
    assert "differ from 0" in shown.out
    assert "live Decision(at_us=1" in shown.err


@pytest.mark.slow
def test_another_process_with_another_hash_seed_decides_alike():
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST], check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1
    simulated, live = digests.pop().split()
    assert simulated == live
