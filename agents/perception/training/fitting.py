"""Fits the shipped model's network to rows. Needs torch; one thread, deterministic from its seed."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from hmas.agents.model_store.ranges import ranges_of
from hmas.agents.perception.encoder import DENSE, Encoder
from hmas.agents.perception.reading import TASKS, PromptView
from hmas.agents.perception.text import Vocabulary, words_of
from hmas.agents.perception.training.clients import Clients
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.feeding import UNKNOWN_BUCKETS, Sampler, Settings, batches_of, examples_of
from hmas.agents.perception.training.metrics import temperature_of
from hmas.agents.perception.training.network import Network
from hmas.controller.core.lengths import LEVELS

KNOWN_WORDS = 12_000
PAIR_BUCKETS = 49_152
SIZES_STEPS = 6000
SIZES_RATE, SIZES_DECAY = 0.02, 3e-4
"""Of the layer that answers without text: steps, rate at their start, weight decay; by the cross-entropy of validation rows."""
LEAST_ROWS = 3
"""Rows that must hold a word for it to be known."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Fitted:
    """A trained network with what reads for it.

    Attributes:
        network: In evaluation mode.
        words: The known words in the order of their numbers.
        temperature: By which logits are divided, fitted on validation rows.
        ranges: Lowest and highest value of each dense input that it was shown.
    """

    network: Network
    words: list[str]
    encoder: Encoder
    temperature: float
    ranges: dict[str, tuple[float, float]]

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
    """Trains on `train` and the project's own, generated rows; `validation` sets the temperature and picks nothing else.

    No row may be without a licence for training, and `validation` has none of the others. `say` is told of every pass.
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
    draw = Sampler(train, own, settings, rng)
    clients = Clients([*train, *own])
    seen: list[list[float]] = []
    taken = 0
    for epoch in range(settings.epochs):
        started, losses = time.perf_counter(), []
        network.train()
        examples = examples_of(draw(), clients, encoder, settings, rng)
        columns = list(zip(*(parts.dense for parts, _, _ in examples), strict=True))
        seen += [list(map(min, columns)), list(map(max, columns))]
        for inputs, labels, lengths in batches_of(examples, settings, rng):
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
        fitted = Fitted(network, words, encoder, 1.0, {})
        right = _accuracy(fitted, validation) if validation else float("nan")
        say(
            f"pass {epoch + 1}/{settings.epochs}: loss {np.mean(losses):.4f}, validation {right:.4f}, {time.perf_counter() - started:.0f} s"
        )
    network.eval()
    fitted = Fitted(network, words, encoder, 1.0, ranges_of(DENSE, seen))
    sent = np.random.default_rng(settings.seed)
    if validation:
        logits, _ = fitted.logits([clients.view(row, sent) for row in validation])
        fitted.temperature = temperature_of(logits, np.array([row.label for row in validation]))
    _fit_sizes(fitted, train, [clients.view(row, sent, features_only=True) for row in train], settings)
    if validation:
        _temper_sizes(fitted, validation, [clients.view(row, sent, features_only=True) for row in validation])
    return fitted


def _fit_sizes(fitted: Fitted, rows: Sequence[Row], views: Sequence[PromptView], settings: Settings) -> None:
    """Fits what is said without text to collected rows alone, each once: sizes of generated prompts mean nothing."""
    dense = torch.tensor([fitted.encoder.parts(view).dense for view in views])
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


def _temper_sizes(fitted: Fitted, rows: Sequence[Row], views: Sequence[PromptView]) -> None:
    """Scales what is said without text until its confidence is right: sizes deceive in their own way, and the shared temperature stays."""
    logits, _ = fitted.logits(views)
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
