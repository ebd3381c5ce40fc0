"""How much of output lengths can be foretold at all: whose doing they are, and what would be reached by knowing it. Pure.

Each model answered each prompt once, so what is left over holds both the interplay of the two and the chance of sampling: no forecast that
knows the model and the prompt, and not their meeting, gets below it.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.training.answers import LengthRow
from hmas.agents.perception.training.metrics import Score, score
from hmas.controller.core.lengths import LEVELS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDS = 30
LEAST_ANSWERS = 3
"""Answers that a prompt, and a model, must have to be part of the account."""


class Predictability(msgspec.Struct, frozen=True, kw_only=True):
    """The account over rows whose prompts several models answered.

    Attributes:
        rows: Answers counted; `prompts` and `models` likewise.
        prompt_share, model_share, residual_share: Of the variance of log lengths, by an additive fit; they need not sum to 1 where models
            answered different prompts.
        spread_across_models: Median over prompts of the standard deviation of log lengths of the models. `spread_across_prompts` is the
            median over models of that over prompts.
        oracles: What forecasts score that know, of all other rows, the model's mean, the prompt's mean, or both, and the true spread
            around it.
    """

    rows: int
    prompts: int
    models: int
    prompt_share: float
    model_share: float
    residual_share: float
    spread_across_models: float
    spread_across_prompts: float
    oracles: dict[str, Score]


def account(rows: Sequence[LengthRow]) -> Predictability | None:
    """Splits the variance of log lengths; None where too few prompts were answered by several models."""
    prompts, models = _numbers([row.prompt for row in rows]), _numbers([row.model for row in rows])
    lengths = np.log(np.array([row.tokens for row in rows], np.float64))
    kept = np.ones(len(rows), bool)
    for _ in range(5):
        kept &= (np.bincount(prompts[kept], minlength=len(rows))[prompts] >= LEAST_ANSWERS) & (
            np.bincount(models[kept], minlength=len(rows))[models] >= LEAST_ANSWERS
        )
    if kept.sum() < 10 * LEAST_ANSWERS:
        return None
    prompts, models, lengths = _numbers(prompts[kept].tolist()), _numbers(models[kept].tolist()), lengths[kept]
    mean = lengths.mean()
    of_prompt, of_model = np.zeros(prompts.max() + 1), np.zeros(models.max() + 1)
    for _ in range(ROUNDS):
        of_model = _means(models, lengths - mean - of_prompt[prompts])
        of_prompt = _means(prompts, lengths - mean - of_model[models])
    residual = lengths - mean - of_prompt[prompts] - of_model[models]
    # Without the row itself: the means move by its residual over the others.
    answers, asked = np.bincount(prompts)[prompts], np.bincount(models)[models]
    plain_prompt, plain_model = _means(prompts, lengths)[prompts], _means(models, lengths)[models]
    told = {
        "the model's mean": plain_model - (lengths - plain_model) / (asked - 1),
        "the prompt's mean": plain_prompt - (lengths - plain_prompt) / (answers - 1),
        "both": lengths - residual - residual / (answers - 1) - residual / (asked - 1),
    }
    variance = float(lengths.var())
    return Predictability(
        rows=len(lengths),
        prompts=len(of_prompt),
        models=len(of_model),
        prompt_share=round(float(of_prompt[prompts].var()) / variance, 4),
        model_share=round(float(of_model[models].var()) / variance, 4),
        residual_share=round(float(residual.var()) / variance, 4),
        spread_across_models=round(float(np.median(_deviations(prompts, lengths))), 4),
        spread_across_prompts=round(float(np.median(_deviations(models, lengths))), 4),
        oracles={name: score(middle[:, None] + np.quantile(lengths - middle, LEVELS), lengths) for name, middle in told.items()},
    )


def _numbers(names: Sequence[str] | Sequence[int]) -> Ints:
    return np.asarray(np.unique(np.array(names), return_inverse=True)[1], np.int64)


def _means(groups: Ints, values: Floats) -> Floats:
    return np.asarray(np.bincount(groups, values) / np.maximum(1, np.bincount(groups)), np.float64)


def _deviations(groups: Ints, values: Floats) -> Floats:
    squares = _means(groups, (values - _means(groups, values)[groups]) ** 2)
    return np.sqrt(squares)
