"""Trains the model of output lengths (`hmas.agents.perception.lengths.base`) on answers of language models: `hmas train lengths`.

Each model's own verbosity is taken off the log lengths first (an additive fit, shrunk), so that what is learnt is of an average model.
A ridge regression of that on words and pairs gives every term its weight; the trees learn from the score of questions which the regression
had not seen (five folds), so that they trust it no more than it deserves.
"""

import base64
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import catboost
import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]  # it ships no types
from scipy.sparse.linalg import LinearOperator, cg  # type: ignore[import-untyped]  # likewise

from hmas.agents.perception.lengths.base import FORMAT, INPUTS, LengthBase, Stored
from hmas.agents.perception.lengths.text import NUMBERS, QuestionFeatures, terms
from hmas.agents.perception.training.answers import Corpus, Example
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS, MEDIAN, P90

Floats = NDArray[np.float64]

LEAST_ANSWERS = 40
"""Answers, to prompts that others answered too, from which a model's verbosity counts as known."""
LONGEST_SHARE = 0.999
HIDDEN_NUMBERS = ("log_tokens", "log_chars", "log_chars_per_token")
"""What is left to tell of a question whose text is not shared."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to train.

    Attributes:
        vocabulary: Terms kept, those of most questions first; `least_prompts` is in how many a term must occur.
        ridge: Strength of the regression on terms.
        trees, depth, rate, leaf_ridge: Of the boosted trees.
        hidden: Share of the questions shown a second time without their text, as where prompts may not leave the gateway.
        shrinkage: Answers that the absence of a model's verbosity counts for.
        held_out: Share of the questions on which a first run's quantiles are checked.
        widening: What such a check has found before; 0 to check.
    """

    seed: int = 7
    vocabulary: int = 6000
    least_prompts: int = 4
    ridge: float = 1.0
    trees: int = 250
    depth: int = 4
    rate: float = 0.08
    leaf_ridge: float = 8.0
    folds: int = 5
    hidden: float = 0.1
    shrinkage: float = 8.0
    held_out: float = 0.15
    widening: float = 0.0


def fit_checked(corpus: Corpus, plan: Plan, report: Callable[[str], None]) -> dict[str, Any]:
    """Trains and returns the document of `length_base.FILE`; the same from the same corpus, plan and CatBoost.

    Raises:
        ModelError: There is too little to learn from.
    """
    if len(corpus.examples) < LEAST_ANSWERS:
        raise ModelError(f"{len(corpus.examples)} answers to learn from; needed: {LEAST_ANSWERS} or more")
    widening = plan.widening or _checked(corpus, plan)
    report(f"on questions held out the quantiles must stand {widening:.2f} times as far apart; training on all")
    return fit(corpus, plan) | {"widening": round(widening, 4)}


def fit(corpus: Corpus, plan: Plan) -> dict[str, Any]:
    """One fit on all answers of a corpus, as `fit_checked` without its check: a widening of 1."""
    prompt = np.array([example.prompt for example in corpus.examples])
    weight = np.array([example.weight for example in corpus.examples])
    offsets = _verbosity(corpus.examples, plan.shrinkage)
    target = np.array([example.log_length - offsets.get(example.model, 0.0) for example in corpus.examples])
    bags = [terms(words) for words in corpus.words]
    vocabulary = _vocabulary([bags[number] for number in np.unique(prompt)], plan)
    matrix = _matrix(bags, vocabulary)
    rng = np.random.default_rng(plan.seed)
    fold = rng.integers(0, plan.folds, len(bags))
    score: Floats = np.zeros(len(bags))
    for held in range(plan.folds):
        seen = fold[prompt] != held
        if seen.any():
            intercept, weights = _ridge(matrix[prompt[seen]], target[seen], weight[seen], plan.ridge)
            score[fold == held] = intercept + matrix[fold == held] @ weights
    intercept, weights = _ridge(matrix[prompt], target, weight, plan.ridge)
    rows = np.column_stack((corpus.numbers, score)).astype(np.float32)
    unseen = _without_text(rows, intercept)
    again = rng.random(len(prompt)) < plan.hidden
    inputs = np.concatenate((rows[prompt], unseen[prompt[again]]))
    booster = catboost.CatBoostRegressor(
        loss_function="MultiQuantile:alpha=" + ",".join(map(str, LEVELS)),
        iterations=plan.trees,
        depth=plan.depth,
        learning_rate=plan.rate,
        l2_leaf_reg=plan.leaf_ridge,
        thread_count=1,
        random_seed=plan.seed,
        allow_writing_files=False,
        verbose=False,
    )
    booster.fit(catboost.Pool(inputs, np.concatenate((target, target[again])), weight=np.concatenate((weight, weight[again]))))
    of_prompt = Counter(example.prompt for example in corpus.examples)
    compared = Counter(example.model for example in corpus.examples if of_prompt[example.prompt] > 1)
    longest = [math.exp(example.log_length) for example in corpus.examples if example.model] or [float(np.exp(target.max()))]
    return {
        "format": FORMAT,
        "levels": list(LEVELS),
        "inputs": list(INPUTS),
        "ranges": list(zip(_rounded(inputs.min(0), down=True), _rounded(inputs.max(0), down=False), strict=True)),
        "terms": vocabulary,
        "weights": [round(float(value), 4) for value in weights],
        "intercept": round(intercept, 4),
        "trees": trees_of(booster, plan.depth),
        "widening": 1.0,
        "offsets": {model: round(offset, 3) for model, offset in sorted(offsets.items()) if compared[model] >= LEAST_ANSWERS},
        "longest": round(float(np.quantile(longest, LONGEST_SHARE))),
    }


def write(document: dict[str, Any], path: Path) -> None:
    """Writes the model's file, whole or not at all."""
    half_done = path.with_suffix(".tmp")
    half_done.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    half_done.replace(path)


def _checked(corpus: Corpus, plan: Plan) -> float:
    """By how much the stated distances from the median must grow for four fifths of the answers to questions which a fit has not seen to
    fall between its outer deciles, models' verbosity aside.
    """
    chosen = np.random.default_rng(plan.seed).random(len(corpus.prompts)) < plan.held_out
    fitted = _opened(fit(_with(corpus, [example for example in corpus.examples if not chosen[example.prompt]]), plan))
    examples = [example for example in corpus.examples if chosen[example.prompt] and example.model in fitted.offsets]
    if len(examples) < LEAST_ANSWERS:
        return 1.0
    stated = _stated(fitted, corpus, examples)
    away = np.array([example.log_length - fitted.offsets[example.model] for example in examples]) - stated[:, MEDIAN]
    step = np.where(away > 0.0, stated[:, P90] - stated[:, MEDIAN], stated[:, MEDIAN] - stated[:, 0])
    return _weighted_quantile(np.abs(away) / np.maximum(step, 1e-6), [example.weight for example in examples], 0.8)


def _with(corpus: Corpus, examples: list[Example]) -> Corpus:
    return msgspec.structs.replace(corpus, examples=examples)


def _opened(document: dict[str, Any]) -> LengthBase:
    return LengthBase(msgspec.convert(document, Stored))


def _stated(fitted: LengthBase, corpus: Corpus, examples: Sequence[Example]) -> Floats:
    told = {
        number: fitted.tell(QuestionFeatures(corpus.words[number], corpus.numbers[number].tolist())).log_lengths
        for number in {example.prompt for example in examples}
    }
    return np.array([told[example.prompt] for example in examples])


def _verbosity(examples: Sequence[Example], shrinkage: float, rounds: int = 10) -> dict[str, float]:
    """Each model's mean log length beside that of other models on the same prompts, shrunk towards none.

    References, which have no model, were moved to what models write beforehand: they have no verbosity.
    """
    names = sorted({example.model for example in examples} | {""})
    numbers = {name: number for number, name in enumerate(names)}
    model = np.array([numbers[example.model] for example in examples])
    prompt = np.unique([example.prompt for example in examples], return_inverse=True)[1]
    length = np.array([example.log_length for example in examples])
    weight = np.array([example.weight for example in examples])
    own = np.array([name != "" for name in names])
    offset: Floats = np.zeros(len(names))
    for _ in range(rounds):
        # From no verbosity on, a prompt that one model alone answered never moves that model: its length may be the prompt's as well.
        of_prompt = np.bincount(prompt, weight * (length - offset[model])) / np.bincount(prompt, weight)
        offset = own * np.bincount(model, weight * (length - of_prompt[prompt]), len(names))
        offset /= np.bincount(model, weight, len(names)) + shrinkage
    return {name: float(offset[number]) for name, number in numbers.items() if name}


def _vocabulary(bags: Sequence[list[str]], plan: Plan) -> list[str]:
    counts = Counter(term for bag in bags for term in bag)
    kept = sorted((-count, term) for term, count in counts.items() if count >= plan.least_prompts)
    return [term for _, term in kept[: plan.vocabulary]]


def _matrix(bags: Sequence[list[str]], vocabulary: Sequence[str]) -> Any:
    """Per question a row that is 1 over the root of the number of its known terms at each of them, as `LengthBase.score` adds them up."""
    columns = {term: column for column, term in enumerate(vocabulary)}
    found = [[columns[term] for term in bag if term in columns] for bag in bags]
    ends = np.concatenate(([0], np.cumsum([len(row) for row in found])))
    values = [1.0 / math.sqrt(len(row)) for row in found for _ in row]
    return csr_matrix((values, [column for row in found for column in row], ends), shape=(len(bags), len(vocabulary)))


def _ridge(matrix: Any, target: Floats, weight: Floats, penalty: float) -> tuple[float, Floats]:
    """Intercept and weights, by conjugate gradients."""
    intercept = float(np.average(target, weights=weight))
    turned, count = matrix.T.tocsr(), matrix.shape[1]
    if not count:
        return intercept, np.zeros(0)
    normal = LinearOperator((count, count), matvec=lambda by: turned @ (weight * (matrix @ by)) + penalty * by, dtype=np.float64)
    weights, _ = cg(normal, turned @ (weight * (target - intercept)), rtol=1e-5, maxiter=300)
    return intercept, weights


def _without_text(rows: NDArray[np.float32], intercept: float) -> NDArray[np.float32]:
    hidden = np.zeros_like(rows)
    for name in HIDDEN_NUMBERS:
        hidden[:, INPUTS.index(name)] = rows[:, INPUTS.index(name)]
    hidden[:, NUMBERS.index("hidden")] = 1.0
    hidden[:, INPUTS.index("word_score")] = intercept
    return hidden


def trees_of(booster: catboost.CatBoostRegressor, depth: int) -> dict[str, Any]:
    """Returns the library's trees in the form of `hmas.agents.perception.lengths.base.Trees`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        booster.save_model(str(path), format="json")
        document = json.loads(path.read_bytes())
    trees = document["oblivious_trees"]
    inputs: NDArray[np.uint8] = np.zeros((len(trees), depth), np.uint8)
    borders: NDArray[np.float32] = np.full((len(trees), depth), np.inf, np.float32)
    leaves: Floats = np.zeros((len(trees), 1 << depth, len(LEVELS)))
    scale, bias = document["scale_and_bias"]
    for number, tree in enumerate(trees):
        for level, split in enumerate(tree["splits"]):
            inputs[number, level], borders[number, level] = split["float_feature_index"], split["border"]
        values = np.array(tree["leaf_values"]).reshape(-1, len(LEVELS)) * scale
        leaves[number, : len(values)] = values
    return {
        "count": len(trees),
        "depth": depth,
        "inputs": _encoded(inputs, "u1"),
        "borders": _encoded(borders, "<f4"),
        "leaves": _encoded(leaves, "<f2"),
        "bias": [float(f"{value:.6g}") for value in bias],
    }


def _encoded(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def _rounded(values: NDArray[Any], *, down: bool) -> list[float]:
    """Five decimals, rounded outwards: no value of training lies outside its range."""
    away = np.floor if down else np.ceil
    return [float(value) for value in away(values.astype(np.float64) * 1e5) / 1e5]


def _weighted_quantile(values: Sequence[float] | Floats, weights: Sequence[float] | Floats, level: float) -> float:
    """Returns the value below which this share of the weight lies."""
    held = np.asarray(values, np.float64)
    order = np.argsort(held)
    heaped = np.cumsum(np.asarray(weights, np.float64)[order])
    return float(held[order][np.searchsorted(heaped, level * heaped[-1])])
