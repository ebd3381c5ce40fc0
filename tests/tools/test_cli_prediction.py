"""`hmas eval prediction` and `hmas train prediction`, as an operator calls them."""

import json

import numpy as np
import pytest
from message_kit import completed, instance_view, request_features, system_snapshot

from hmas.agents.model_store.store import ModelStore
from hmas.agents.prediction.regressor import KIND, load_regressor
from hmas.agents.prediction.telemetry import labelled_of, read_messages, write_messages
from hmas.agents.prediction.training import REFIT_LEAST
from hmas.cli import train
from hmas.cli.main import main


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
    assert card["metrics"]["error_after"] < 0.8 * card["metrics"]["error_before"]
    store = ModelStore(tmp_path / "state" / "models")
    assert store.choice(KIND).current == "v1"
    folder = store.current(KIND)
    assert folder is not None
    assert load_regressor(folder).card.details["refits"] == 1
    assert store.rollback(KIND) == "shipped"


def test_a_refit_that_does_no_better_is_not_stored_and_the_choice_stays(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(train, "labelled_of", lambda *_: [None] * REFIT_LEAST)
    monkeypatch.setattr(train, "refit", lambda before, *_: (before, {"old": 0.2, "new": 0.2}))
    tape = tmp_path / "week.jsonl"
    recorded(tape, 2)
    assert main(["train", "prediction", "--data", str(tape), "--use"]) == 0
    assert "not stored: it does no better" in capsys.readouterr().err
    store = ModelStore(tmp_path / "state" / "models")
    assert (store.choice(KIND).current, store.current(KIND)) == ("", None)
    assert not (tmp_path / "state" / "models" / "prediction" / "v1").exists()
    assert main(["train", "prediction", "--data", str(tape), "--out", str(tmp_path / "out")]) == 0
    assert load_regressor(tmp_path / "out").card.kind == KIND


def test_too_little_or_broken_telemetry_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path / "state"))
    tape = tmp_path / "day.jsonl"
    recorded(tape, 20)
    assert len(labelled_of(read_messages([tape]), None)) == 20
    assert main(["train", "prediction", "--data", str(tape)]) == 2
    assert "20 requests that have features and outcome; allowed: 300 and more" in capsys.readouterr().err
    tape.write_bytes(tape.read_bytes() + b"nonsense\n")
    assert main(["train", "prediction", "--data", str(tape)]) == 2
    assert "line 61" in capsys.readouterr().err
    assert not (tmp_path / "state" / "models" / "prediction" / "v1").exists()


def test_recorded_telemetry_judges_the_model_beside_the_formula(tmp_path, capsys):
    tape = tmp_path / "week.jsonl"
    recorded(tape, 200)
    assert main(["eval", "prediction", "--data", str(tape), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "shipped"
    assert set(found["figures"]) == {"model", "formula"}
    for quantities in found["figures"].values():
        assert set(quantities) == {"ttft_ms", "tpot_ms", "total_ms"}
        assert all(entry["n"] == 200 for entry in quantities.values())
        assert quantities["tpot_ms"]["median_error"] < 0.3
        assert quantities["total_ms"]["median_error"] < 0.3
    assert main(["eval", "prediction", "--data", str(tape)]) == 0
    out = capsys.readouterr().out
    assert "median_error" in out
    assert "formula" in out
    tape.write_bytes(b"nonsense\n")
    assert main(["eval", "prediction", "--data", str(tape)]) == 2
    assert "line 1" in capsys.readouterr().err


def test_the_bus_of_hmas_up_is_asked_where_none_is_configured(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(train, "CONNECT_WAIT_S", 0.1)
    assert main(["train", "prediction", "--from-bus"]) == 2
    assert f"the bus at unix://{tmp_path}/bus/r.sock: " in capsys.readouterr().err


def test_telemetry_comes_from_one_place(tmp_path, capsys):
    assert main(["train", "prediction"]) == 2
    assert "either --data or --from-bus" in capsys.readouterr().err
    tape = tmp_path / "week.jsonl"
    recorded(tape, 2)
    assert main(["train", "prediction", "--data", str(tape), "--from-bus"]) == 2
    assert main(["train", "prediction", "--data", str(tape), "--record", str(tmp_path / "x")]) == 2
    assert main(["train", "prediction", "--data", str(tape), "--use", "--out", str(tmp_path / "out")]) == 2
