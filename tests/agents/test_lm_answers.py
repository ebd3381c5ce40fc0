"""What a language model is asked and how its answers read: bins, labels, calibration, settings, parts. No torch."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.perception.lm.answers import (
    BIN_WORDS,
    BINS,
    CUT,
    LETTERS,
    LOG_EDGES,
    LONGEST_TOKENS,
    MIDDLE,
    NAMES,
    OPENING,
    SIDE_CHARS,
    bin_of,
    cut,
    log_quantiles,
    parse,
    pattern,
    question,
    reading_of,
)
from hmas.agents.perception.lm.details import LmDetails, label_tokens
from hmas.agents.perception.lm.judging import judged
from hmas.agents.perception.lm.train import Run, TrainSettings, begin, check, newest_checkpoint
from hmas.agents.perception.reading import TASKS, PromptView
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.metrics import temperature_of
from hmas.agents.perception.training.split import evenly, parts_of
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.lengths import LEVELS


@given(st.integers(1, 10**7))
def test_every_length_has_a_bin_that_holds_it(tokens):
    index = bin_of(tokens)
    assert LOG_EDGES[index] <= math.log(tokens) + 1e-12
    assert index == BINS - 1 or math.log(tokens) < LOG_EDGES[index + 1]


def test_a_length_below_one_is_refused_by_value():
    with pytest.raises(ValueError, match="output_tokens is 0; allowed: 1 or more"):
        bin_of(0)


@given(st.lists(st.floats(0, 1), min_size=BINS, max_size=BINS).filter(lambda p: sum(p) > 1e-3))
def test_quantiles_ascend_within_the_range(probabilities):
    found = log_quantiles(probabilities)
    assert len(found) == len(LEVELS)
    assert list(found) == sorted(found)
    assert found[0] >= 0
    assert found[-1] <= math.log(LONGEST_TOKENS)


@pytest.mark.parametrize("tokens", [1, 7, 90, 1200, 30_000])
def test_a_sure_model_gives_quantiles_inside_its_bin(tokens):
    sure = np.zeros(BINS)
    sure[bin_of(tokens)] = 1.0
    found = log_quantiles(sure)
    assert LOG_EDGES[bin_of(tokens)] <= found[0] <= found[-1] <= LOG_EDGES[bin_of(tokens) + 1]


def test_quantiles_are_calibrated_where_the_probabilities_are():
    rng = np.random.default_rng(3)
    lengths = np.exp(rng.normal(5.0, 1.2, 20_000)).clip(1, LONGEST_TOKENS - 1)
    shares = np.bincount([bin_of(int(length)) for length in lengths], minlength=BINS) / len(lengths)
    for level, quantile in zip(LEVELS, log_quantiles(shares), strict=True):
        assert (np.log(lengths) <= quantile).mean() == pytest.approx(level, abs=0.02)


@pytest.mark.parametrize("bad", [[1.0] * (BINS - 1), [0.0] * BINS, [-1.0] + [1.0] * (BINS - 1), [math.nan] * BINS])
def test_bin_probabilities_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match=f"allowed: {BINS} finite numbers"):
        log_quantiles(bad)


@pytest.mark.parametrize("labels", [NAMES, LETTERS])
def test_every_answer_is_strict_json_and_fits_the_pattern(labels):
    for index, label in enumerate(labels):
        continuation = f'{label}{MIDDLE}{BIN_WORDS[index]}"}}'
        assert json.loads(OPENING + continuation) == {"task": label, "output_tokens": BIN_WORDS[index]}
        assert re.fullmatch(pattern(labels), continuation)
        assert parse(continuation, labels) == (index, index)


@pytest.mark.parametrize(
    "continuation",
    [
        "",
        "QA",
        'QA"}',
        'Poetry", "output_tokens": "a"}',
        'QA", "output_tokens": "z"}',
        'QA", "output_tokens": 5}',
        'QA", "output_tokens": "a"} and',
    ],
)
def test_anything_else_is_no_answer(continuation):
    assert parse(continuation, NAMES) is None


@given(st.text(max_size=3000), st.integers(80, 2000))
def test_a_cut_text_is_bounded_and_keeps_both_ends(text, limit):
    found = cut(text, limit)
    assert len(found) <= limit + len(CUT)
    assert found[:40] == text[:40].encode("utf-8", "replace").decode()
    assert found.endswith(text[-20:].encode("utf-8", "replace").decode())


def test_a_question_ends_where_the_label_begins_and_takes_surrogates():
    asked = question(PromptView(excerpt="Sum this up \ud800", prompt_chars=12, turns=3, has_tools=True))
    assert asked.endswith(OPENING)
    asked.encode("utf-8")
    assert "3 messages" in asked
    assert "no tools" not in asked


def test_system_prompt_and_history_stand_shortened_before_the_question_where_the_artefact_knows_them():
    view = PromptView(excerpt="The house is red.", system="Translate what the user sends. " * 40, history="long ago " * 90 + "user: hello")
    asked = question(view)
    system, history, rest = asked.split("\n", 2)
    assert system.startswith("System prompt: Translate what the user sends.")
    assert history.endswith("user: hello")
    assert len(system) + len(history) < 2 * SIDE_CHARS + 40
    assert rest == question(view, side_chars=0), "an artefact that was trained without them is asked as it was trained"
    assert question(PromptView(excerpt="a")) == question(PromptView(excerpt="a"), side_chars=0)


def test_half_an_answer_is_no_answer():
    sure = np.zeros(len(TASKS))
    assert reading_of(np.full(len(TASKS), math.nan), None, task_temperature=1, length_temperature=1).probabilities == ()
    assert reading_of(sure, np.full(BINS, math.nan), task_temperature=1, length_temperature=1).probabilities == ()
    assert reading_of(sure, None, task_temperature=1, length_temperature=1).log_lengths == ()
    assert sum(reading_of(sure, None, task_temperature=1, length_temperature=1).probabilities) == pytest.approx(1)


class Pieces:
    """A tokenizer over a fixed set of pieces, longest first; what it does not know is one token a character."""

    eos_token_id = 0

    def __init__(self, *pieces: str) -> None:
        self.pieces = sorted(pieces, key=len, reverse=True)
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = []
        while text:
            piece = next((piece for piece in self.pieces if text.startswith(piece)), text[0])
            ids.append(self.numbers.setdefault(piece, len(self.numbers) + 1))
            text = text[len(piece) :]
        return {"input_ids": ids}


def test_names_are_labels_where_one_step_tells_them_apart():
    tokens = label_tokens(Pieces(*NAMES))
    assert tokens.words == NAMES
    assert len(set(tokens.firsts)) == len(TASKS)


def test_letters_are_labels_where_two_names_begin_alike():
    # One token a character: Extraction and EssayGeneration both begin with E.
    tokens = label_tokens(Pieces())
    assert tokens.words == LETTERS
    assert len(set(tokens.firsts)) == len(TASKS)
    assert tokens.closing[-1] == 0


class Unknowing(Pieces):
    """A tokenizer to which every text is one unknown word."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [7]}


def test_a_tokenizer_without_letters_is_refused():
    with pytest.raises(ConfigError, match="single letters"):
        label_tokens(Unknowing())


def test_temperature_undoes_overconfidence():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 1.0, (4000, 13))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = np.array([rng.choice(13, p=row) for row in shares])
    assert temperature_of(logits * 3.0, truth) == pytest.approx(3.0, rel=0.1)
    assert temperature_of(logits[:5], truth[:5]) == 1.0


def test_figures_tell_a_good_model_from_guessing():
    tasks, lengths = [0, 0, 0, 1, 2] * 20, [10, 100, 1000, 100, 10] * 20
    pairs = list(zip(tasks, lengths, strict=True))
    rows = [Row(prompt=f"p{at}", task=TASKS[task], source="s", output_tokens=n) for at, (task, n) in enumerate(pairs)]
    good, bins = np.full((100, 13), math.log(0.01)), np.full((100, BINS), -9.0)
    good[np.arange(100), tasks] = math.log(0.88)
    bins[np.arange(100), [bin_of(tokens) for tokens in lengths]] = 0.0
    details = LmDetails(kind="encoder", weights="merged", base="b", excerpt_chars=100, max_tokens=128)
    figures = judged(lambda _: (good, bins), rows, rows, details)
    assert figures["task"]["accuracy"] == 1.0
    assert figures["task"]["majority_accuracy"] == 0.6
    assert figures["task"]["ece"] == pytest.approx(0.12, abs=1e-6)
    assert figures["length"]["pinball"] < 0.2 * figures["length"]["pinball_of_training_quantiles"]
    assert len(figures["length"]["coverage"]) == len(LEVELS)
    wrong = judged(lambda _: (np.roll(good, 1, axis=1), bins), rows, rows[:1], details)
    assert wrong["task"]["accuracy"] == 0.0
    assert wrong["task"]["ece"] == pytest.approx(0.88)
    assert judged(lambda _: (good, bins), [], rows, details) == {}


def rows(count: int) -> list[Row]:
    words = ["river", "lamp", "stone", "cloud", "tiger", "maple", "ocean", "violet", "copper", "ember"]
    return [
        Row(
            prompt=" ".join(words[(index * 7 + step * (index % 9 + 1)) % 10] for step in range(12)) + f" number {index}",
            task=TASKS[index % 3],
            source=("large", "small")[index % 20 == 0],
        )
        for index in range(count)
    ]


def test_parts_share_no_prompt_and_leave_none_out():
    given_rows = rows(300)
    parts = parts_of(given_rows, seed=1, licensed=False)
    prompts = [[row.prompt for row in part] for part in (parts.train, parts.validation, parts.test)]
    assert sorted(prompts[0] + prompts[1] + prompts[2]) == sorted(row.prompt for row in given_rows)
    assert not set(prompts[0]) & set(prompts[2])
    assert not set(prompts[0]) & set(prompts[1])
    assert parts.train
    assert parts.validation
    assert parts.test


def test_a_limit_takes_evenly_from_sources_and_the_same_every_time():
    taken = evenly(rows(300), 24, 0)
    assert len(taken) == 24
    assert sum(row.source == "small" for row in taken) == 12
    assert taken == evenly(rows(300), 24, 0)
    assert len(evenly(rows(30), 0, 0)) == 30


@pytest.fixture
def settings(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    data = tmp_path / "rows.jsonl"
    data.write_text("{}\n")
    return TrainSettings(base=base, data=(data,), out=tmp_path / "out", work=tmp_path / "work")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("epochs", 0.0, "epochs is 0.0; allowed: 0.01 to 1000"),
        ("learning_rate", math.nan, "learning_rate is nan; allowed: 1e-07 to 1"),
        ("rank", 0, "rank is 0 without merge; allowed: rank 0, which trains all weights, with merge"),
        ("kind", "decoder", "kind is 'decoder'; allowed: auto, causal, encoder"),
        ("targets", " ,", "targets is empty; allowed: auto, all-linear"),
        ("base", Path("/nowhere"), "base is /nowhere; allowed: a local folder of a Hugging Face model"),
        ("data", (), "data is empty; allowed: one or more files"),
        ("data", (Path("/nowhere.jsonl"),), "data names /nowhere.jsonl, which is no file"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(settings, name, value, said):
    changed = TrainSettings(**{field: getattr(settings, field) for field in settings.__struct_fields__} | {name: value})
    with pytest.raises(ConfigError, match=re.escape(said)):
        check(changed)


def test_a_finished_model_is_not_written_over(settings):
    settings.out.mkdir()
    (settings.out / "card.json").write_text("{}")
    with pytest.raises(ConfigError, match="not empty; allowed: a new or empty folder"):
        check(settings)


def resumed(settings, **changes):
    return TrainSettings(**{field: getattr(settings, field) for field in settings.__struct_fields__} | {"resume": True} | changes)


def whole_checkpoint(work: Path, step: int) -> Path:
    folder = work / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    return folder


def test_a_run_goes_on_from_its_newest_whole_checkpoint(settings):
    begun: dict[str, Any] = {"base_fingerprint": "b", "data_sha256": {"rows": "d"}}
    assert begin(Run(settings=settings, **begun)) is None
    whole_checkpoint(settings.work, 9)
    newest = whole_checkpoint(settings.work, 10)
    (settings.work / "checkpoint-11").mkdir()
    (whole_checkpoint(settings.work, 12) / "trainer_state.json").write_text('{"best_metric": 0.5, "log_hist')
    assert begin(Run(settings=resumed(settings, epochs=9.0), **begun)) == newest
    assert not (settings.work / "checkpoint-11").exists()
    assert not (settings.work / "checkpoint-12").exists(), "killed in the middle of its last file"
    assert newest_checkpoint(settings.work) == newest


@pytest.mark.parametrize(
    ("changes", "begun", "said"),
    [
        ({"rank": 8}, {}, "rank is 8, but the run in"),
        ({}, {"base_fingerprint": "other"}, "is not the base that the run"),
        ({}, {"data_sha256": {"rows": "other"}}, "data has changed since the run"),
        ({"resume": False}, {}, "which holds a run; allowed: --resume"),
        ({"work": Path("/nowhere/at/all")}, {}, "allowed with --resume: the folder of a run"),
    ],
)
def test_what_would_be_another_run_does_not_go_on(settings, changes, begun, said):
    first: dict[str, Any] = {"base_fingerprint": "b", "data_sha256": {"rows": "d"}}
    begin(Run(settings=settings, **first))
    whole_checkpoint(settings.work, 5)
    with pytest.raises(ConfigError, match=re.escape(said)):
        begin(Run(settings=resumed(settings, **changes), **(first | begun)))
