"""Answers that a length model learns from and is judged on: files, scores, and forecasts that get better as answers come."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm  # type: ignore[import-untyped]  # it ships no types

from hmas.agents.perception.lengths.base import SHIPPED, load
from hmas.agents.perception.tagging import RulesReader
from hmas.agents.perception.training.answers import LengthRow, corpus_of, read_answers, view_of
from hmas.agents.perception.training.evaluation import evaluate_lengths
from hmas.agents.perception.training.metrics import score
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.types import TaskType


def written(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_answers_are_those_of_models_in_files_of_either_kind(tmp_path):
    row = {"prompt": "hi", "task_type": "QA", "source": "s", "output_tokens": 5}
    typed = written(tmp_path / "typed.jsonl", *({**row, "output_origin": origin} for origin in ("llm:gpt-4", "human", None)))
    assert read_answers([typed]) == [LengthRow("s", "hi", "gpt-4", 5, TaskType.QA)]
    plain = written(tmp_path / "plain.jsonl", {"prompt": "hi", "model": "m", "output_tokens": 7, "weight": 0.5, "log_shift": -1.5})
    assert read_answers([plain]) == [LengthRow("plain.jsonl", "hi", "m", 7, weight=0.5, shift=-1.5)]
    (one, other) = corpus_of(read_answers([plain, typed])).examples
    assert (one.prompt, other.prompt) == (0, 0)
    assert one.log_length == pytest.approx(math.log(7) - 1.5)
    assert (one.weight, other.weight) == pytest.approx((0.5 / math.sqrt(2), 1 / math.sqrt(2)))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"output_tokens": "many"}, "output_tokens is 'many'; allowed: a number from 1"),
        ({"output_tokens": -3}, "output_tokens is -3"),
        ({"prompt": 5}, "prompt is 5; allowed: a text"),
        ({"task_type": "Nonsense"}, "task_type is 'Nonsense'"),
        ({"weight": 0}, "weight is 0; allowed: a number from"),
        ({"log_shift": float("nan")}, "log_shift is nan"),
    ],
)
def test_a_bad_value_is_named_with_its_line(tmp_path, row, words):
    path = written(tmp_path / "bad.jsonl", {"prompt": "x", "model": "m", "output_tokens": 3} | row)
    with pytest.raises(ModelError, match=r"bad\.jsonl:1: ") as failure:
        read_answers([path])
    assert words in str(failure.value)


def test_a_file_without_answers_says_what_is_needed(tmp_path):
    with pytest.raises(ModelError, match="prompt, output_tokens and model"):
        read_answers([written(tmp_path / "none.jsonl", {"prompt": "x", "output_tokens": 3})])


def test_a_long_prompt_is_shown_as_the_gateway_shows_it():
    view = view_of(LengthRow("d", "a" * 5000 + "z" * 800, "m", 3))
    assert len(view.excerpt) == 1200 + 5 + 800
    assert view.excerpt.endswith("z" * 800)
    assert view.prompt_chars == 5800
    assert view.prompt_tokens > 1000


def test_true_quantiles_score_well_and_false_ones_do_not():
    rng = np.random.default_rng(1)
    centres = rng.normal(5.0, 1.0, 20_000)
    lengths = centres + rng.normal(0.0, 0.5, 20_000)
    steps = np.array([norm.ppf(level) for level in LEVELS]) * 0.5
    true, narrow, blind = (
        score(stated, lengths)
        for stated in (centres[:, None] + steps, centres[:, None] + 0.5 * steps, 5.0 + 0.0 * centres[:, None] + steps)
    )
    assert true.worst_gap < 0.01 < narrow.worst_gap
    assert true.pinball < min(narrow.pinball, blind.pinball)
    assert true.kendall_tau > 0.6
    assert blind.kendall_tau == 0.0
    assert true.mae_log == pytest.approx(0.5 * math.sqrt(2 / math.pi), rel=0.03)


def test_forecasts_get_better_as_answers_come():
    rng = np.random.default_rng(1)
    rows = [
        LengthRow("d", f"{ask} {number}.", f"model-{model}", max(1, int(base * 3.0**model * rng.lognormal(0.0, 0.2))))
        for ask, base in (("Write a story about", 400), ("Answer in a word:", 8))
        for number in range(40)
        for model in range(3)
    ]
    found = evaluate_lengths(RulesReader(), load(SHIPPED), rows, least=0.5)
    assert set(found) == {"cold", "as it comes"}
    assert found["cold"].rows == found["as it comes"].rows == len(rows)
    assert found["as it comes"].pinball < 0.8 * found["cold"].pinball
    assert found["as it comes"].kendall_tau > found["cold"].kendall_tau
    assert evaluate_lengths(RulesReader(), load(SHIPPED), rows, least=0.5) == found
