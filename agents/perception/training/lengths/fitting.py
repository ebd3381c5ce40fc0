"""Trains the shipped net of output lengths (`agents.perception.length_net`) on real outputs of language models. Needs torch.

    hmas train lengths --lengths multi_model_output_lengths.csv.gz --prompts multi_model_prompts.jsonl.gz --typed typed_prompts.jsonl.gz

The loss is the pinball loss of the log length at all levels at once, after each model's own verbosity (an offset learnt along, shrunk
towards none) is taken off: so the net speaks of an average model.
"""

import base64
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.perception.length_net import FORMAT
from agents.perception.length_text import DENSE, terms
from agents.perception.training.lengths.corpus import NOT_AS_SERVED, Corpus, Example
from controller.core.errors import ModelError
from controller.core.lengths import LEVELS, MEDIAN, P90

LEAST_DEVIATION = 1e-3
"""Standard deviation below which an input counts as constant."""
LEAST_ANSWERS = 40
"""Answers from which a model's verbosity counts as known."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to train.

    Attributes:
        vocabulary: Terms kept, those of most prompts first.
        least_prompts: Prompts that a term must occur in.
        drop_words: Share of training prompts shown without their text, as where prompts may not leave the gateway.
        drop_terms: Share of a prompt's terms left out at random.
        offset_penalty: Weight of the squared offsets of models.
        held_out: Share of the prompts on which a first run's quantiles are checked.
        widening: What such a check has found before; 0 to check.
        newcomers: What leaving collections out has found before of models never heard of; None to find it.
    """

    seed: int = 7
    vocabulary: int = 6000
    least_prompts: int = 4
    width: int = 24
    hidden: tuple[int, int] = (48, 32)
    epochs: int = 8
    batch: int = 256
    rate: float = 3e-3
    decay: float = 0.05
    drop_words: float = 0.05
    drop_terms: float = 0.35
    drop_hidden: float = 0.15
    offset_penalty: float = 0.02
    held_out: float = 0.15
    widening: float = 0.0
    newcomers: float | None = None


def train(corpus: Corpus, plan: Plan, report: Callable[[str], None]) -> dict[str, Any]:
    """Trains and returns the document of `length_net.FILE`; the same from the same corpus, plan and torch.

    Raises:
        ModelError: torch is not installed, or there is nothing to learn from.
    """
    try:
        import torch  # noqa: PLC0415 - an extra; nothing at run time needs it
    except ImportError as error:
        raise ModelError("training the length model needs torch: install h-mas[train]") from error
    if len(corpus.examples) < plan.batch:
        raise ModelError(f"{len(corpus.examples)} answers to learn from; needed: {plan.batch} or more")
    torch.set_num_threads(1)
    widening = plan.widening or _checked(torch, corpus, plan, report)
    report(f"on prompts held out the quantiles must stand {widening:.2f} times as far apart")
    newcomers = _newcomers(torch, corpus, plan, report) if plan.newcomers is None else plan.newcomers
    report(f"to models never heard of {newcomers:+.2f} is added, as a logarithm; training on all")
    return _Training(torch, corpus, plan).run(report).document(widening) | {"newcomers": round(newcomers, 3)}


def _checked(torch: Any, corpus: Corpus, plan: Plan, report: Callable[[str], None]) -> float:
    """Trains without some of the prompts and measures on these how far apart the quantiles must stand."""
    chosen = np.random.default_rng(plan.seed).random(len(corpus.prompts)) < plan.held_out
    seen, unseen = (
        msgspec.structs.replace(corpus, examples=[example for example in corpus.examples if bool(chosen[example.prompt]) is held])
        for held in (False, True)
    )
    return _Training(torch, seen, plan).run(report).widening(unseen)


def _newcomers(torch: Any, corpus: Corpus, plan: Plan, report: Callable[[str], None]) -> float:
    """What a net is short of where models are served that it was not trained on: each collection is left out in turn and has one vote.

    With so few collections no more than their mean can be had, and one that says nothing is counted in. Collections whose answers are not
    as served (`NOT_AS_SERVED`) have no vote.
    """
    places: dict[str, list[Example]] = defaultdict(list)
    for example in corpus.examples:
        if example.model:
            places[corpus.collections[example.prompt]].append(example)
    votes = []
    for collection, left_out in sorted(places.items()):
        rest = [example for example in corpus.examples if corpus.collections[example.prompt] != collection]
        if collection.startswith(NOT_AS_SERVED) or len(left_out) < LEAST_ANSWERS or len(rest) < plan.batch:
            continue
        fitted = _Training(torch, msgspec.structs.replace(corpus, examples=rest), plan).run(lambda _: None)
        votes.append(fitted.shortfall(left_out))
        report(f"without {collection}: its answers are {votes[-1]:+.2f} off, as a logarithm")
    return sum(votes) / (len(votes) + 1)


class _Training:
    """Net, data and optimiser of one run."""

    def __init__(self, torch: Any, corpus: Corpus, plan: Plan) -> None:
        torch.manual_seed(plan.seed)  # here, so that a run is the same whatever was run before it
        self._torch, self._plan = torch, plan
        self._rng = np.random.default_rng(plan.seed)
        self._vocabulary = _vocabulary(corpus.words, plan)
        rows = {term: row for row, term in enumerate(self._vocabulary)}
        self._known = [np.array([rows[term] for term in _joined(words) if term in rows], np.int64) for words in corpus.words]
        self._mean, deviation = corpus.dense.mean(0), corpus.dense.std(0)
        # An input that is constant is left out: its weights are not trained.
        self._scale = np.where(deviation > LEAST_DEVIATION, 1.0 / np.maximum(deviation, LEAST_DEVIATION), 0.0).astype(np.float32)
        self._scale[DENSE.index("hidden")] = 1.0
        self._low, self._high = corpus.dense.min(0), corpus.dense.max(0)
        self._high[DENSE.index("hidden")] = 1.0
        self._dense = (corpus.dense - self._mean) * self._scale
        self._dense_alone = (_without_text(corpus.dense) - self._mean) * self._scale
        self._answers = Counter(example.model for example in corpus.examples)
        self._models = sorted(self._answers)
        numbers = {model: number for number, model in enumerate(self._models)}
        self._prompt = np.array([example.prompt for example in corpus.examples])
        self._model = torch.tensor([numbers[example.model] for example in corpus.examples])
        self._target = torch.tensor([example.log_length for example in corpus.examples], dtype=torch.float32)
        self._weight = torch.tensor([example.weight for example in corpus.examples], dtype=torch.float32)
        self._build()

    def _build(self) -> None:
        nn, plan = self._torch.nn, self._plan
        first, second = plan.hidden
        self._embedding = nn.EmbeddingBag(len(self._vocabulary), plan.width, mode="sum")
        nn.init.normal_(self._embedding.weight, std=0.1)
        self._layers = nn.ModuleList([nn.Linear(plan.width + len(DENSE), first), nn.Linear(first, second), nn.Linear(second, len(LEVELS))])
        with self._torch.no_grad():
            self._layers[2].bias[MEDIAN] = float(np.average(self._target.numpy(), weights=self._weight.numpy()))
        self._offsets = nn.Parameter(self._torch.zeros(len(self._models)))
        # References are moved beforehand: they have no verbosity to learn.
        self._spoken = self._torch.tensor([float(model != "") for model in self._models])
        self._optimiser = self._torch.optim.AdamW(
            [
                {"params": [*self._embedding.parameters(), *self._layers.parameters()], "weight_decay": plan.decay},
                {"params": [self._offsets], "weight_decay": 0.0},
            ],
            lr=plan.rate,
        )
        steps = plan.epochs * math.ceil(len(self._prompt) / plan.batch)
        self._schedule = self._torch.optim.lr_scheduler.OneCycleLR(self._optimiser, plan.rate, total_steps=steps, pct_start=0.1)

    def run(self, report: Callable[[str], None]) -> "_Training":
        """Trains to the end."""
        for epoch in range(self._plan.epochs):
            report(f"epoch {epoch + 1} of {self._plan.epochs}: pinball loss {self._epoch():.4f}")
        return self

    def widening(self, unseen: Corpus) -> float:
        """By how much the stated distances from the median must grow for four fifths of models' answers to fall within the outer deciles.

        A net knows the prompts that it was trained on better than those it will meet.
        """
        examples = [example for example in unseen.examples if example.model in self._answers and example.model]
        if len(examples) < LEAST_ANSWERS:
            return 1.0
        numbers = {model: number for number, model in enumerate(self._models)}
        prompts = np.array([example.prompt for example in examples])
        with self._torch.no_grad():
            raw, _ = self._outputs([self._known[prompt] for prompt in prompts], self._dense[prompts])
            stated = _spread(self._torch, raw).numpy()
            offsets = (self._offsets * self._spoken).numpy()[[numbers[example.model] for example in examples]]
        away = np.array([example.log_length for example in examples]) - offsets - stated[:, MEDIAN]
        step = np.where(away > 0.0, stated[:, P90] - stated[:, MEDIAN], stated[:, MEDIAN] - stated[:, 0])
        order = np.argsort(np.abs(away) / step)
        weight = np.cumsum(np.array([example.weight for example in examples])[order])
        return float((np.abs(away) / step)[order][np.searchsorted(weight, 0.8 * weight[-1])])

    def shortfall(self, unseen: Sequence[Example]) -> float:
        """Weighted median of what log lengths exceed stated medians by, verbosity of known models aside; prompts are the corpus's."""
        numbers = {model: number for number, model in enumerate(self._models)}
        prompts = np.array([example.prompt for example in unseen])
        with self._torch.no_grad():
            raw, _ = self._outputs([self._known[prompt] for prompt in prompts], self._dense[prompts])
            offsets = [*(self._offsets * self._spoken).tolist(), 0.0]
        away = np.array([example.log_length - offsets[numbers.get(example.model, -1)] for example in unseen]) - raw[:, MEDIAN].numpy()
        order = np.argsort(away)
        weight = np.cumsum(np.array([example.weight for example in unseen])[order])
        return float(away[order][np.searchsorted(weight, 0.5 * weight[-1])])

    def _epoch(self) -> float:
        """Goes once through all examples; mean pinball loss."""
        torch, plan = self._torch, self._plan
        levels = torch.tensor(LEVELS)
        order = self._rng.permutation(len(self._prompt))
        total = 0.0
        for begin in range(0, len(order), plan.batch):
            batch = order[begin : begin + plan.batch]
            raw, _ = self._outputs(*self._disturbed(self._prompt[batch]), drop=plan.drop_hidden)
            offsets = self._offsets * self._spoken
            miss = self._target[batch][:, None] - _spread(torch, raw) - offsets[self._model[batch]][:, None]
            weight = self._weight[batch]
            loss = (torch.maximum(levels * miss, (levels - 1.0) * miss).mean(1) * weight).sum() / weight.sum()
            full = loss + plan.offset_penalty * offsets.square().mean()
            self._optimiser.zero_grad()
            full.backward()
            self._optimiser.step()
            self._schedule.step()
            total += loss.item() * len(batch)
        return total / len(order)

    def _disturbed(self, chosen: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], NDArray[np.float32]]:
        """Terms and dense features of prompts, some terms left out, some texts hidden."""
        bags, dense = [], self._dense[chosen].copy()
        for place, number in enumerate(chosen):
            bag = self._known[number]
            if self._rng.random() < self._plan.drop_words:
                bag, dense[place] = bag[:0], self._dense_alone[number]
            bags.append(bag[self._rng.random(len(bag)) >= self._plan.drop_terms])
        return bags, dense

    def _outputs(self, bags: list[NDArray[np.int64]], dense: NDArray[np.float32], *, drop: float = 0.0) -> tuple[Any, Any]:
        """Last layer's numbers and the hidden layer before it."""
        torch = self._torch
        sizes = np.array([len(bag) for bag in bags])
        starts = torch.from_numpy(np.concatenate(([0], np.cumsum(sizes)[:-1])))
        pooled = self._embedding(torch.from_numpy(np.concatenate(bags)), starts)
        pooled = pooled / torch.from_numpy(np.sqrt(np.maximum(sizes, 1)))[:, None].float()
        hidden = torch.relu(self._layers[0](torch.cat((pooled, torch.from_numpy(dense)), 1)))
        hidden = torch.relu(self._layers[1](torch.nn.functional.dropout(hidden, drop, training=drop > 0.0)))
        return self._layers[2](hidden), hidden

    def document(self, widening: float) -> dict[str, Any]:
        """The trained net as its file holds it."""
        with self._torch.no_grad():
            parts = [
                self._outputs(self._known[begin : begin + 512], self._dense[begin : begin + 512])[1].numpy()
                for begin in range(0, len(self._known), 512)
            ]
            hidden = np.concatenate(parts)
            table = self._embedding.weight.numpy()
            offsets = (self._offsets * self._spoken).tolist()
        matrices = [matrix.detach().numpy() for layer in self._layers for matrix in (layer.weight, layer.bias)]
        unit = np.maximum(np.abs(table).max(0), 1e-6) / 127.0
        deviation = hidden.std(0)
        return {
            "format": FORMAT,
            "levels": list(LEVELS),
            "dense": list(DENSE),
            "vocabulary": self._vocabulary,
            "width": self._plan.width,
            "hidden": list(self._plan.hidden),
            "embedding": _encoded(np.round(table / unit), "<i1"),
            "embedding_scale": _rounded(unit),
            "dense_mean": _rounded(self._mean),
            "dense_scale": _rounded(self._scale),
            "dense_low": _rounded(self._low),
            "dense_high": _rounded(self._high),
            "layers": [_encoded(matrix, "<f2") for matrix in matrices],
            "hidden_mean": _rounded(hidden.mean(0)),
            # A unit that never fires tells nothing, now or later.
            "hidden_scale": _rounded(np.where(deviation > 1e-3, 1.0 / np.maximum(deviation, 1e-3), 0.0)),
            "widening": round(widening, 4),
            "offsets": {
                model: round(offset, 3)
                for model, offset in zip(self._models, offsets, strict=True)
                if model and self._answers[model] >= LEAST_ANSWERS
            },
        }


def write(document: dict[str, Any], path: Path) -> None:
    """Writes the net's file, whole or not at all."""
    half_done = path.with_suffix(".tmp")
    half_done.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    half_done.replace(path)


def _vocabulary(words: Sequence[list[str]], plan: Plan) -> list[str]:
    counts = Counter(term for prompt in words for term in set(terms(prompt)))
    kept = [(-count, term if isinstance(term, str) else " ".join(term)) for term, count in counts.items() if count >= plan.least_prompts]
    return [term for _, term in sorted(kept)[: plan.vocabulary]]


def _joined(words: list[str]) -> list[str]:
    return [term if isinstance(term, str) else " ".join(term) for term in terms(words)]


def _without_text(dense: NDArray[np.float32]) -> NDArray[np.float32]:
    """What is left to tell of prompts whose text is not shared."""
    left = dense.copy()
    for name in ("log_lines", "bullets", "code", "question", "other_scripts", "demands", "log_demand", "ask_words"):
        left[:, DENSE.index(name)] = 0.0
    left[:, DENSE.index("hidden")] = 1.0
    return left


def _spread(torch: Any, raw: Any) -> Any:
    """As `length_net.spread`, for batches."""
    steps = torch.nn.functional.softplus(raw)
    middle = raw[:, MEDIAN : MEDIAN + 1]
    above = middle + torch.cumsum(steps[:, MEDIAN + 1 :], 1)
    below = middle - torch.flip(torch.cumsum(torch.flip(steps[:, :MEDIAN], [1]), 1), [1])
    return torch.cat((below, middle, above), 1)


def _encoded(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def _rounded(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
