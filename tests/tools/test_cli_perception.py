"""`hmas train perception` and `hmas eval perception`: what they take, say and refuse; training itself where torch is."""

import gzip
import importlib.util
import json

import pytest

from hmas.agents.perception.onnx_reader import open_reader
from hmas.agents.perception.training.generator import generate
from hmas.cli.main import main
from hmas.controller.core.client_bodies import Shape

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
    found = json.loads(out)["task"]
    assert found["n"] > 400
    assert found["accuracy"] > 0.9
    assert set(found["sources"]) == {"source 0", "source 1", "source 2"}
    assert {"accuracy", "macro_f1", "ece", "classes", "confusion", "reliability"} <= set(found)
    assert list(found["shapes"]) == list(Shape)
    assert all(entry["n"] == found["n"] and entry["accuracy"] > 0.85 for entry in found["shapes"].values())
    assert sum(sum(row.values()) for row in found["confusion"].values()) == found["n"]
    code, rules, _ = run(capsys, "eval", "perception", "--data", typed, "--model", "rules", "--json")
    assert json.loads(rules)["task"]["accuracy"] < found["accuracy"]


def test_several_files_either_way_and_words_for_people(capsys, typed):
    one, _, _ = run(capsys, "eval", "perception", "--data", typed, typed)
    two, out, _ = run(capsys, "eval", "perception", "--data", typed, "--data", typed, "--features-only")
    assert (one, two) == (0, 0)
    assert out.startswith("task type: accuracy ")
    for heading in ("source", "confidence", "taken for"):
        assert f"\n{heading}" in out


def test_lengths_are_judged_too(capsys, tmp_path):
    prompts = write(tmp_path / "p.jsonl.gz", [{"dataset": "d", "prompt_id": f"{n}", "prompt": f"Explain number {n}."} for n in range(40)])
    table = tmp_path / "l.csv.gz"
    lines = [f"d,{n},model-{m},{40 + 9 * n + 30 * m}" for n in range(40) for m in range(3)]
    table.write_bytes(gzip.compress("\n".join(["dataset,prompt_id,model,output_tokens", *lines]).encode()))
    code, out, _ = run(capsys, "eval", "perception", "--data", prompts, table, "--json")
    assert code == 0
    assert json.loads(out)["length"]["rows"] == 120


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
    code, said, err = run(capsys, "train", "perception", "--data", typed, "--out", out, "--epochs", "1", "--generated", "800")
    assert code == 0, err
    assert "pass 1/1" in err
    assert "accuracy" in said
    reader = open_reader(out)
    assert reader.card.command.endswith("--generated 800 --epochs 1")
    assert reader.card.data_sha256.keys() == {"typed.jsonl.gz"}
    code, told, _ = run(capsys, "eval", "perception", "--data", typed, "--model", out, "--json")
    assert code == 0
    assert json.loads(told)["task"]["n"] > 400
