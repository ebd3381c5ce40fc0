"""What the shipped model's network is fed in training: settings, rows of a pass, and how they become batches. Needs torch."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import torch

from hmas.agents.perception.encoder import DENSE, Encoder, Parts, pad
from hmas.agents.perception.text import Vocabulary
from hmas.agents.perception.training.clients import DROP_TEXT, Clients, vary
from hmas.agents.perception.training.data import GENERATED, Row

UNKNOWN_BUCKETS = 2_048


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to train; the model card records it.

    Attributes:
        seed: Of everything that is drawn.
        epochs, epoch_rows, batch: Passes, rows drawn for each, rows a step.
        own_share: Share of a pass that are the project's own prompts.
        rate: Peak learning rate.
        word_dropout: Words hidden at random.
        side_dropout: Share of system prompts and of histories hidden at random: they help, and must never be needed.
        smoothing: Label smoothing.
        length_weight: Weight of the length quantiles' loss.
    """

    seed: int = 1
    epochs: int = 10
    epoch_rows: int = 24_000
    batch: int = 128
    own_share: float = 0.6
    rate: float = 2e-3
    word_dropout: float = 0.12
    side_dropout: float = 0.25
    smoothing: float = 0.05
    length_weight: float = 0.25


class Sampler:
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


Example = tuple[Parts, int, float]
Batch = tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]


def examples_of(rows: list[Row], clients: Clients, encoder: Encoder, settings: Settings, rng: np.random.Generator) -> list[Example]:
    """Rows as the network is shown them: varied, sent as clients send them, partly hidden; with label and output length."""
    examples = []
    for row in rows:
        changed = vary(row, rng)
        view, needed = clients.sent(changed, rng, features_only=bool(rng.random() < DROP_TEXT))
        parts = encoder.parts(view)
        length = float(rng.choice(row.lengths)) if row.lengths else float(row.output_tokens)
        examples.append((_hide(parts, encoder.vocabulary, settings, rng, needed=needed), row.label, length))
    return examples


def batches_of(examples: list[Example], settings: Settings, rng: np.random.Generator) -> Iterator[Batch]:
    """Batches of examples of like length, in any order."""
    # Rows of like length share a batch; batches come in any order.
    order = sorted(range(len(examples)), key=lambda index: len(examples[index][0][0]) + rng.random() * 16)
    starts = list(range(0, len(order), settings.batch))
    rng.shuffle(starts)
    for start in starts:
        chosen = [examples[index] for index in order[start : start + settings.batch]]
        inputs = {name: torch.from_numpy(array) for name, array in pad([parts for parts, _, _ in chosen]).items()}
        yield inputs, torch.tensor([label for _, label, _ in chosen]), torch.tensor([length for _, _, length in chosen])


def _hide(parts: Parts, vocabulary: Vocabulary, settings: Settings, rng: np.random.Generator, *, needed: bool) -> Parts:
    """Hides words as if they were unknown, features of the bag altogether, system prompts and histories that are not needed, sizes."""
    words, bag, system, history, values = parts
    share = settings.word_dropout
    unknown = rng.integers(vocabulary.size - UNKNOWN_BUCKETS, vocabulary.size, size=len(words))
    words = np.where(rng.random(len(words)) < share, unknown, words)
    bag = bag[rng.random(len(bag)) >= share] if len(bag) > 4 else bag
    system, history = (side[: len(side) * (needed or rng.random() >= settings.side_dropout)] for side in (system, history))
    if rng.random() < 0.1:
        # Prompts of token ids have no characters, and a gateway of an earlier version does not send the question's size.
        values = [0.0 if name.startswith(("log_", "tokens_")) else value for name, value in zip(DENSE, values, strict=True)]
    return Parts(words, bag, system, history, values)
