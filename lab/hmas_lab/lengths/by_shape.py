"""Judges output-length forecasts by the shape of the request: real bodies, read as a gateway reads them, of prompts held out of training.

A length is that of the question's answer, whatever a client sends around the question. So each judged answer is forecast once in every
shape, under a model's name that nothing is known of, cold and after so many answers of mixed traffic: every shape in turn, half of it with
a cap. System prompts are those kept for judging.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lengths.base import LengthBase
from hmas.agents.perception.lengths.model import Forecast, LengthModel
from hmas.agents.perception.reading import PromptView, Reading
from hmas.agents.perception.training.answers import LengthRow
from hmas.agents.perception.training.data import view_of_prompt
from hmas.agents.perception.training.metrics import Score, score
from hmas.controller.core.client_bodies import Shape
from hmas.controller.core.types import TaskType

SHAPES = (Shape.COMPLETION, Shape.CHAT, Shape.SYSTEM, Shape.LONG_SYSTEM, Shape.HISTORY_1, Shape.HISTORY_4, Shape.TOOLS)
"""The first is the bare prompt, beside which the others are judged."""
AFTER = (0, 100, 1000)
"""Answers learnt."""
ORDERS = 4
JUDGED = 200
"""Answers judged after each order of arrival, each in every shape."""
CAP = 512
"""`max_tokens` of every other request that is learnt from."""
MODEL = "sim"
TENANT = "evaluation"

Read = Callable[[Sequence[PromptView]], Sequence[tuple[Reading, TaskType]]]
Floats = NDArray[np.float64]


def by_shape(rows: Sequence[LengthRow], read: Read, base: LengthBase | None, *, seed: int) -> dict[str, dict[str, Score]]:
    """Scores by answers learnt and by shape.

    Args:
        rows: Answers to prompts that `base` was not trained on.
        read: The reader, with the task type that its reading leads to.
        base: As in `LengthModel`.
        seed: Of the orders of arrival.

    Returns:
        By the number of answers learnt, as text, and by shape. Where there are fewer rows, the later numbers are left out.
    """
    stated: dict[tuple[int, Shape], list[tuple[float, ...]]] = {}
    came: dict[int, list[float]] = {}
    for order in range(ORDERS):
        # One answer a prompt: a few prompts with many answers each would outvote the others.
        rng = np.random.default_rng([seed, order])
        drawn = list({rows[place].prompt: rows[place] for place in rng.permutation(len(rows))}.values())
        shuffled = [drawn[place] for place in rng.permutation(len(drawn))]
        judged, taught = shuffled[:JUDGED], shuffled[JUDGED : JUDGED + AFTER[-1]]
        model = LengthModel(base)
        views = {shape: [_view(rows, row, shape) for row in judged] for shape in SHAPES}
        readings = {shape: read(views[shape]) for shape in SHAPES}
        asked = [_view(rows, row, SHAPES[number % len(SHAPES)], CAP * (number % 2)) for number, row in enumerate(taught)]
        learnt = read(asked)
        for answers in range(len(taught) + 1):
            if answers in AFTER:
                came.setdefault(answers, []).extend(math.log(row.tokens) for row in judged)
                for shape in SHAPES:
                    found = [_forecast(model, view, seen) for view, seen in zip(views[shape], readings[shape], strict=True)]
                    stated.setdefault((answers, shape), []).extend(forecast.log_quantiles for forecast in found)
            if answers < len(taught):
                row, view = taught[answers], asked[answers]
                model.learn(_forecast(model, view, learnt[answers]), min(row.tokens, view.max_output_tokens or row.tokens))
    return {
        str(answers): {shape.value: score(np.array(stated[answers, shape]), np.array(lengths)) for shape in SHAPES}
        for answers, lengths in came.items()
    }


def beside_bare(scores: Mapping[str, Score]) -> dict[str, tuple[float, float]]:
    """By shape, its MAE of log lengths and its pinball loss over those of the bare prompt."""
    bare = scores[SHAPES[0].value]
    return {shape: (found.mae_log / bare.mae_log, found.pinball / bare.pinball) for shape, found in scores.items()}


def _view(rows: Sequence[LengthRow], row: LengthRow, shape: Shape, cap: int = 0) -> PromptView:
    """The row's prompt in a shape; histories are of other prompts."""
    chance = np.random.default_rng([len(row.prompt), row.tokens])
    others = [rows[place].prompt for place in chance.integers(0, len(rows), 8)]
    exchanges = [(asked[:600], answered[:600]) for asked, answered in zip(others[::2], others[1::2], strict=True)]
    return view_of_prompt(row.prompt, shape, exchanges=exchanges, max_tokens=cap or None, holdout=True)


def _forecast(model: LengthModel, view: PromptView, seen: tuple[Reading, TaskType]) -> Forecast:
    return model.forecast(view, seen[0], task=seen[1], tenant=TENANT, model=MODEL)
