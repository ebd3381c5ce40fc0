"""What a base is trained on: rows drawn and sent anew in every pass, as the shipped reader's are. Needs the extra `train`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer

from hmas.agents.perception.lm.train import TrainSettings
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.clients import Clients, vary
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.feeding import Sampler, Settings

PASS_ROWS = Settings().epoch_rows

Example = dict[str, list[int]]


class Passes(Dataset[Example]):  # type: ignore[misc]  # torch is not there for the type checker
    """All passes in their order, rows of like length in one batch. The same index gives the same example in every process.

    Args:
        train: Collected rows.
        own: Generated rows.
        settings: Their seed, batch and epochs count.
        example: Makes an example of a view, its label and the output's length in tokens.

    Attributes:
        rows: Rows of one pass.
    """

    def __init__(
        self, train: Sequence[Row], own: Sequence[Row], settings: TrainSettings, example: Callable[[PromptView, int, int], Example]
    ) -> None:
        self.rows = min(PASS_ROWS, len(train) + len(own))
        self._example, self._seed, self._clients = example, settings.seed, Clients([*train, *own])
        total = math.ceil(self.rows * settings.epochs)
        drawn: list[Row] = []
        while len(drawn) < total:
            rng = np.random.default_rng((settings.seed, len(drawn)))
            found = Sampler(train, own, Settings(epoch_rows=self.rows), rng)()[: self.rows]
            found.sort(key=lambda row: min(len(row.prompt), settings.excerpt_chars) + rng.random() * 40.0)
            batches = [found[start : start + settings.batch] for start in range(0, len(found), settings.batch)]
            drawn += [row for number in rng.permutation(len(batches)) for row in batches[number]]
        self._drawn = drawn[:total]

    def __len__(self) -> int:
        return len(self._drawn)

    def __getitem__(self, index: int) -> Example:
        rng = np.random.default_rng((self._seed, 1, index))
        row = vary(self._drawn[index], rng)
        length = int(rng.choice(row.lengths)) if row.lengths else row.output_tokens
        return self._example(self._clients.view(row, rng), row.label, length)


class InOrder(Trainer):  # type: ignore[misc]  # as above
    """A Trainer that leaves the order of `Passes` as it is."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)


def sent(rows: Sequence[Row], clients: Clients, seed: int) -> list[PromptView]:
    """Rows as clients might send them, always the same."""
    rng = np.random.default_rng(seed)
    return [clients.view(row, rng) for row in rows]
