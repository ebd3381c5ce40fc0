"""Fits the shipped model's network to rows. Needs torch; one thread, deterministic from its seed."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from agents.perception.encoder import DENSE, Encoder, pad
from agents.perception.reading import TASKS, PromptView
from agents.perception.text import Vocabulary, words_of
from agents.perception.training.augment import DROP_TEXT, vary
from agents.perception.training.data import Row
from agents.perception.training.generator import GENERATED
from agents.perception.training.network import Network
from controller.core.lengths import LEVELS

KNOWN_WORDS = 12_000
UNKNOWN_BUCKETS = 2_048
PAIR_BUCKETS = 49_152
SIZES_STEPS = 6000
SIZES_RATE, SIZES_DECAY = 0.02, 3e-4
"""Of the layer that answers without text: steps, rate at their start, weight decay; by the cross-entropy of validation rows."""
LEAST_ROWS = 3
"""Rows that must hold a word for it to be known."""
Say = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to train; the model card records it.

    Attributes:
        seed: Of everything that is drawn.
        generated: The project's own prompts that are made.
        epochs, epoch_rows, batch: Passes, rows drawn for each, rows a step.
        own_share: Share of a pass that are the project's own prompts.
        rate: Peak learning rate.
        word_dropout: Words hidden at random.
        smoothing: Label smoothing.
        length_weight: Weight of the length quantiles' loss.
    """

    seed: int = 1
    generated: int = 90_000
    epochs: int = 10
    epoch_rows: int = 24_000
    batch: int = 128
    own_share: float = 0.6
    rate: float = 2e-3
    word_dropout: float = 0.12
    smoothing: float = 0.05
    length_weight: float = 0.25


@dataclass(slots=True)
class Fitted:
    """A trained network with what reads for it.

    Attributes:
        network: In evaluation mode.
        words: The known words in the order of their numbers.
        encoder: Over them.
        temperature: By which logits are divided, fitted on validation rows.
    """

    network: Network
    words: list[str]
    encoder: Encoder
    temperature: float

    def logits(self, views: Sequence[PromptView], batch: int = 256) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Logits before the temperature, and quantiles of log lengths."""
        logits, lengths = [], []
        with torch.no_grad():
            for start in range(0, len(views), batch):
                inputs = {name: torch.from_numpy(array) for name, array in self.encoder.encode(views[start : start + batch]).items()}
                out, quantiles = self.network(**inputs)
                logits.append(out.double().numpy())
                lengths.append(quantiles.double().numpy())
        return np.concatenate(logits), np.concatenate(lengths)


def fit(train: Sequence[Row], own: Sequence[Row], validation: Sequence[Row], settings: Settings, say: Say = lambda _: None) -> Fitted:
    """Trains on `train` and the project's own rows; `validation` sets the temperature and picks nothing else.

    Args:
        train: Labelled rows; those without a licence for training must have been taken out.
        own: Generated rows.
        validation: Rows that are in neither.
        settings: See there.
        say: Told of every pass.
    """
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    words = known_words([*train, *own])
    encoder = Encoder(vocabulary_of(words))
    network = Network(encoder.vocabulary.size, encoder.vocabulary.bag_size)
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=0.02, betas=(0.9, 0.98), fused=True)
    # A handful of rows is not worth a pass of thousands.
    settings = msgspec.structs.replace(settings, epoch_rows=min(settings.epoch_rows, 2 * (len(train) + len(own))))
    steps = settings.epochs * -(-settings.epoch_rows // settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.rate, total_steps=steps, pct_start=0.1)
    draw = _Sampler(train, own, settings, rng)
    taken = 0
    for epoch in range(settings.epochs):
        started, losses = time.perf_counter(), []
        network.train()
        for inputs, labels, lengths in _batches(draw(), encoder, settings, rng):
            logits, quantiles = network(**inputs)
            loss = functional.cross_entropy(logits, labels, label_smoothing=settings.smoothing)
            loss = loss + settings.length_weight * _pinball(quantiles, lengths)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            taken += 1
            if taken < steps:
                schedule.step()
            losses.append(loss.item())
        network.eval()
        fitted = Fitted(network, words, encoder, 1.0)
        right = _accuracy(fitted, validation) if validation else float("nan")
        say(
            f"pass {epoch + 1}/{settings.epochs}: loss {np.mean(losses):.4f}, validation {right:.4f}, {time.perf_counter() - started:.0f} s"
        )
    network.eval()
    fitted = Fitted(network, words, encoder, 1.0)
    if validation:
        logits, _ = fitted.logits([row.view() for row in validation])
        fitted.temperature = temperature_of(logits, np.array([row.label for row in validation]))
    _fit_sizes(fitted, train, settings)
    if validation:
        _temper_sizes(fitted, validation)
    return fitted


def _fit_sizes(fitted: Fitted, rows: Sequence[Row], settings: Settings) -> None:
    """Fits what is said without text to collected rows alone, each once: sizes of generated prompts mean nothing."""
    views = [row.view(features_only=True) for row in rows]
    dense = torch.tensor([fitted.encoder.parts(view)[2] for view in views])
    labels = torch.tensor([row.label for row in rows])
    optimiser = torch.optim.Adam(fitted.network.sizes.parameters(), lr=SIZES_RATE, weight_decay=SIZES_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, SIZES_STEPS)
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(SIZES_STEPS):
        chosen = torch.randint(len(rows), (512,), generator=generator)
        loss = functional.cross_entropy(fitted.network.without_text(dense[chosen]) / fitted.temperature, labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def _temper_sizes(fitted: Fitted, rows: Sequence[Row]) -> None:
    """Scales what is said without text until its confidence is right: sizes deceive in their own way, and the shared temperature stays."""
    logits, _ = fitted.logits([row.view(features_only=True) for row in rows])
    by = temperature_of(logits / fitted.temperature, np.array([row.label for row in rows]))
    with torch.no_grad():
        last = fitted.network.sizes[-1]
        last.weight.div_(by)
        last.bias.div_(by)


def known_words(rows: Sequence[Row]) -> list[str]:
    """The words that most rows hold, in a fixed order."""
    spread: Counter[str] = Counter()
    for row in rows:
        spread.update(set(words_of(row.view().excerpt)))
    ordered = sorted((word for word, count in spread.items() if count >= LEAST_ROWS), key=lambda word: (-spread[word], word))
    return ordered[:KNOWN_WORDS]


def vocabulary_of(words: Sequence[str]) -> Vocabulary:
    """The vocabulary of a list of known words."""
    return Vocabulary({word: index + 1 for index, word in enumerate(words)}, unknown=UNKNOWN_BUCKETS, pairs=PAIR_BUCKETS)


def temperature_of(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Temperature with the least cross-entropy, searched on a grid from 0.4 to 4."""
    grid = np.geomspace(0.4, 4.0, 93)
    losses = []
    for value in grid:
        scaled = logits / value
        top = scaled.max(axis=1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1))
        losses.append(float((log_sum - scaled[np.arange(len(labels)), labels]).mean()))
    return float(grid[int(np.argmin(losses))])


class _Sampler:
    """Draws the rows of a pass: rare sources and templates more often than their number, so that none rules."""

    def __init__(self, train: Sequence[Row], own: Sequence[Row], settings: Settings, rng: np.random.Generator) -> None:
        self._parts = [(rows, share) for rows, share in ((train, 1.0 - settings.own_share), (own, settings.own_share)) if rows]
        self._count, self._rng = settings.epoch_rows, rng
        counts = Counter((row.source, row.task, row.rule) for row in train)
        tasks = Counter(row.task for row in train)
        raw = np.array([counts[row.source, row.task, row.rule] ** -0.4 * tasks[row.task] ** -0.3 for row in train])
        self._weights = raw / raw.sum() if len(raw) else raw

    def __call__(self) -> list[Row]:
        """Rows of one pass."""
        total = sum(share for _, share in self._parts)
        drawn: list[Row] = []
        for rows, share in self._parts:
            count = round(self._count * share / total)
            weights = None if rows[0].source == GENERATED else self._weights
            drawn += [rows[int(index)] for index in self._rng.choice(len(rows), size=count, p=weights)]
        return drawn


Batch = tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]


def _batches(rows: list[Row], encoder: Encoder, settings: Settings, rng: np.random.Generator) -> Iterator[Batch]:
    examples = []
    for row in rows:
        changed = vary(row, rng)
        parts = encoder.parts(changed.view(features_only=bool(rng.random() < DROP_TEXT)))
        length = float(rng.choice(row.lengths)) if row.lengths else float(row.output_tokens)
        examples.append((_hide(parts, encoder.vocabulary, settings.word_dropout, rng), row.label, length))
    # Rows of like length share a batch; batches come in any order.
    order = sorted(range(len(examples)), key=lambda index: len(examples[index][0][0]) + rng.random() * 16)
    starts = list(range(0, len(order), settings.batch))
    rng.shuffle(starts)
    for start in starts:
        chosen = [examples[index] for index in order[start : start + settings.batch]]
        inputs = {name: torch.from_numpy(array) for name, array in pad([parts for parts, _, _ in chosen]).items()}
        yield inputs, torch.tensor([label for _, label, _ in chosen]), torch.tensor([length for _, _, length in chosen])


Parts = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[float]]


def _hide(parts: Parts, vocabulary: Vocabulary, share: float, rng: np.random.Generator) -> Parts:
    """Hides words as if they were unknown, and features of the bag altogether; sometimes the sizes too."""
    words, bag, values = parts
    unknown = rng.integers(vocabulary.size - UNKNOWN_BUCKETS, vocabulary.size, size=len(words))
    words = np.where(rng.random(len(words)) < share, unknown, words)
    bag = bag[rng.random(len(bag)) >= share] if len(bag) > 4 else bag
    if rng.random() < 0.1:
        # Not every client of the reader tells sizes.
        values = [0.0 if name.startswith(("log_", "tokens_")) else value for name, value in zip(DENSE, values, strict=True)]
    return words, bag, values


def _pinball(quantiles: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    there = (tokens > 0).to(quantiles.dtype)
    error = torch.log(tokens.clamp(min=1.0)).unsqueeze(1) - quantiles
    levels = torch.tensor(LEVELS, dtype=quantiles.dtype)
    loss = torch.maximum(levels * error, (levels - 1.0) * error).sum(dim=1)
    return (loss * there).sum() / there.sum().clamp(min=1.0)


def _accuracy(fitted: Fitted, rows: Sequence[Row]) -> float:
    logits, _ = fitted.logits([row.view() for row in rows])
    return float((logits.argmax(axis=1) == np.array([row.label for row in rows])).mean())


def by_task(rows: Sequence[Row]) -> dict[str, int]:
    """Rows of each task, for the model card."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.task.value] += 1
    return {task.value: counts[task.value] for task in TASKS}
