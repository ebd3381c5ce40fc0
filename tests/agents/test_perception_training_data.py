"""What the shipped perception model is trained on: licences, splits, generated prompts, and how prompts become numbers."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hmas.agents.perception.encoder import DENSE, Encoder
from hmas.agents.perception.reading import TASKS, PromptView
from hmas.agents.perception.text import BAG_LIMIT, WORDS, Vocabulary, excerpt_of, words_of
from hmas.agents.perception.training import recipe
from hmas.agents.perception.training.data import Row, is_typed, read_rows, with_lengths
from hmas.agents.perception.training.generator import GENERATED, Material, generate
from hmas.agents.perception.training.grammar import Grammar, own_grammar
from hmas.agents.perception.training.licences import licence_for_training
from hmas.agents.perception.training.metrics import report
from hmas.agents.perception.training.recipe import recipe_sha256
from hmas.agents.perception.training.split import split
from hmas.controller.core.errors import ModelError
from hmas.controller.core.request_body import CHAT
from hmas.controller.core.types import TaskType
from hmas.controller.gateway.requests.parse import parse_call


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
    assert licence_for_training(source, rule, declared) == allowed


def rows_of(count: int, source: str, text: str, task: TaskType = TaskType.QA) -> list[Row]:
    prompts = [text.format(n=number, word=f"alpha{number} beta{number} gamma{number} delta{number}") for number in range(count)]
    return [Row(prompt=prompt, task=task, source=source, rule=source, licence="MIT", prompt_chars=len(prompt)) for prompt in prompts]


def test_twins_never_stand_on_both_sides():
    passage = "In the spring of {n} the miller {word} sold the old river house to nobody in particular again"
    twins = rows_of(40, "passages", passage) + rows_of(40, "questions", "Who sold it? " + passage, TaskType.EXTRACTION)
    parts = split(twins, 0)
    side = {index: name for name, indices in parts.items() for index in indices}
    assert sorted(side) == list(range(80))
    assert all(side[number] == side[number + 40] for number in range(40))
    assert len(parts["test"]) == pytest.approx(16, abs=4)
    assert split(twins, 0) == parts


def test_templates_bind_nothing():
    parts = split(rows_of(100, "t", "Please read the following text very carefully and answer: {word} is what number {n}?"), 0)
    assert len(parts["test"]) == pytest.approx(20, abs=2)


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


def test_the_excerpt_is_cut_as_the_gateway_cuts_it():
    text = "".join(chr(97 + number % 26) for number in range(5000))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert excerpt_of(text) == parse_call(CHAT, body).excerpt


def test_words_of_every_script():
    assert words_of("Don't PANIC, 42!\n\nÜber 日本") == ["don't", "panic", ",", "4", "2", "!", "\n\n", "über", "日", "本"]


def test_pairs_of_words_have_numbers_that_order_matters_to():
    vocabulary = Vocabulary({"write": 1, "a": 2, "letter": 3}, unknown=16, pairs=64)
    ids = vocabulary.word_ids("write a letter ferociously")
    assert ids[:3].tolist() == [1, 2, 3]
    assert 4 <= ids[3] < vocabulary.size
    bag = vocabulary.bag(ids)
    assert bag[:4].tolist() == ids.tolist()
    assert (bag[4:] >= vocabulary.size).all()
    assert (bag < vocabulary.bag_size).all()
    assert bag.tolist() != vocabulary.bag(ids[::-1]).tolist()
    long = vocabulary.word_ids("! " * 5000)
    assert len(vocabulary.bag(long)) == BAG_LIMIT
    assert len(vocabulary.sequence(long)) == WORDS


def test_the_recipe_is_told_by_its_grammar():
    assert recipe_sha256() == recipe_sha256()
    assert len(recipe_sha256()) == 64
    root = Path(recipe.__file__).parent.parent
    assert all((root / name).is_file() for name in recipe.MODULES)
    assert all((root.parent / "model_store" / name).is_file() for name in recipe.MODELS_MODULES)
    assert {path.name for path in (root / recipe.GRAMMAR).iterdir()} >= {"experts.grammar", "hard_code.grammar", "words.grammar"}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_prompts_of_great_variety(task):
    rng, grammar = np.random.default_rng(3), own_grammar()
    made = {grammar.expand(task.value, rng) for _ in range(400)}
    assert len(made) > 340
    # No rule may leave a mark of the grammar behind.
    assert not [text for text in made if any(mark in text for mark in ("⟨", "⟩", "\x00", "\x01"))]


def test_inputs_are_padded_and_bounded():
    encoder = Encoder(Vocabulary({"hello": 1}, unknown=4, pairs=8))
    huge = PromptView(excerpt="hello " * 9, prompt_chars=10**12, prompt_tokens=10**12, turns=10**9, images=10**6, max_output_tokens=10**9)
    inputs = encoder.encode([PromptView(excerpt=""), huge])
    assert inputs["words"].shape[1] % 2 == 0
    assert not inputs["words"][0].any()
    assert inputs["system"].shape == inputs["history"].shape == (2, 1)
    assert inputs["dense"].shape == (2, len(DENSE))
    assert np.abs(inputs["dense"]).max() < 10


def write(path, rows):
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


def test_rows_come_from_files(tmp_path):
    typed = write(
        tmp_path / "t.jsonl.gz", [{"prompt": "Hi", "task_type": "Dialogue", "license": "MIT", "output_tokens": 9, "output_origin": "human"}]
    )
    (row,) = read_rows([typed])
    assert (row.task, row.licence, row.output_tokens, row.prompt_chars, row.source) == (TaskType.DIALOGUE, "MIT", 0, 2, "t.jsonl.gz")
    assert row.view(features_only=True).excerpt == ""
    assert is_typed(typed)
    prompts = write(
        tmp_path / "p.jsonl.gz",
        [{"dataset": "d", "prompt_id": "1", "prompt": "Hi"}, {"dataset": "alpaca_eval:x", "prompt_id": "1", "prompt": "Hi"}],
    )
    assert not is_typed(prompts)
    table = tmp_path / "l.csv.gz"
    table.write_bytes(gzip.compress(b"dataset,prompt_id,model,output_tokens\nd,1,a,5\nd,1,b,7\nalpaca_eval:x,1,a,99\n"))
    assert with_lengths([row], prompts, table)[0].lengths == (5, 7)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "x", "task_type": "Poetry"}', "task_type: 'Poetry' must be one of QA"),
        ('{"prompt": 5, "task_type": "QA"}', "prompt: 5 must be a text"),
        ('{"prompt": "x", "task_type": "QA", "turns": -1}', "turns: -1 must be a number of 0 or more"),
        ("[1]", "must be a JSON object"),
        ("{", "not JSON lines"),
        ("", "no typed prompts"),
    ],
)
def test_unusable_rows_are_named(tmp_path, line, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(ModelError, match=r"bad\.jsonl") as failure:
        read_rows([path])
    assert words in str(failure.value)


def test_the_report_counts_what_it_says():
    count = len(TASKS)
    probabilities = np.full((4, count), 0.1 / (count - 1))
    probabilities[[0, 1, 2], [0, 0, 1]] = 0.9
    probabilities[3] = 0.0
    found = report(probabilities, np.array([0, 1, 1, 2]), ["a", "a", "b", "b"])
    assert (found["n"], found["accuracy"]) == (4, 0.5)
    assert found["sources"] == {"a": {"n": 2, "accuracy": 0.5}, "b": {"n": 2, "accuracy": 0.5}}
    assert found["confusion"][TASKS[2].value] == {"none": 1}
    assert found["classes"][TASKS[0].value] == {"n": 1, "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3)}
    # Three answers at 0.9 of which two are right, and one without confidence that is wrong.
    assert found["ece"] == pytest.approx(0.75 * (0.9 - 2 / 3))
