"""`hmas eval lengths` and `hmas train lengths` on small files."""

import json
import os

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
def answers(tmp_path):
    """Twelve prompts answered by thirty models: lengths by prompt and by model."""
    path = tmp_path / "answers.jsonl"
    rows = [
        {"prompt": f"Tell me {one} facts about the sea.", "model": f"m{other}", "output_tokens": 10 + 40 * one + 3 * other, "source": "set"}
        for one in range(12)
        for other in range(30)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_eval_lengths_judges_files_that_it_has_not_seen(capsys, answers):
    arguments = ["eval", "lengths", "--data", answers, "--reader", "rules"]
    assert main([*arguments, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]["output length"]
    assert figures["cold"]["rows"] == figures["as it comes"]["rows"] == 360
    assert figures["as it comes"]["kendall_tau"] > figures["cold"]["kendall_tau"]
    assert 0.0 <= figures["cold"]["90%"] <= 1.0
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "model: rules" in out
    assert "as it comes" in out


def test_eval_lengths_says_what_is_missing(capsys, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"prompt": "x"}')
    assert main(["eval", "lengths", "--data", str(path)]) == 1
    assert "no answer of a model" in capsys.readouterr().err
    assert main(["eval", "lengths"]) == 2


def test_train_lengths_says_what_a_widening_of_0_does(capsys):
    assert main(["train", "lengths", "--help"]) == 0
    assert "0, the default, measures it" in " ".join(capsys.readouterr().out.split())


def test_train_lengths_writes_a_model_with_its_card_and_the_ranges_of_its_inputs(capsys, answers, tmp_path):
    code = main(["train", "lengths", "--data", answers, "--trees", "5", "--out", str(tmp_path / "net")])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "answers" in out
    card = verified(tmp_path / "net")
    assert card.format == "lengths"
    assert card.command == "hmas train lengths --data answers.jsonl --trees 5 --seed 7"
    assert card.details["trained_on"] == {"set": 360}
    assert "word_score" in card.details["ranges"]
    assert load(tmp_path / "net").longest > 400
    assert main(["eval", "lengths", "--data", answers, "--reader", "rules", "--net", str(tmp_path / "net")]) == 0
    assert f"model: {tmp_path / 'net'}" in capsys.readouterr().out
    assert main(["train", "lengths", "--data", answers, "--trees", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "v1"
