"""What the shipped perception models are trained on: licences, generated prompts, answers, and files that give the same rows back."""

import gzip
import json
import math
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.training import recipe
from hmas_lab.training.generator import Material, generate
from hmas_lab.training.grammar import Grammar, own_grammar
from hmas_lab.training.licences import licence_of
from hmas_lab.training.typed import LENGTH_FILES, PROMPTS_FILE, load, own_rows, write_rows

from hmas.agents.perception.reading import TASKS
from hmas.agents.perception.training.answers import corpus_of, read_answers
from hmas.agents.perception.training.data import GENERATED, Row, read_rows
from hmas.controller.core.errors import ModelError
from hmas.controller.core.types import TaskType


@pytest.mark.parametrize(
    ("source", "rule", "declared", "allowed"),
    [
        ("yizhongw/self-instruct:t0_train_50k", "T0 template samsum_Summarize_", "Apache-2.0 repo", None),
        ("yizhongw/self-instruct:t0_train_50k", "T0 template sciq_Direct_Question", "Apache-2.0 repo", None),
        ("yizhongw/self-instruct:t0_train_50k", "T0 template quoref_Find_Answer", "Apache-2.0 repo", "CC-BY-4.0"),
        ("yizhongw/self-instruct:t0_train_50k", "T0 template of_an_unknown_set", "Apache-2.0 repo", None),
        ("wmt-conference/wmt24-news-systems", "language pair cs-uk", "WMT24 research use; see repository", None),
        ("sierra-research/tau-bench:gpt-4o-airline", "", "MIT", "MIT"),
        ("mine.jsonl", "", "CC-BY-SA-4.0", "CC-BY-SA-4.0"),
        ("mine.jsonl", "", "CC-BY-NC-4.0", None),
        ("mine.jsonl", "", "", None),
    ],
)
def test_only_permissive_rows_may_be_trained_on(source, rule, declared, allowed):
    assert licence_of(source, rule, declared) == allowed


def test_generated_prompts_are_many_and_the_same_for_the_same_seed():
    first, again, other = generate(1500, 5), generate(1500, 5), generate(1500, 6)
    assert first == again != other
    counts = Counter(row.task for row in first)
    assert set(counts) == set(TASKS)
    assert min(counts.values()) > 50
    assert {row.source for row in first} == {GENERATED}
    assert sum("{" in row.prompt and "}" not in row.prompt for row in first) < 30


def test_material_is_borrowed_from_rows():
    text = "The quick harbour of Ostrava was never built, because nobody in the valley had ever seen a ship. " * 4
    row = Row(prompt=f"Answer this.\nContext: {text}", task=TaskType.QA, source="s", licence="MIT")
    made = generate(400, 1, Material([row]))
    borrowed = [one for one in made if "quick harbour of Ostrava" in one.prompt]
    assert len({one.task for one in borrowed}) >= 4
    assert not any("Answer this." in one.prompt for one in borrowed)


def test_a_grammar_names_the_rule_that_is_missing():
    with pytest.raises(ModelError, match=r"start uses \{end\}"):
        Grammar({"start": ["to the {end}"]})
    with pytest.raises(ModelError, match="does not end"):
        Grammar({"start": ["{start}"]}).expand("start", np.random.default_rng(0))


def test_given_texts_keep_their_braces_and_articles_fit():
    rng = np.random.default_rng(0)
    grammar = Grammar({"start": ["{material} {a|an} {thing}"], "material": ["x"], "thing": ["otter"]})
    assert grammar.expand("start", rng, {"material": "f() { return {x|y}; }"}) == "f() { return {x|y}; } an otter"
    assert "material" in own_grammar()


def test_the_hash_of_the_recipe_is_that_of_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_recipe" / "step.py"
    module.parent.mkdir()
    monkeypatch.setattr(recipe, "MODULES", (*recipe.MODULES, ("own_recipe", ("step.py",))))
    found = []
    for text in ("a = 1", "a = 2", "a = 1"):
        module.write_text(text)
        found.append(recipe.recipe_sha256())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_prompts_of_great_variety(task):
    rng, grammar = np.random.default_rng(3), own_grammar()
    made = {grammar.expand(task.value, rng) for _ in range(400)}
    assert len(made) > 340
    # No rule may leave a mark of the grammar behind.
    assert not [text for text in made if any(mark in text for mark in ("⟨", "⟩", "\x00", "\x01"))]


def write(path, rows):
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


HUMAN = {"output_origin": "human"}


@pytest.fixture
def data(tmp_path):
    """A data folder with a few typed prompts, and answers of models to two of them."""
    folder = tmp_path / "data"
    (folder / "prompts").mkdir(parents=True)
    t0 = {"source": "yizhongw/self-instruct:t0_train_50k", "license": "Apache-2.0 repo", "task_type": "QA"}
    write(
        folder / PROMPTS_FILE,
        [
            {"prompt": "Who sold the mill?", "label_rule": "T0 template quoref_Find_Answer"} | t0,
            {"prompt": "Which gas is it?", "label_rule": "T0 template sciq_Direct_Question"} | t0,
            {"prompt": "Hi", "task_type": "Dialogue", "source": "mine", "license": "MIT", "output_tokens": 9, "output_origin": "llm:gpt-4"},
            {
                "prompt": "Sum it up.",
                "task_type": "Summarization",
                "source": "mine",
                "license": "MIT",
                "output_tokens": 50,
                "output_origin": "human",
            },
        ],
    )
    prompts, lengths = (folder / name for name in LENGTH_FILES)
    write(
        prompts,
        [
            {"dataset": "d", "prompt_id": "1", "prompt": "Hi"},
            {"dataset": "d", "prompt_id": "2", "prompt": "Name a river."},
            {"dataset": "alpaca_eval:x", "prompt_id": "1", "prompt": "Hi"},
        ],
    )
    table = "dataset,prompt_id,model,output_tokens\nd,1,a,5\nd,1,b,7\nd,2,text-davinci-003,4\nalpaca_eval:x,1,a,99\n"
    lengths.write_bytes(gzip.compress(table.encode()))
    return folder


def test_what_is_written_for_training_gives_the_same_rows_back(data, tmp_path):
    rows = load(data)
    assert [row.licence for row in rows] == ["CC-BY-4.0", None, "MIT", "MIT"]
    assert rows[2].lengths == (5, 7)
    write_rows(rows, tmp_path / "typed.jsonl.gz")
    again = read_rows([tmp_path / "typed.jsonl.gz"])
    assert again[0].licence == "CC-BY-4.0 (quoref)"
    assert [msgspec.structs.replace(row, licence=None) for row in again] == [msgspec.structs.replace(row, licence=None) for row in rows]
    own = own_rows(rows, 40)
    write_rows(own, tmp_path / "own.jsonl.gz")
    assert read_rows([tmp_path / "own.jsonl.gz"]) == own


def test_every_answer_under_a_licence_is_written_and_references_are_moved_to_what_models_write(data, tmp_path, capsys):
    assert main(["training-data", "--data", str(data), "--out", str(tmp_path), "--part", "answers"]) == 0
    rows = read_answers([tmp_path / "answers.jsonl.gz"])
    assert [(row.model, row.tokens) for row in rows][:3] == [("a", 5), ("b", 7), ("gpt-4", 9)]
    old, human = rows[3:5]
    assert (old.model, old.weight, old.prompt) == ("", 0.5, "Name a river.")
    assert math.exp(math.log(human.tokens) + human.shift) == pytest.approx(130)
    assert not any(row.tokens == 99 for row in rows), "alpaca_eval may not be learnt from"
    assert len(corpus_of(rows).examples) == len(rows)
    assert "answers" in capsys.readouterr().err
