"""The shipped perception model: what it makes of prompts of every kind, and of a folder that is not what its card says."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from hmas.agents.perception.onnx_reader import MODEL_FILE, WORDS_FILE, open_reader
from hmas.agents.perception.readers import SHIPPED_TAGGER
from hmas.agents.perception.reading import TASKS, PromptView
from hmas.agents.perception.text import excerpt_of
from hmas.agents.perception.training.data import read_rows, view_of_body, view_of_prompt
from hmas.agents.perception.training.evaluation import evaluate_reader
from hmas.agents.perception.training.split import parts_of
from hmas.controller.core.client_bodies import Shape
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.request_body import CHAT
from hmas.controller.core.types import TaskType


@pytest.fixture(scope="module")
def reader():
    return open_reader(SHIPPED_TAGGER)


def view(text: str, **more) -> PromptView:
    return PromptView(
        excerpt=excerpt_of(text), prompt_chars=len(text), prompt_tokens=max(1, len(text) // 4), turns=more.pop("turns", 1), **more
    )


def task_of(reading) -> TaskType:
    return TASKS[int(np.argmax(reading.probabilities))]


NEWS = (
    "The council of the harbour town met on Tuesday to discuss the new bridge, which has been planned for eleven years. Two engineers "
    "showed drawings of a lower and cheaper span. Residents of the east bank asked who would pay for the road that leads to it. The mayor "
    "promised a vote before summer, and the ferry company said that it would not wait for the result before ordering a second ship."
)
PLAIN = {
    "Translate the following sentence into French: The harbour is closed until Monday.": TaskType.TRANSLATION,
    f"Please summarise the text below in two sentences.\n\n{NEWS}": TaskType.SUMMARIZATION,
    "Write a Python function that returns the n-th Fibonacci number without recursion.": TaskType.CODE_GENERATION,
    "A shop sells pens at $3 each. Ana buys 4 pens and pays with a $20 bill. How much change does she get?": TaskType.MATH_REASONING,
    "Write an email to my landlord asking him to repair the heating before the weekend.": TaskType.LETTER_DRAFTING,
    "Write a five-paragraph argumentative essay on whether schools should start later.": TaskType.ESSAY_GENERATION,
    "Write a long fantasy story about a lighthouse keeper who befriends a storm.": TaskType.LONG_FORM_GENERATION,
    "Paraphrase the following sentence: The committee postponed its decision until spring.": TaskType.PARAPHRASING,
    "Extract all person names and dates from the text: Mary Shelley met John Keats on 4 May 1817 in London.": TaskType.EXTRACTION,
    "User: Hi, I must change my flight.\nAssistant: Sure, what is your booking number?\nUser: It is 4471.\nAssistant:": TaskType.DIALOGUE,
    "Write a report on the effects of microplastics on fisheries, with at least ten references.": TaskType.RESEARCH_AND_COMMUNICATION,
    "Describe Rome in exactly three bullet points. Do not use any commas. Your entire response must be in lowercase letters.": (
        TaskType.INSTRUCTION_FOLLOWING
    ),
}


@pytest.mark.parametrize("text", PLAIN, ids=lambda text: PLAIN[text].value)
def test_plain_commands_are_told_apart(reader, text):
    (reading,) = reader.read([view(text)])
    assert task_of(reading) is PLAIN[text]


@pytest.mark.parametrize("shape", Shape)
def test_what_comes_along_does_not_change_the_task(reader, shape):
    talk = [("Who wrote Emma?", "Jane Austen wrote it. " * 30), ("Translate 'sea' to German.", "Meer."), ("thanks", "You are welcome.")]
    views = [view_of_prompt(text, shape, exchanges=talk, holdout=True) for text in PLAIN]
    right = [task_of(reading) is task for reading, task in zip(reader.read(views), PLAIN.values(), strict=True)]
    assert sum(right) >= len(PLAIN) - 1


def test_a_system_prompt_decides_where_the_message_names_no_task(reader):
    def task_under(system: str) -> TaskType:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": NEWS}]
        (reading,) = reader.read([view_of_body(CHAT, {"model": "m", "messages": messages})])
        return task_of(reading)

    assert task_under("You are a professional translator. Translate the text that the user sends into Spanish.") is TaskType.TRANSLATION
    assert task_under("Summarize the text below in two sentences.") is TaskType.SUMMARIZATION


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t ",
        "\ud800 lone \udfff surrogates",
        "x" * 100_000,
        "word " * 20_000,
        "(){};:" * 400,
        "请把下面的句子翻译成英文：今天天气很好。",
        "اكتب رسالة إلى مديري",
        "ขอสรุปข้อความนี้",
        "👩‍👩‍👧‍👦" * 30,
        "\x00\x01\x02",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_whatever_a_prompt_holds_it_is_read(reader, text):
    (reading,) = reader.read([view(text)])
    assert len(reading.probabilities) == len(TASKS)
    assert sum(reading.probabilities) == pytest.approx(1.0, abs=1e-4)
    assert len(reading.log_lengths) == len(LEVELS)
    assert list(reading.log_lengths) == sorted(reading.log_lengths)
    assert reading.log_lengths[0] >= 0.0
    assert np.isfinite(reading.log_lengths).all()


def test_features_alone_give_an_answer_that_is_less_sure(reader):
    text = next(iter(PLAIN))
    shown, kept = reader.read([view(text), PromptView(excerpt="", prompt_chars=len(text), prompt_tokens=19, turns=1)])
    assert max(kept.probabilities) < max(shown.probabilities)
    pictures = reader.read([PromptView(excerpt="", images=2, turns=1)])[0]
    assert len(pictures.probabilities) == len(TASKS)


def test_a_batch_reads_like_its_prompts_one_by_one_and_in_order(reader):
    views = [view(text) for text in PLAIN] * 9
    together = reader.read(views)
    for shown, reading in zip(views[: len(PLAIN)], together, strict=False):
        (alone,) = reader.read([shown])
        np.testing.assert_allclose(alone.probabilities, reading.probabilities, atol=2e-4)
        np.testing.assert_allclose(alone.log_lengths, reading.log_lengths, atol=2e-3)
    assert reader.read([]) == []


def test_longer_demands_are_told_longer_lengths(reader):
    short, long = reader.read([view("What is the capital of Peru?"), view(list(PLAIN)[6])])
    assert long.log_lengths[2] > short.log_lengths[2]


@pytest.fixture
def copied(tmp_path):
    folder = tmp_path / "tagger"
    shutil.copytree(SHIPPED_TAGGER, folder)
    return folder


def test_a_changed_file_is_refused(copied):
    (copied / WORDS_FILE).write_text("other\nwords")
    with pytest.raises(ModelError, match=r"words\.txt"):
        open_reader(copied)


def test_a_missing_file_is_refused(copied):
    (copied / MODEL_FILE).unlink()
    with pytest.raises(ModelError, match=r"model\.onnx"):
        open_reader(copied)


def test_a_model_of_other_tasks_is_refused(copied):
    card = json.loads((copied / "card.json").read_text())
    card["details"]["tasks"] = card["details"]["tasks"][:-1]
    (copied / "card.json").write_text(json.dumps(card))
    with pytest.raises(ModelError, match="another version"):
        open_reader(copied)


def test_a_folder_without_a_card_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"card\.json"):
        open_reader(tmp_path)


def test_the_card_says_what_it_was_trained_on():
    card = open_reader(SHIPPED_TAGGER).card
    assert card.metrics["test"]["n"] > 1000
    assert card.command.startswith("hmas train perception --data")
    assert card.data_sha256
    trained_on = " ".join(card.details["trained_on"])
    for forbidden in ("alpaca", "samsum", "multi_news", "gigaword", "sciq", "wmt24", "None"):
        assert forbidden not in trained_on


@pytest.mark.slow
@pytest.mark.skipif("HMAS_DATA_DIR" not in os.environ, reason="set HMAS_DATA_DIR to the folder of the public data")
def test_the_shipped_model_is_as_good_as_its_card_says(reader):
    test = parts_of(read_rows([Path(os.environ["HMAS_DATA_DIR"]) / "prompts/typed_prompts.jsonl.gz"])).test
    found = evaluate_reader(reader, test)
    # Eight-bit tables and rounding may move a handful of rows.
    assert found["accuracy"] == pytest.approx(reader.card.metrics["test"]["accuracy"], abs=0.003)
    assert found["accuracy"] > 0.942
    assert found["ece"] < 0.05
    without = evaluate_reader(reader, test, features_only=True)
    assert without["accuracy"] == pytest.approx(reader.card.metrics["test_features_only"]["accuracy"], abs=0.005)
    assert without["ece"] < 0.05
