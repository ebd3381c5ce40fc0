"""What a perception model is trained on: rows, splits, and how prompts become numbers."""

import gzip
import json

import numpy as np
import pytest

from hmas.agents.perception.encoder import DENSE, Encoder
from hmas.agents.perception.reading import TASKS, PromptView
from hmas.agents.perception.text import BAG_LIMIT, WORDS, Vocabulary, excerpt_of, words_of
from hmas.agents.perception.training.data import Row, licence_for_training, read_rows
from hmas.agents.perception.training.metrics import report
from hmas.agents.perception.training.split import split
from hmas.controller.core.errors import ModelError
from hmas.controller.core.request_body import CHAT, read_call
from hmas.controller.core.types import TaskType


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


def test_the_excerpt_is_cut_as_the_gateway_cuts_it():
    text = "".join(chr(97 + number % 26) for number in range(5000))
    document = {"model": "m", "messages": [{"role": "user", "content": text}]}
    assert excerpt_of(text) == read_call(CHAT, document).excerpt


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
    assert row.turns == 1


@pytest.mark.parametrize(
    ("declared", "allowed"),
    [("MIT", True), ("CC-BY-SA-4.0 (quoref)", True), ("CC-BY-NC-4.0", False), ("Apache-2.0, for research", False), ("", False)],
)
def test_only_permissive_rows_may_be_trained_on(declared, allowed):
    assert licence_for_training(declared) == (declared if allowed else None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "x", "task_type": "Poetry"}', "task_type: 'Poetry' must be one of QA"),
        ('{"prompt": 5, "task_type": "QA"}', "prompt: 5 must be a text"),
        ('{"prompt": "x", "task_type": "QA", "turns": -1}', "turns: -1 must be a number of 0 or more"),
        ('{"prompt": "x", "task_type": "QA", "lengths": [0]}', "lengths: [0] must be a list of whole numbers of 1 or more"),
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
