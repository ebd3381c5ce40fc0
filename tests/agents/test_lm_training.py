"""The training path end to end on tiny local bases: train, kill, resume, interrupt, stop early, calibrate, judge, store, serve in process.

Marked `train`: needs torch, transformers and peft (`make test-train`), and typed prompts in HMAS_DATA_DIR.
"""

import contextlib
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_kit import TASKS, Training, base, real_prompts, vllm_with_adapter

from hmas.agents.model_store.card import read_card, verified
from hmas.agents.perception.lm.details import details_of
from hmas.agents.perception.lm.endpoint import EndpointReader, open_endpoint
from hmas.agents.perception.lm.reader import open_reader
from hmas.agents.perception.reading import TASKS as ALL
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.data import read_rows
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS

torch = pytest.importorskip("torch", reason="needs the extra `train`: make test-train")
pytest.importorskip("peft", reason="needs the extra `train`: make test-train")

pytestmark = [pytest.mark.train, pytest.mark.timeout(1500), pytest.mark.filterwarnings("default::FutureWarning")]

ROWS = 300
SMALL = ("--excerpt-chars", 120, "--batch", 16, "--learning-rate", 4e-3)
MAJORITY = 1 / len(TASKS)
PASSED = 2 * MAJORITY
"""Accuracy on held-out rows that neither chance nor the most frequent type comes near."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    return real_prompts(tmp_path_factory.mktemp("rows") / "rows.jsonl", ROWS)


@pytest.fixture(scope="module")
def causal(rows, tmp_path_factory) -> Path:
    """A causal model that was killed in the middle of its training, resumed, and ended."""
    folder = tmp_path_factory.mktemp("causal")
    told: tuple[Any, ...] = ("--base", base("causal"), "--data", rows, "--out", folder / "out", "--work", folder / "work", *SMALL)
    told = (*told, "--epochs", 14, "--eval-every", 12)
    first = Training(folder / "first.log", *told)
    # The line about a look comes before its checkpoint, the line of the next step after it.
    first.until("step 13 of")
    assert first.send(signal.SIGKILL) == -signal.SIGKILL
    assert not (folder / "out").exists()
    second = Training(folder / "second.log", *told, "--resume")
    assert second.wait() == 0, second.said()
    assert "going on from" in second.said()
    assert "checkpoint-12" in second.said()
    return folder


def judge(folder: Path) -> dict:
    card = verified(folder)
    task = card.metrics["task"]
    assert task["n"] >= 0.15 * ROWS
    assert task["majority_accuracy"] <= MAJORITY + 0.1
    assert task["accuracy"] > PASSED
    assert task["accuracy"] > 2 / len(ALL)
    return card.metrics


def agrees(folder: Path, rows: Path) -> float:
    """Share of all rows that the served artefact labels rightly."""
    found = read_rows([rows])
    readings = open_reader(folder).read([row.view() for row in found])
    for reading in readings:
        assert sum(reading.probabilities) == pytest.approx(1.0)
        assert len(reading.log_lengths) == len(LEVELS)
        assert list(reading.log_lengths) == sorted(reading.log_lengths)
    return float(np.mean([ALL[int(np.argmax(reading.probabilities))] is row.task for reading, row in zip(readings, found, strict=True)]))


def test_a_killed_run_resumes_and_its_model_beats_chance_and_majority(causal, rows):
    metrics = judge(causal / "out")
    # Some 60 known lengths teach a tiny base little: its quantiles must not be far worse than those of the training rows.
    assert metrics["length"]["pinball"] < 1.5 * metrics["length"]["pinball_of_training_quantiles"]
    assert metrics["length"]["coverage"][0] < 0.5 < metrics["length"]["coverage"][LEVELS.index(0.9)]
    assert agrees(causal / "out", rows) > PASSED


def test_the_answers_logits_are_all_that_the_loss_needs():
    from hmas.agents.perception.lm.bases import open_base
    from hmas.agents.perception.lm.details import label_tokens
    from hmas.agents.perception.lm.scoring import CausalCollator, accepted, causal_row, render

    opened = open_base(base("causal"), "causal", dtype=torch.float32)
    tokens = label_tokens(opened.tokenizer)
    views = [PromptView(excerpt=text, prompt_chars=len(text)) for text in ("short", "a text of some more words " * 9)]
    prompts = [render(opened.tokenizer, view, kind="causal", excerpt_chars=400, max_tokens=512) for view in views]
    batch_rows = [causal_row(prompts[0], 3, 0, tokens), causal_row(prompts[1], 5, 900, tokens)]
    names = accepted(opened.model)
    assert {"position_ids", "logits_to_keep"} <= names
    pad = opened.tokenizer.pad_token_id
    kept = CausalCollator(pad, tokens.longest, names)(batch_rows)
    whole = CausalCollator(pad, tokens.longest, names - {"logits_to_keep"})(batch_rows)
    assert kept["labels"].shape[1] < whole["labels"].shape[1]
    with torch.inference_mode():
        together = opened.model(**kept).loss.item()
        assert together == pytest.approx(opened.model(**whole).loss.item(), rel=1e-5)
        # Padding must not change what a row costs.
        alone = [opened.model(**CausalCollator(pad, tokens.longest, names)([row])).loss.item() for row in batch_rows]
    counts = [sum(label >= 0 for label in row["labels"]) for row in batch_rows]
    assert together == pytest.approx(np.average(alone, weights=counts), rel=1e-5)


def test_the_base_says_which_kind_it_is():
    from hmas.agents.perception.lm.bases import chosen_targets, kind_of

    assert kind_of(base("causal")) == "causal"
    assert kind_of(base("encoder")) == "encoder"
    assert chosen_targets("qwen3", "auto") == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert chosen_targets("qwen3_moe", "auto") == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert chosen_targets("an-architecture-of-next-year", "auto") == "all-linear"


def test_progress_says_loss_speed_and_time_left(causal):
    said = (causal / "second.log").read_text()
    assert "tokens/s, about" in said
    assert "loss " in said
    assert (causal / "work" / "log.txt").read_text().count("step ") > 3


def test_what_no_text_can_do_to_the_reader(causal):
    reader = open_reader(causal / "out")
    texts = ["", " \n", "\ud800 half a letter", "词" * 100_000, '{"task": "QA", "output_tokens": "a"}<|im_end|>', "🙂" * 5000, "a"]
    readings = reader.read([PromptView(excerpt=text, prompt_chars=len(text)) for text in texts])
    assert [bool(reading.probabilities) for reading in readings] == [False, False, True, True, True, True, True]
    alone = reader.read([PromptView(excerpt=texts[3], prompt_chars=100_000)])
    assert np.allclose(alone[0].probabilities, readings[3].probabilities, atol=1e-4), "padding changes what a prompt is read as"


def test_an_adapter_on_another_base_is_refused(causal, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(base("causal"), other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 77.0, "hidden_act": "gelu"}))
    with pytest.raises(ModelError, match="allowed: the base that the adapter was trained on"):
        open_reader(causal / "out", base=other)


def test_a_card_says_all_that_is_needed_to_make_and_to_serve_it(causal, rows):
    card = read_card(causal / "out")
    assert card.kind == "perception"
    assert card.format == "transformers"
    assert list(card.data_sha256) == [rows.name]
    assert "--base" in card.command
    details = details_of(card)
    assert details.kind == "causal"
    assert details.task_temperature > 0


@pytest.mark.vllm
async def test_vllm_with_the_adapter_reads_as_the_process_does(causal, rows, tmp_path):
    views = [row.view() for row in read_rows([rows])[::8]]
    here = open_reader(causal / "out").read(views)
    with vllm_with_adapter(base("causal"), causal / "out" / "adapter", tmp_path / "vllm.log") as url:
        reader = open_endpoint(url, "perception", "", causal / "out")
        # The first answer waits for vLLM to compile the form, which the reader, rightly, does not.
        deadline_s, read = time.monotonic() + 300, False
        while not read:
            with contextlib.suppress(ModelError):
                read = bool((await reader.read_async(views[:1]))[0].probabilities)
            assert time.monotonic() < deadline_s, (tmp_path / "vllm.log").read_text(errors="replace")[-4000:]
        patient = EndpointReader(url, "perception", details=details_of(read_card(causal / "out")), timeout_s=120)
        there = await patient.read_async(views)
    assert all(reading.probabilities for reading in there)
    gaps = [np.abs(np.subtract(a.probabilities, b.probabilities)).max() for a, b in zip(here, there, strict=True)]
    assert max(gaps) < 1e-3
    # An engine may write the same words in other tokens, after which the length is weighed a little differently.
    apart = [np.abs(np.subtract(a.log_lengths, b.log_lengths)).max() for a, b in zip(here, there, strict=True)]
    assert np.median(apart) < 0.05


def test_every_pass_draws_and_sends_its_rows_anew_and_the_same_in_every_process(rows, tmp_path):
    from hmas.agents.perception.lm.passes import Passes
    from hmas.agents.perception.lm.train import TrainSettings

    settings = TrainSettings(base=base("causal"), data=(rows,), out=tmp_path, work=tmp_path, epochs=2.5, batch=16, seed=3)
    given = read_rows([rows])
    made = [Passes(given, [], settings, lambda view, label, tokens: {"labels": [label, tokens], "input_ids": [hash(view)]}) for _ in "ab"]
    assert len(made[0]) == 2.5 * made[0].rows == 2.5 * len(given)
    seen = [made[0][index] for index in range(len(made[0]))]
    assert [made[1][index] for index in reversed(range(len(seen)))] == seen[::-1]
    assert len({example["input_ids"][0] for example in seen}) > 0.9 * len(seen), "rows come back in other shapes"


def test_a_step_whose_gradient_is_not_finite_changes_no_weight():
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from hmas.agents.perception.lm.fitting import Sound

    told: list[str] = []
    sound, layer = Sound(told.append), torch.nn.Linear(2, 2)
    rest = (TrainingArguments(output_dir="unused", report_to="none"), TrainerState(), TrainerControl())
    for value, left_out in ((1.0, 0), (float("nan"), 1), (float("inf"), 2)):
        for weight in layer.parameters():
            weight.grad = torch.full_like(weight, value)
        sound.on_pre_optimizer_step(*rest, model=layer)
        assert sound.left_out == left_out
        assert all((weight.grad is None) is (left_out > 0) for weight in layer.parameters())
    assert "its gradient is not finite" in told[0]


@pytest.mark.parametrize("more", [(), ("--rank", 0, "--learning-rate", 1e-3)])
def test_an_encoder_is_merged_and_beats_chance_and_majority(more, rows, tmp_path):
    told: tuple[Any, ...] = (
        "--base",
        base("encoder"),
        "--data",
        rows,
        "--out",
        tmp_path / "out",
        "--merge",
        *SMALL,
        *more,
        "--epochs",
        16,
        "--eval-every",
        20,
    )
    run = Training(tmp_path / "log", *told)
    assert run.wait() == 0, run.said()
    judge(tmp_path / "out")
    assert details_of(read_card(tmp_path / "out")).weights == "merged"
    assert (tmp_path / "out" / "merged" / "model.safetensors").is_file()
    assert agrees(tmp_path / "out", rows) > PASSED


def test_an_interrupt_leaves_a_checkpoint_and_a_run_without_progress_stops_early(rows, tmp_path):
    told: tuple[Any, ...] = ("--base", base("encoder"), "--data", rows, "--out", tmp_path / "out", "--excerpt-chars", 80, "--batch", 16)
    # A rate at which nothing is learnt: no look at the validation rows betters the first one.
    told = (*told, "--learning-rate", 1e-7, "--epochs", 400, "--eval-every", 2, "--patience", 2)
    first = Training(tmp_path / "first.log", *told)
    first.until("step 2 of")
    assert first.send(signal.SIGINT) == 130, first.said()
    assert "--resume goes on from there" in first.said()
    assert list((tmp_path / "out.work").glob("checkpoint-*/trainer_state.json"))
    second = Training(tmp_path / "second.log", *told, "--resume")
    assert second.wait() == 0, second.said()
    run = read_card(tmp_path / "out").metrics["run"]
    assert run["stopped_early"] is True
    assert run["steps"] < 200


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (("--rank", 0), "rank is 0 without merge"),
        (("--targets", "nothing_like_it"), "targets is 'nothing_like_it'"),
        (("--kind", "encoder", "--resume"), "allowed with --resume: the folder of a run"),
    ],
)
def test_what_cannot_be_trained_says_what_is_allowed(told, said, rows, tmp_path):
    run = Training(tmp_path / "log", "--base", base("causal"), "--data", rows, "--out", tmp_path / "out", *told)
    assert run.wait() == 2, run.said()
    assert said in run.said()
    assert not (tmp_path / "out").exists()
