"""Judging length forecasts: files, scores, what is foretellable, and the length model beside its baselines."""

import csv
import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hmas_lab.lengths.evaluation import OURS, REGIMES, evaluate, perceived
from hmas_lab.lengths.judge import judge
from hmas_lab.lengths.predictability import account
from hmas_lab.lengths.tfidf import TfIdfRidge
from hmas_lab.training.answers import group_of, read_multi_model, read_typed

from hmas.agents.perception.lengths.base import SHIPPED, load
from hmas.agents.perception.reading import TASKS, Reading
from hmas.agents.perception.training.answers import LengthRow, view_of
from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType

READ = Reading(probabilities=tuple(1.0 / len(TASKS) for _ in TASKS))
DATA = os.environ.get("HMAS_DATA_DIR", "")
TOPICS = {"Write a story about": 900, "Answer in a word:": 8, "Explain in detail": 400, "Give a list of": 150}
NOUNS = ["bridges", "cats", "the sea", "tea", "chess", "Rome", "trains", "wolves", "paper", "music", "glass", "salt", "bees", "maps"]


def made(seed: int = 1, models: int = 6) -> list[LengthRow]:
    """Answers of several models to prompts, with a length by prompt, a factor by model, and chance."""
    rng = np.random.default_rng(seed)
    factors = rng.lognormal(0.0, 0.7, models)
    return [
        LengthRow("made:up", f"{ask} {noun}.", f"model-{number}", max(1, int(base * own * factors[number] * rng.lognormal(0.0, 0.25))))
        for ask, base in TOPICS.items()
        for noun in NOUNS
        for own in [rng.lognormal(0.0, 0.3)]
        for number in range(models)
    ]


def read(views):
    return [(READ, TaskType.QA) for _ in views]


def written(folder: Path, rows: list[LengthRow]) -> tuple[Path, Path]:
    lengths, prompts = folder / "multi_model_output_lengths.csv.gz", folder / "multi_model_prompts.jsonl.gz"
    numbers = {prompt: f"p{number}" for number, prompt in enumerate(dict.fromkeys(row.prompt for row in rows))}
    with gzip.open(lengths, "wt", newline="") as file:
        out = csv.writer(file)
        out.writerow(["dataset", "prompt_id", "model", "output_chars", "output_tokens"])
        out.writerows([row.dataset, numbers[row.prompt], row.model, 1, row.tokens] for row in rows)
    with gzip.open(prompts, "wt") as file:
        file.writelines(
            json.dumps({"dataset": "made:up", "prompt_id": number, "prompt": prompt, "prompt_tokens": 3}) + "\n"
            for prompt, number in numbers.items()
        )
    return lengths, prompts


def test_a_table_and_its_prompts_are_read(tmp_path):
    rows = made()
    assert read_multi_model(*written(tmp_path, rows)) == rows


def test_typed_rows_are_those_whose_output_is_a_models(tmp_path):
    path = tmp_path / "typed.jsonl"
    row = {"prompt": "hi", "task_type": "QA", "source": "s", "output_tokens": 5}
    path.write_text(
        "\n".join(json.dumps(row | {"output_origin": origin}) for origin in ("llm:gpt-4", "human", "llm+expert-revised", None)) + "\n"
    )
    assert read_typed(path) == [LengthRow("s", "hi", "gpt-4", 5, TaskType.QA)]
    assert len(read_typed(path, "llm")) == 2
    assert [found.model for found in read_typed(path, "human")] == ["human"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("dataset,prompt_id,model\n", "output_tokens are missing"),
        ("dataset,prompt_id,model,output_tokens\nmade:up,p0,m,many\n", "csv:2: output_tokens is 'many'"),
        ("dataset,prompt_id,model,output_tokens\nmade:up,p9999,m,3\n", "csv:2: prompt_id 'p9999'"),
        ("dataset,prompt_id,model,output_tokens\nmade:up,p0,m,0\n", "no row has output_tokens"),
    ],
)
def test_a_bad_table_names_its_line_and_field(tmp_path, change, words):
    _, prompts = written(tmp_path, made())
    bad = tmp_path / "bad.csv"
    bad.write_text(change)
    with pytest.raises(TraceError, match=words):
        read_multi_model(bad, prompts)


def test_bad_prompts_name_their_line_and_field(tmp_path):
    lengths, _ = written(tmp_path, made())
    bad = tmp_path / "bad.jsonl"
    for text, words in [("{", "jsonl:1"), ('{"dataset": "d", "prompt_id": 3, "prompt": "x"}', "prompt_id is 3")]:
        bad.write_text(text + "\n")
        with pytest.raises(TraceError, match=words):
            read_multi_model(lengths, bad)
    typed = tmp_path / "typed.jsonl"
    typed.write_text('{"prompt": "x", "task_type": "Nonsense", "source": "s", "output_tokens": 3, "output_origin": "llm:m"}\n')
    with pytest.raises(TraceError, match="task_type is 'Nonsense'"):
        read_typed(typed)


def test_whose_doing_lengths_are_is_found():
    rng = np.random.default_rng(3)
    prompt, model = rng.normal(0.0, 0.6, 80), rng.normal(0.0, 0.8, 40)
    rows = [
        LengthRow("d", f"p{one}", f"m{other}", round(math.exp(9.0 + prompt[one] + model[other] + rng.normal(0.0, 0.4))))
        for one in range(80)
        for other in range(40)
    ]
    found = account(rows)
    assert found is not None
    assert found.prompt_share == pytest.approx(0.36 / 1.16, abs=0.1)
    assert found.model_share == pytest.approx(0.64 / 1.16, abs=0.15)
    assert found.residual_share == pytest.approx(0.16 / 1.16, abs=0.03)
    assert found.oracles["both"].mae_log < min(found.oracles["the model's mean"].mae_log, found.oracles["the prompt's mean"].mae_log)
    assert account(rows[:1]) is None


def test_the_text_regression_learns_what_words_say():
    rows = made()
    ridge = TfIdfRidge(models=True)
    for row in rows[:-40]:
        ridge.learn(row, view_of(row), TaskType.QA)
    fresh = {ask: LengthRow("d", f"{ask} hats.", "model-1", 1) for ask in TOPICS}
    told = {ask: ridge.tell(row, view_of(row), TaskType.QA)[2] for ask, row in fresh.items()}
    assert told["Write a story about"] > told["Give a list of"] > told["Answer in a word:"]


def test_a_regression_that_was_trained_before_tells_at_once_and_learns_on_its_own():
    rows = made(models=4)
    trained = TfIdfRidge(models=True, trained=rows)
    fresh = [LengthRow("d", f"{ask} hats.", "model-1", 1) for ask in TOPICS]

    def told(ridge: TfIdfRidge) -> list[float]:
        return [float(ridge.tell(row, view_of(row), TaskType.QA)[2]) for row in fresh]

    cold = told(trained.fresh())
    assert cold == told(trained)
    assert cold[0] > cold[2] > cold[1]
    one = trained.fresh()
    for row in rows:
        one.learn(LengthRow(row.dataset, f"Now {row.prompt}", row.model, 9 * row.tokens), view_of(row), TaskType.QA)
    assert told(one)[0] > cold[0] + 0.5
    assert told(trained.fresh()) == cold
    spread = trained.fresh().tell(fresh[0], view_of(fresh[0]), TaskType.QA)
    assert list(spread) == sorted(spread)
    assert 0.5 < spread[4] - spread[0] < 4.0


@pytest.mark.slow
def test_the_length_model_is_judged_beside_its_baselines_and_beats_them():
    rows = made(models=12)
    readings = perceived(rows, read)
    found = evaluate(rows, readings, base=load(SHIPPED))
    assert (
        evaluate(rows, readings, base=load(SHIPPED), regimes=["cold"], baselines=False)["regimes"]["cold"][OURS]
        == found["regimes"]["cold"][OURS]
    )
    for regime in REGIMES[1:]:
        overall = {name: entry["overall"] for name, entry in found["regimes"][regime].items()}
        ours = overall.pop(OURS)
        assert ours["rows"] == len(rows)
        assert ours["kendall_tau"] > max(entry["kendall_tau"] for name, entry in overall.items() if "TF-IDF" not in name)
        assert ours["pinball"] < min(entry["pinball"] for name, entry in overall.items() if "TF-IDF" not in name)
    assert set(found["regimes"]["as it comes"][OURS]) == {"overall", "by_collection", "by_dataset", "by_task"}
    assert list(found["settling"]) == ["0 to 50", "50 to 100", "100 to 200", "200 to 500", "500 to 1000"]
    assert found["settling"]["200 to 500"]["worst_gap"] < 0.03
    assert found["settling"]["200 to 500"]["pinball"] < found["settling"]["0 to 50"]["pinball"]
    assert found["predictability"]["by_collection"].keys() == {group_of("made:up")}


@pytest.mark.slow
def test_every_shape_is_judged_beside_the_bare_prompt_on_prompts_held_out():
    """Forty prompts answered by ten models: enough to train on three quarters and to judge the rest."""
    rows = [
        LengthRow("made:up", f"Tell me {one} facts.", f"m{other}", 10 + 9 * one + 3 * other) for one in range(40) for other in range(10)
    ]
    found = judge(rows, reader="rules", regimes=(), held_out=rows)
    assert found["held_out"]
    assert found["rows"] < len(rows)
    shapes = found["by_shape"]["0"]
    assert set(shapes) == {"completion", "chat", "system", "long-system", "history-1", "history-4", "tools"}
    for error, pinball in found["beside_bare"]["0"].values():
        assert error < 1.2
        assert pinball < 1.2
    everything = judge(rows, reader="rules", regimes=["cold"], shapes=False, most=200, trained=rows)
    assert (everything["rows"], everything["trained_rows"]) == (200, len(rows))
    taus = {name: entry["overall"]["kendall_tau"] for name, entry in everything["regimes"]["cold"].items()}
    assert taus["TF-IDF, ridge and model's mean, trained before"] > 0.05
    assert taus["TF-IDF, ridge and model's mean"] == 0.0


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="needs HMAS_DATA_DIR with the public prompts")
def test_on_real_outputs_levels_cover_and_every_baseline_is_beaten():
    folder = Path(DATA) / "prompts"
    rows = read_multi_model(folder / "multi_model_output_lengths.csv.gz", folder / "multi_model_prompts.jsonl.gz")
    rng = np.random.default_rng(1)
    rows = [rows[place] for place in np.sort(rng.choice(len(rows), 4000, replace=False))]
    found = evaluate(rows, perceived(rows, read), base=load(SHIPPED), regimes=["as it comes"])
    overall = {name: entry["overall"] for name, entry in found["regimes"]["as it comes"].items()}
    ours = overall.pop(OURS)
    assert ours["worst_gap"] < 0.02, ours
    for name, entry in overall.items():
        assert ours["kendall_tau"] > entry["kendall_tau"] + 0.02, name
        assert ours["mae_tokens"] < 0.97 * entry["mae_tokens"], name
