"""`hmas eval prediction` and `hmas train prediction`, as an operator calls them."""

import json
import math

import numpy as np
import pytest
from message_kit import completed, instance_view, request_features, system_snapshot

from hmas.agents.model_store.store import ModelStore
from hmas.agents.prediction.regressor import KIND, SHIPPED, load_regressor
from hmas.agents.prediction.telemetry import labelled_of, read_messages, write_messages
from hmas.cli.main import main

HEAD = "model,gpu_type,n_gpus,num_users,start_offset_ms,n_input_tokens,n_output_tokens,open_ms,ttft_ms,itl_mean_ms,latency_ms"


@pytest.fixture
def logs(tmp_path):
    rng = np.random.default_rng(4)
    lines = [HEAD]
    for users in (2, 8, 64):
        for number in range(60):
            output = int(rng.integers(1, 40))
            itl_ms = (13.0 + 0.9 * users) * rng.lognormal(0, 0.05)
            ttft_ms = (25.0 + 11.0 * users) * rng.lognormal(0, 0.1)
            itl = f"{itl_ms:.1f}" if output > 1 else ""
            latency_ms = 10 + ttft_ms + (output - 1) * itl_ms
            lines.append(
                f"llama-7b,A100,1,{users},{number * 2000},{int(rng.integers(5, 500))},{output},10,{ttft_ms:.1f},{itl},{latency_ms:.1f}"
            )
    path = tmp_path / "unseen.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_unseen_logs_are_scored_by_the_shipped_model(logs, capsys):
    assert main(["eval", "prediction", "--data", str(logs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 180
    for way in ("telemetry", "static"):
        assert set(found[way]) == set(found["goals"])
        assert found[way]["throughput_tokens_per_s"]["r2"] > 0.8
        assert math.isfinite(found[way]["prefill_ms"]["r2_cells"])
    assert set(found["by_load"]) == {"2", "8", "64"}
    assert main(["eval", "prediction", "--data", str(logs)]) == 0
    out = capsys.readouterr().out
    assert "180 requests in 3 cells: 1 that were fitted to, 2 at other loads of configurations that were" in out
    assert "With telemetry" in out
    assert "0.9576" in out
    for word in ("requests", "cells", "met", "an oracle that knows the mean of the very cell"):
        assert word in out


def test_what_cannot_be_scored_is_named(logs, tmp_path, capsys):
    logs.write_text(logs.read_text().replace("A100", "Abacus"))
    assert main(["eval", "prediction", "--data", str(logs)]) == 1
    assert "gpu 'Abacus' is not known; allowed: T4" in capsys.readouterr().err
    other = tmp_path / "other.csv"
    other.write_text("a,b\n")
    assert main(["eval", "prediction", "--data", str(other)]) == 1
    assert "no column 'model'" in capsys.readouterr().err
    assert main(["eval", "prediction", "--split", "gpu", "--data", str(logs)]) == 2


@pytest.mark.slow
def test_what_is_learnt_from_the_files_is_judged_on_what_was_held_out(logs, capsys):
    assert main(["eval", "prediction", "--fit", "--split", "rows", "--split", "load", "--data", str(logs)]) == 0
    out = capsys.readouterr().out
    for words in ("180 requests in 3 cells", "Held out: rows", "Held out: each load between", "engine means", "load between", "oracle"):
        assert words in out
    assert "Held out: each type of GPU" not in out


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_a_handful_of_rows_says_what_it_can(logs, lines, capsys):
    logs.write_text("\n".join(logs.read_text().splitlines()[: 1 + lines]) + "\n")
    assert main(["eval", "prediction", "--data", str(logs)]) == 0
    assert f"{lines} requests in 1 cells" in capsys.readouterr().out
    assert main(["eval", "prediction", "--data", str(logs), "--json"]) == 0
    assert "NaN" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("ttft_ms", "nan", "ttft_ms is 'nan'; allowed: numbers from 0.001"),
        ("latency_ms", "", "latency_ms is ''; allowed: numbers from 0.001"),
        ("num_users", "many", "num_users is 'many'; allowed: numbers from 1"),
        ("n_gpus", "-1", "n_gpus is '-1'; allowed: numbers from 1"),
        ("n_output_tokens", "0", "n_output_tokens is '0'; allowed: numbers from 1"),
        ("model", "", "model is ''; allowed: 1 to 200 characters"),
        ("model", "gpt-77", "model 'gpt-77' is not known; allowed: llama-7b"),
    ],
)
def test_an_odd_value_is_named_with_its_line_and_what_is_allowed(logs, field, value, said, capsys):
    head, *rows = (line.split(",") for line in logs.read_text().splitlines())
    rows[4][head.index(field)] = value
    logs.write_text("\n".join(",".join(row) for row in [head, *rows]) + "\n")
    assert main(["eval", "prediction", "--data", str(logs)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "line 6" in error or field == "model"


def test_what_a_request_of_one_token_cannot_have_is_not_asked_of_it(logs, capsys):
    lines = logs.read_text().splitlines()
    column = HEAD.split(",").index("itl_mean_ms")
    rows = [line.split(",") for line in lines[1:]]
    for row in rows[:20]:
        row[column] = "nan"
    logs.write_text("\n".join([lines[0], *(",".join(row) for row in rows)]) + "\n")
    assert main(["eval", "prediction", "--data", str(logs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["telemetry"]
    assert found["decode_ms_per_token"]["requests"] <= 160 < found["prefill_ms"]["requests"]


def recorded(path, count: int = 500) -> None:
    """An engine whose first tokens take three times what a long prompt should, as the bus would have told it."""
    rng = np.random.default_rng(5)
    messages = []
    for number in range(count):
        at_s = 1000.0 + 0.5 * number
        prompt = int(rng.integers(50, 2000))
        asked = request_features(str(number), sent_s=at_s + 0.01, prompt_tokens=prompt, output_tokens=50.0, output_tokens_p90=90.0)
        ttft_ms = (40.0 + 0.15 * prompt) * (3.0 if prompt > 700 else 1.0)
        ended = completed(
            str(number),
            sent_s=at_s + 0.02,
            arrival_s=at_s,
            instance="a",
            prompt_tokens=prompt,
            output_tokens=50,
            ttft_ms=ttft_ms,
            service_ttft_ms=ttft_ms,
            tpot_ms=26.0,
            total_ms=ttft_ms + 49 * 26.0,
            running=2,
        )
        messages += [system_snapshot(instance_view(), sent_s=at_s), asked, ended]
    write_messages(path, messages)


@pytest.mark.slow
def test_recorded_telemetry_becomes_a_version_that_can_be_rolled_back(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path / "state"))
    tape = tmp_path / "week.jsonl"
    recorded(tape)
    assert main(["train", "prediction", "--data", str(tape), "--use", "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["metrics"]["pinball_after"] < 0.8 * card["metrics"]["pinball_before"]
    store = ModelStore(tmp_path / "state" / "models")
    assert store.choice(KIND).current == "v1"
    folder = store.current(KIND)
    assert folder is not None
    assert load_regressor(folder).card.details["refits"] == 1
    assert store.rollback(KIND) == "shipped"


def test_too_little_or_broken_telemetry_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path / "state"))
    tape = tmp_path / "day.jsonl"
    recorded(tape, 20)
    assert len(labelled_of(read_messages([tape]), None)) == 20
    assert main(["train", "prediction", "--data", str(tape)]) == 1
    assert "20 requests that have features and outcome; allowed: 300 and more" in capsys.readouterr().err
    tape.write_bytes(tape.read_bytes() + b"nonsense\n")
    assert main(["train", "prediction", "--data", str(tape)]) == 1
    assert "line 61" in capsys.readouterr().err
    assert not (tmp_path / "state" / "models" / "prediction" / "v1").exists()


@pytest.mark.slow
def test_a_model_from_nothing_is_written_where_it_is_asked_for(tmp_path, capsys):
    out = tmp_path / "made"
    assert main(["train", "prediction", "--episodes", "10", "--held-out", "2", "--out", str(out), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["command"] == "hmas train prediction --episodes 10 --held-out 2 --seed 1"
    assert load_regressor(out).card.metrics["samples"] > 100
    assert out != SHIPPED


@pytest.mark.slow
def test_logs_of_own_hardware_make_a_profile_model(logs, tmp_path, capsys):
    out = tmp_path / "mine"
    assert main(["train", "prediction", "--data", str(logs), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["eval", "prediction", "--data", str(logs), "--model", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["telemetry"]["prefill_ms"]["r2"] > 0.9
    assert main(["train", "prediction", "--data", str(logs)]) == 2
