"""`hmas eval lengths` and `hmas train lengths` on small files."""

import csv
import json
import os
from pathlib import Path

import pytest

from hmas.agents.model_store.card import verified
from hmas.agents.perception.lengths.base import load
from hmas.cli.main import main


@pytest.fixture(autouse=True)
def _settings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("HMAS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def files(tmp_path):
    """Twelve prompts answered by thirty models: lengths by prompt and by model."""
    lengths, prompts = tmp_path / "lengths.csv", tmp_path / "prompts.jsonl"
    with lengths.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["dataset", "prompt_id", "model", "output_chars", "output_tokens"])
        out.writerows(["set:a", f"p{one}", f"m{other}", 0, 10 + 40 * one + 3 * other] for one in range(12) for other in range(30))
    prompts.write_text(
        "".join(
            json.dumps({"dataset": "set:a", "prompt_id": f"p{one}", "prompt": f"Tell me {one} facts about the sea."}) + "\n"
            for one in range(12)
        )
    )
    return str(lengths), str(prompts)


def test_eval_lengths_judges_files_that_it_has_not_seen(capsys, files):
    lengths, prompts = files
    arguments = ["eval", "lengths", "--data", lengths, "--data", prompts, "--reader", "rules", "--regime", "as it comes"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 360
    contenders = found["regimes"]["as it comes"]
    assert contenders["length model"]["overall"]["kendall_tau"] > contenders["rules and statistics"]["overall"]["kendall_tau"]
    assert main([*arguments, "--ours-only", "--rows", "200"]) == 0
    out = capsys.readouterr().out
    assert "as it comes: 200 answers" in out
    assert "rules and statistics" not in out
    assert "12.4%" in out


def test_eval_lengths_lets_text_baselines_begin_with_what_the_net_was_trained_on(capsys, files):
    lengths, prompts = files
    arguments = ["eval", "lengths", "--data", lengths, "--data", prompts, "--reader", "rules", "--regime", "cold", "--json"]
    assert main([*arguments, "--trained", prompts, "--trained", lengths]) == 0
    found = json.loads(capsys.readouterr().out)
    contenders = {name: entry["overall"]["kendall_tau"] for name, entry in found["regimes"]["cold"].items()}
    assert found["trained_rows"] == 360
    assert contenders["TF-IDF, ridge and model's mean, trained before"] > 0.1
    assert contenders["TF-IDF, ridge and model's mean"] == 0.0
    assert main([*arguments, "--trained", prompts]) != 0
    assert "0 files of lengths, 1 of prompts, 0 others; allowed" in capsys.readouterr().err


def test_eval_lengths_judges_every_shape_beside_the_bare_prompt_on_prompts_held_out(capsys, tmp_path):
    """Forty prompts answered by ten models: enough to train on three quarters and to judge the rest."""
    lengths, prompts = str(tmp_path / "lengths.csv"), str(tmp_path / "prompts.jsonl")
    with Path(lengths).open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["dataset", "prompt_id", "model", "output_chars", "output_tokens"])
        out.writerows(["set:a", f"p{one}", f"m{other}", 0, 10 + 9 * one + 3 * other] for one in range(40) for other in range(10))
    lines = [json.dumps({"dataset": "set:a", "prompt_id": f"p{one}", "prompt": f"Tell me {one} facts."}) for one in range(40)]
    Path(prompts).write_text("\n".join(lines))
    arguments = ["eval", "lengths", "--data", lengths, "--data", prompts, "--reader", "rules", "--regime", "by shape"]
    assert main([*arguments, "--trained", lengths, "--trained", prompts, "--held-out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["regimes"] == {}
    assert found["held_out"]
    shapes = found["by_shape"]["0"]
    assert set(shapes) == {"completion", "chat", "system", "long-system", "history-1", "history-4", "tools"}
    for error, pinball in found["beside_bare"]["0"].values():
        assert error < 1.2
        assert pinball < 1.2
    assert main(arguments) == 0
    assert "long-system" in capsys.readouterr().out


def test_eval_lengths_says_what_is_missing(capsys, files):
    lengths, prompts = files
    assert main(["eval", "lengths", "--data", lengths]) != 0
    assert "lengths without prompts" in capsys.readouterr().err
    assert main(["eval", "lengths", "--data", lengths, "--data", prompts, "--regime", "warm"]) != 0
    assert "as it comes" in capsys.readouterr().err


def test_train_lengths_writes_a_model_with_its_card_and_the_ranges_of_its_inputs(capsys, files, tmp_path):
    lengths, prompts = files
    code = main(["train", "lengths", "--lengths", lengths, "--prompts", prompts, "--trees", "5", "--out", str(tmp_path / "net")])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "answers" in out
    card = verified(tmp_path / "net")
    assert card.format == "lengths"
    assert "word_score" in card.details["ranges"]
    assert load(tmp_path / "net").longest > 400
