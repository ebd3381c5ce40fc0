"""`hmas train perception` and `hmas eval perception`: what they take, say and refuse; training itself where torch is."""

import gzip
import importlib.util
import json

import pytest
from hmas_lab.training.generator import generate
from hmas_lab.training.typed import write_rows

from hmas.agents.perception.onnx_reader import open_reader
from hmas.agents.perception.training.data import GENERATED
from hmas.cli.main import main

TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("onnx") is not None


def write(path, rows):
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    rows = [
        {"prompt": row.prompt, "task_type": row.task.value, "source": f"source {number % 3}", "license": "MIT"}
        for number, row in enumerate(generate(420, 99))
    ]
    return write(tmp_path_factory.mktemp("data") / "typed.jsonl.gz", rows)


def run(capsys, *words):
    code = main(list(map(str, words)))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_shipped_model_is_judged_on_an_unseen_file(capsys, typed):
    code, out, _ = run(capsys, "eval", "perception", "--data", typed, "--json")
    assert code == 0
    document = json.loads(out)
    found = document["figures"]
    whole = found["task type"]["all"]
    assert document["model"].startswith("tagger")
    assert whole["n"] > 400
    assert whole["accuracy"] > 0.9
    assert set(found["source"]) == {"source 0", "source 1", "source 2"}
    assert sum(entry["n"] for entry in found["class"].values()) == whole["n"]
    code, out, _ = run(capsys, "eval", "perception", "--data", typed, "--model", "rules", "--json")
    assert json.loads(out)["figures"]["task type"]["all"]["accuracy"] < whole["accuracy"]


def test_several_files_either_way_and_words_for_people(capsys, typed):
    one, _, _ = run(capsys, "eval", "perception", "--data", typed, typed, "--held-out")
    two, out, _ = run(capsys, "eval", "perception", "--data", typed, "--data", typed, "--features-only")
    assert (one, two) == (0, 0)
    for heading in ("model: ", "\ntask type", "\nclass", "\nsource", "\nconfidence", "\ntaken for"):
        assert heading in out


def test_generated_prompts_are_not_held_out_since_training_takes_them_all(capsys, typed, tmp_path):
    made = tmp_path / "generated.jsonl.gz"
    write_rows(generate(60, 7), made)
    code, out, _ = run(capsys, "eval", "perception", "--data", typed, made, "--held-out", "--model", "rules", "--json")
    assert code == 0
    assert set(json.loads(out)["figures"]["source"]) == {"source 0", "source 1", "source 2"}
    _, out, _ = run(capsys, "eval", "perception", "--data", typed, made, "--model", "rules", "--json")
    assert GENERATED in json.loads(out)["figures"]["source"]


def test_unusable_files_are_named(capsys, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x", "task_type": "Poetry"}\n')
    code, _, err = run(capsys, "eval", "perception", "--data", bad)
    assert code == 1
    assert "task_type: 'Poetry' must be one of QA, Dialogue" in err
    code, _, err = run(capsys, "eval", "perception", "--data", bad, "--model", tmp_path / "nowhere")
    assert code == 1
    assert "nowhere" in err


@pytest.mark.skipif(TORCH, reason="torch is installed here")
def test_without_torch_training_says_how_to_get_it(capsys, typed, tmp_path):
    code, _, err = run(capsys, "train", "perception", "--data", typed, "--out", tmp_path / "m")
    assert code == 1
    assert "make setup-train" in err
    assert not (tmp_path / "m").exists()


def test_options_of_a_base_need_one(capsys, typed, tmp_path):
    code, _, err = run(capsys, "train", "perception", "--data", typed, "--rank", "8", "--out", tmp_path / "m")
    assert code == 2
    assert "--rank goes with --base" in err


@pytest.mark.train
@pytest.mark.skipif(not TORCH, reason="needs torch: make setup-train")
def test_a_model_is_trained_from_scratch_and_reads(capsys, typed, tmp_path):
    out = tmp_path / "model"
    own = tmp_path / "own.jsonl.gz"
    write_rows(generate(800, 1), own)
    code, said, err = run(capsys, "train", "perception", "--data", typed, own, "--out", out, "--epochs", "1")
    assert code == 0, err
    assert "pass 1/1" in err
    assert "accuracy" in said
    reader = open_reader(out)
    assert reader.card.command.endswith("--epochs 1")
    assert reader.card.data_sha256.keys() == {"typed.jsonl.gz", "own.jsonl.gz"}
    code, told, _ = run(capsys, "eval", "perception", "--data", typed, "--model", out, "--json")
    assert code == 0
    assert json.loads(told)["figures"]["task type"]["all"]["n"] > 400
