"""`hmas models` on a store in a folder of its own."""

import json
import os
from pathlib import Path

import pytest

from hmas.agents.model_store.card import ModelCard, write_card
from hmas.agents.model_store.store import ModelStore
from hmas.cli.main import main
from hmas.controller.config import cross_checks

NOWHERE = "http://127.0.0.1:9"  # the discard port, where nobody listens


@pytest.fixture(autouse=True)
def _settings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("HMAS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HMAS_ADMIN_URL", NOWHERE)


@pytest.fixture
def trained(tmp_path) -> Path:
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "weights.bin").write_text("w")
    metrics = {"task": {"accuracy": 0.951, "macro_f1": 0.9}, "rows": 100}
    write_card(folder, ModelCard(kind="perception", format="onnx", created_s=1.7e9, command="hmas train", licence="CC0", metrics=metrics))
    return folder


def hmas(capsys, *arguments):
    """Exit code, stdout, stderr."""
    code = main(["models", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_an_empty_store_lists_what_is_shipped(capsys):
    code, out, err = hmas(capsys, "list")
    assert code == 0
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        [kind, "shipped", "in", "force"] for kind in ("perception", "prediction", "meta")
    ]
    assert "no gateway answers" in err


def test_add_use_shadow_and_rollback(capsys, trained, tmp_path):
    for version in ("v1", "v2"):
        assert hmas(capsys, "add", "perception", trained)[1].startswith(f"perception {version} added")
    assert hmas(capsys, "use", "perception", "v1")[1] == "perception: shipped -> v1; `hmas models rollback perception` goes back\n"
    assert hmas(capsys, "shadow", "perception", "v2")[0] == 0
    code, out, _ = hmas(capsys, "list", "perception")
    rows = [line.split("  ") for line in out.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()][1:3] for row in rows[1:]] == [
        ["shipped", "-"],
        ["v1", "in force"],
        ["v2", "in the shadow"],
    ]
    assert "task.accuracy 0.951, task.macro_f1 0.9, rows 100" in out
    document = json.loads(hmas(capsys, "list", "perception", "--json")[1])["perception"]
    assert (document["current"], document["shadow"], document["before"]) == ("v1", "v2", ["shipped"])
    assert hmas(capsys, "shadow", "perception", "--off")[0] == 0
    assert hmas(capsys, "rollback", "perception")[1] == "perception: v1 -> shipped\n"
    code, _, err = hmas(capsys, "rollback", "perception")
    assert code == 1
    assert "in force before" in err
    assert ModelStore(tmp_path / "state" / "models").choice("perception").current == ""


def test_show_says_where_it_came_from_and_whether_it_is_whole(capsys, trained, tmp_path):
    hmas(capsys, "add", "perception", trained)
    code, out, _ = hmas(capsys, "show", "perception", "v1")
    assert code == 0
    assert "all as they were stored" in out
    assert "figure    task.accuracy 0.951" in out
    assert "by        hmas train" in out
    (tmp_path / "state" / "models" / "perception" / "v1" / "weights.bin").write_text("other")
    code, out, _ = hmas(capsys, "show", "perception", "v1")
    assert "BROKEN" in out
    assert "weights.bin" in json.loads(hmas(capsys, "show", "perception", "v1", "--json")[1])["broken"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["use", "perception", "v7"], 1, "there are: shipped"),
        (["show", "prediction", "v1"], 1, "there are: shipped"),
        (["use", "taste", "v1"], 2, "'perception', 'prediction'"),
        (["shadow", "perception"], 2, "name a version, or give --off"),
        (["shadow", "perception", "v1", "--off"], 2, "name a version, or give --off"),
        (["shadow", "meta", "v1"], 2, "'meta' is not one of 'perception', 'prediction'"),
        (["add", "perception", "/dev"], 1, "card.json"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(capsys, arguments, code, said):
    found, _, err = hmas(capsys, *arguments)
    assert found == code
    assert said in err


def test_a_choice_that_the_configuration_overrules_is_pointed_out(capsys, trained, monkeypatch):
    hmas(capsys, "add", "perception", trained)
    monkeypatch.setenv("HMAS_AGENTS__PERCEPTION_READER", "rules")
    for command in (["shadow", "perception", "v1"], ["use", "perception", "v1"], ["rollback", "perception"]):
        code, _, err = hmas(capsys, *command)
        assert code == 0
        assert "agents.perception_reader is 'rules'" in err
    monkeypatch.setenv("HMAS_AGENTS__PREDICTION_MODEL", "/")
    assert "agents.prediction_model is '/', which stands above the store" in hmas(capsys, "use", "prediction", "shipped")[2]
    monkeypatch.setenv("HMAS_AGENTS__PERCEPTION_READER", "")
    code, _, err = hmas(capsys, "use", "perception", "v1")
    assert code == 0, "a mistake in the configuration keeps nobody from changing the model"
    assert "whether the choice counts is not known" in err


@pytest.mark.parametrize("kind", ["perception", "prediction"])
def test_what_is_shipped_has_a_card_and_is_in_force_already(capsys, kind):
    code, out, _ = hmas(capsys, "show", kind, "shipped")
    assert code == 0
    assert "all as they were stored" in out
    assert hmas(capsys, "use", kind, "shipped")[1] == f"{kind}: shipped is in force already\n"
    code, _, err = hmas(capsys, "shadow", kind, "shipped")
    assert code == 1
    assert f"{kind} model 'shipped' is not in " in err
    assert "there are: none yet" in err


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "agents.meta_selector is 'twin'"),
        ({"HMAS_AGENTS__META_SELECTOR": "classifier"}, "meta takes it at its next start"),
        ({"HMAS_AGENTS__META_SELECTOR": "classifier", "HMAS_AGENTS__META_MODEL": "/"}, "agents.meta_model is '/'"),
    ],
)
def test_when_meta_takes_a_classifier_is_told(capsys, monkeypatch, env, said):
    # As where h-mas-lab is installed.
    monkeypatch.setattr(cross_checks, "declared", lambda _group: ("classifier",))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    code, _, err = hmas(capsys, "use", "meta", "shipped")
    assert code == 0
    assert said in err


@pytest.mark.parametrize("name", ["list", "show", "add", "use", "rollback", "shadow"])
def test_every_command_has_help_with_an_example(capsys, name):
    code, out, _ = hmas(capsys, name, "--help")
    assert code == 0
    assert f"hmas models {name}" in out
